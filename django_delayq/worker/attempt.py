"""Attempt at one job: the value that travels from the reserve through a slot to the settlement.

A batch of merged jobs is one :class:`BatchAttempt`, which the slot and the handler see, around one :class:`Attempt`
for each job, which is held, renewed and settled. So losing one job does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

    from ..core.job import Job
    from ..core.options import TaskOptions
    from ..core.outcomes import Settlement
    from ..core.queue import Queue
    from ..core.task import Task
    from .shard_selector import Source

NEVER: Final = float("inf")


def trusted(lease: float) -> float:
    """Return how many seconds of a lease its holder may rely on.

    Counted from before the call that won or renewed it.
    """
    return lease - min(1.0, lease / 10)


class Attempt:
    """Attempt at one job. Times are of ``time.monotonic()``, in seconds.

    Has ``__slots__``, because 20,000 of these are created per second.
    """

    __slots__ = (
        "acked",
        "args",
        "cancel",
        "deadline",
        "ended",
        "error",
        "frames",
        "job",
        "kwargs",
        "limit_at",
        "limited_by",
        "lost",
        "offset_ms",
        "policy",
        "received",
        "settlement",
        "should_stop",
        "slot",
        "source",
        "stack",
        "started",
        "task",
        "thread_id",
        "view",
    )

    #: the attempts of a batch, one for each of its jobs; empty = an attempt at one job. A class attribute, so that it
    #: costs a single attempt nothing
    members: tuple[Attempt, ...] = ()

    def __init__(self, job: Job, source: Source, received: float, deadline: float, offset_ms: float) -> None:
        self.job = job
        self.source = source
        self.received = received
        #: end of the lease as far as this process can tell; the heartbeat moves it
        self.deadline = deadline
        #: the job was acked before its handler began (``ack="early"``), so it has no lease any more
        self.acked = False
        #: Redis's clock in ms = monotonic() * 1000 + offset_ms
        self.offset_ms = offset_ms
        self.task: Task | None = None
        self.policy: TaskOptions | None = None
        self.args: list[Any] = _NO_ARGS
        self.kwargs: dict[str, Any] = _NO_KWARGS
        self.started = 0.0
        self.ended = 0.0
        self.slot = -1
        #: what the handler raised, if it did not return
        self.error: BaseException | None = None
        self.settlement: Settlement | None = None
        #: cancelled, lost, or the process is about to stop: a long handler may check it and return early
        self.should_stop = False
        #: the lease belongs to another worker now: the outcome is dropped
        self.lost = False
        #: when the time limit ends, and when it was enforced (0 = not); kept by the timeout monitor
        self.limit_at = NEVER
        self.limited_by = 0.0
        self.thread_id = 0
        self.cancel: Callable[[], None] | None = None
        #: returns the frames of a coroutine that runs for the attempt
        self.frames: Callable[[], list[FrameType]] | None = None
        #: what ran when the time limit was enforced, as a stored traceback
        self.stack = ""
        self.view: Any = None

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

    @property
    def lease_end(self) -> float:
        """End of the lease, as :attr:`deadline`; NEVER if there is none any more."""
        return NEVER if self.acked else self.deadline

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

    def __repr__(self) -> str:
        return f"<BatchAttempt {self.job.queue}/{self.job.id} and {len(self.members) - 1} more, task={self.job.task}>"


_NO_ARGS: Final[list[Any]] = []
_NO_KWARGS: Final[dict[str, Any]] = {}
