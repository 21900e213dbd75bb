"""Attempt at one job: the value that travels from the reserve through a slot to the settlement, and its handler's view.

A batch of merged jobs is one :class:`BatchAttempt`, which the slot and the handler see, around one :class:`Attempt`
for each job, which is held, renewed and settled. So losing one job does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from ..core.job import Job, created_ms
from ..core.options import TaskOptions
from ..core.times import datetime_of

if TYPE_CHECKING:
    from types import FrameType

    from ..core.outcomes import Settlement
    from ..core.queue import Queue
    from ..core.task import Registry, Task
    from .shards import Source

NEVER: Final = float("inf")
#: options of a job whose task is not registered here
NO_TASK: Final = TaskOptions()


def trusted(lease: float) -> float:
    """Return how many seconds of a lease its holder may rely on.

    Counted from before the call that won or renewed it.
    """
    return lease - min(1.0, lease / 10)


@dataclass(slots=True, eq=False, repr=False)
class Attempt:
    """Attempt at one job. Times are of ``time.monotonic()``, in seconds.

    Has slots, because 20,000 of these are created per second.
    """

    job: Job
    source: Source
    received: float
    #: end of the lease as far as this process can tell; the heartbeat moves it
    deadline: float
    #: Redis's clock in ms = monotonic() * 1000 + offset_ms
    offset_ms: float
    #: the job was acked before its handler began (``ack="early"``), so it has no lease any more
    acked: bool = False
    task: Task | None = None
    #: options that decide about its end; the defaults until its task is looked up
    policy: TaskOptions = NO_TASK
    #: arguments of the handler, positional ones and those by name; shared as long as there are none
    arguments: tuple[list[Any], dict[str, Any]] = ([], {})
    started: float = 0.0
    ended: float = 0.0
    slot: int = -1
    #: what the handler raised, if it did not return
    error: BaseException | None = None
    settlement: Settlement | None = None
    #: cancelled, lost, or the process is about to stop: a long handler may check it and return early
    should_stop: bool = False
    #: the lease belongs to another worker now: the outcome is dropped
    lost: bool = False
    #: when the time limit ends, and when it was enforced (0 = not); kept by the timeout monitor
    limit_at: float = NEVER
    limited_by: float = 0.0
    thread_id: int = 0
    cancel: Callable[[], None] | None = None
    #: returns the frames of a coroutine that runs for the attempt
    frames: Callable[[], list[FrameType]] | None = None
    #: what ran when the time limit was enforced, as a stored traceback
    stack: str = ""
    view: CurrentJob | None = None

    #: the attempts of a batch, one for each of its jobs; empty = an attempt at one job. No field, so that it costs a
    #: single attempt nothing
    members = cast("tuple[Attempt, ...]", ())

    @property
    def queue(self) -> Queue:
        """Queue that holds the job."""
        return self.source.queue

    @property
    def now_ms(self) -> float:
        """Current time on Redis's clock, Unix ms."""
        return monotonic() * 1000 + self.offset_ms

    @property
    def started_ms(self) -> int:
        """Time when the handler began, in Unix ms on Redis's clock."""
        return int(self.started * 1000 + self.offset_ms)

    @property
    def run_ms(self) -> int:
        """Duration of the attempt in milliseconds."""
        return int((self.ended - self.started) * 1000)

    @property
    def parts(self) -> tuple[Attempt, ...]:
        """Attempts at all its jobs: itself, or the members of the batch."""
        return self.members or (self,)

    @property
    def live(self) -> tuple[Attempt, ...]:
        """Parts that are not settled yet; the handler gets their arguments."""
        if not self.members:  # the usual case, quickly
            return (self,) if self.settlement is None else ()
        return tuple([part for part in self.members if part.settlement is None])

    def renewed(self, answer: str, until: float) -> None:
        """Record the reply to a renewal of the lease, which lasts until then: "held", "stopping" or "lost"."""
        if self.acked:
            return  # acked since the call: it has no lease any more, so it cannot have lost it
        if answer == "lost":
            self.lost = True  # also the reply for a job that was settled a moment ago, whose flags nothing reads
        else:
            self.deadline = max(self.deadline, until)
        self.should_stop = self.should_stop or answer != "held"

    def __repr__(self) -> str:
        return f"<Attempt {self.job.queue}/{self.job.id} task={self.job.task}>"


class BatchAttempt(Attempt):
    """Attempts at several merged jobs of one task, from one reserve, as one call of the handler."""

    __slots__ = ("members",)

    def __init__(self, members: Sequence[Attempt]) -> None:
        first = members[0]
        super().__init__(first.job, first.source, first.received, first.deadline, first.offset_ms)
        self.members = tuple(members)


def expected_batch(registry: Registry, queue: str) -> int:
    """Return the smallest number of jobs that an attempt takes from a queue, judging by the registered tasks."""
    return min([_size(task) for task in registry if task.options.queue == queue], default=1)


def batch_size_of(registry: Registry, job: Job) -> int:
    """Return how many jobs one attempt may take, given this job."""
    return _size(registry.get(job.task)) if job.merged else 1


def arrange(registry: Registry, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the same attempts with those of merged tasks combined into batches of at most ``batch_size`` ids.

    Each batch takes the position of its first member.
    """
    groups: list[list[Attempt]] = []
    growing: dict[Task, list[Attempt]] = {}
    for attempt in attempts:
        task = registry.get(attempt.job.task) if attempt.job.merged else None
        size = _size(task)
        if task is None or size == 1:
            groups.append([attempt])
            continue
        group = growing.get(task)
        if group is None:
            group = growing[task] = []
            groups.append(group)
        group.append(attempt)
        if len(group) == size:
            del growing[task]
    return [BatchAttempt(group) if len(group) > 1 else group[0] for group in groups]


def _size(task: Task | None) -> int:
    return task.options.batch_size if task is not None and task.options.merge else 1


# -- the job as a handler sees it -------------------------------------------------------------------------------------

#: the attempt of this thread or coroutine; set by the execution, read by :func:`current_job`
running: ContextVar[Attempt | None] = ContextVar("delayq_attempt", default=None)


class ReservedJob:
    """Reserved job, as Redis returned it."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def _max_attempts(self) -> int:
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Id of the job, unique within its queue."""
        return self._job.id

    @property
    def queue(self) -> str:
        """Name of the job's queue."""
        return self._job.queue

    @property
    def task(self) -> str:
        """Task name that the job was scheduled under."""
        return self._job.task

    @property
    def attempt(self) -> int:
        """Number of this counted attempt; the first is 1."""
        return self._job.attempt

    @property
    def noe(self) -> int:
        """Number of earlier reserves of the job, whether they counted as failures or not."""
        return self._job.reserves - 1

    @property
    def releases(self) -> int:
        """Number of times that the job was put back uncounted before this attempt: by ``Release``, or at a shutdown."""
        return self._job.releases

    @property
    def created(self) -> datetime | None:
        """Time at which this generation was first scheduled, by the caller's clock (UTC).

        None for a job of an HTTP request with an ``Idempotency-Key`` and of a bulk load, whose calls may be repeated.
        """
        ms = created_ms(self._job.key)
        return None if ms is None else datetime_of(ms)

    @property
    def lives(self) -> int:
        """Number of attempts left, including this one."""
        return self._max_attempts - self._job.failures

    @property
    def due(self) -> datetime:
        """Time at which the job was due (UTC)."""
        return datetime_of(self._job.due_ms)

    @property
    def key(self) -> str:
        """Key of this generation of the id (32 hex digits), the same in every attempt."""
        return self._job.key.hex()

    @property
    def token(self) -> int:
        """Fencing token of this lease, larger than that of every earlier holder of the job. A batch has only one."""
        return self._job.token

    @property
    def context(self) -> Mapping[str, Any]:
        """Value of ``context`` from the schedule call."""
        return self._job.context


class CurrentJob(ReservedJob):
    """View of the running job. Valid until the handler returns.

    In a batch it is a view of the whole call. Attributes that can describe one job only describe the first;
    :attr:`jobs` has a view of each job.
    """

    __slots__ = ("_attempt", "_parts")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        #: the attempt, or those of a batch that are not settled yet
        self._parts = tuple([part for part in attempt.members if part.settlement is None]) or (attempt,)
        super().__init__(self._parts[0].job)

    @property
    def _max_attempts(self) -> int:
        return self._parts[0].policy.max_attempts

    @property
    def retry_count(self) -> int:
        """Number of failures minus one: -1 for a job that never failed."""
        return self._job.failures - 1

    @property
    def tick(self) -> datetime | None:
        """Tick of a recurring task that this job is for, the same in every attempt; None for other jobs."""
        ms = self._job.options.get("tick_ms")
        return None if ms is None else datetime_of(ms)

    @property
    def args(self) -> Sequence[Any]:
        """Positional arguments of the handler."""
        return self._attempt.arguments[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the handler."""
        return self._attempt.arguments[1]

    @property
    def payloads(self) -> Sequence[Any]:
        """Payloads of a merged job in score order, as passed to the handler; empty for other jobs."""
        if not self._job.merged or not self._attempt.arguments[0]:
            return ()
        payloads: Sequence[Any] = self._attempt.arguments[0][0].get(self.id, ())
        return payloads

    @property
    def scores(self) -> tuple[float, ...]:
        """Scores of :attr:`payloads`."""
        return tuple(_number(payload.score) for payload in self._job.payloads)

    @property
    def payload_keys(self) -> tuple[str, ...]:
        """Keys of :attr:`payloads` (32 hex digits each), the same in every attempt."""
        return tuple(payload.key.hex() for payload in self._job.payloads)

    @property
    def jobs(self) -> tuple[CurrentJob, ...]:
        """Views of all jobs that this call works on."""
        return (self,) if self._parts[0] is self._attempt else tuple([view_of(part) for part in self._parts])

    @property
    def lost(self) -> bool:
        """Return True if the lease is lost: the job belongs to another worker now, and its outcome is not stored.

        For a batch it is true when all of its jobs are lost.
        """
        return all(part.lost for part in self._parts)

    @property
    def should_stop(self) -> bool:
        """Return True if the handler should return soon: the job was cancelled or lost, or the process is about to end.

        For a batch it is true when its time or its process ends, or when all of its jobs should stop; :attr:`jobs` has
        the flag of each job.
        """
        return self._attempt.should_stop or all(part.should_stop for part in self._parts)

    @property
    def seconds_left(self) -> float:
        """Seconds until this attempt should be over: until its time limit, or until its lease ends if that is sooner.

        The worker renews the lease every few seconds, so the lease matters only while Redis is unreachable. In a batch
        the lease that ends first counts. 0 when the time is over or the job is lost; infinite without limit and lease
        (``ack="early"``).
        """
        return max(0.0, self._ends_at() - monotonic())

    @property
    def deadline(self) -> datetime | None:
        """Time at which :attr:`seconds_left` will be 0, on Redis's clock (UTC); None = never. A renewal moves it."""
        ends_at = self._ends_at()
        if ends_at == NEVER:
            return None
        return datetime_of(ends_at * 1000 + self._attempt.offset_ms)

    def _ends_at(self) -> float:
        attempt = self._attempt
        if attempt.limited_by:
            return attempt.limited_by
        leases = [NEVER if part.acked else part.deadline for part in self._parts if not part.lost]
        return min(attempt.limit_at, *leases) if leases else 0.0

    def touch(self) -> bool:
        """Renew the lease now, in a batch those of all its jobs. The worker also renews it every few seconds.

        Returns:
            False if the job (every job of the batch) belongs to another worker now; no outcome of this attempt will be
            stored any more.
        """
        held = [part for part in self._parts if not part.acked]
        queue, sent_at = self._attempt.queue, monotonic()
        answers = queue.touch([part.job for part in held], {(part.job.id, part.job.token) for part in held})
        until = sent_at + trusted(queue.deployment.lease_ms / 1000)
        for part, answer in zip(held, answers, strict=True):
            part.renewed(answer, until)
        return not self.lost

    def __repr__(self) -> str:
        more = f" and {len(self._parts) - 1} more" if len(self._parts) > 1 else ""
        return f"<CurrentJob {self.queue}/{self.id}{more} attempt={self.attempt}>"


def _number(score: str) -> float:
    try:
        return int(score)
    except ValueError:
        return float(score)


def view_of(attempt: Attempt) -> CurrentJob:
    """Return the view of an attempt, the same object for as long as the attempt lasts."""
    if attempt.view is None:
        attempt.view = CurrentJob(attempt)
    return attempt.view


def current_job() -> CurrentJob | None:
    """Return the job whose handler is running here, or None outside of a handler."""
    attempt = running.get()
    return None if attempt is None else view_of(attempt)
