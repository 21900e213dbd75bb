"""A job in the hands of a thread that pulled it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..core import flusher
from ..core.codec import decode, decode_args
from ..core.errors import Bury, DelayQError, InvalidJob, PartialFailure, Release, Verdict
from ..core.inputs import check_int
from ..core.job import PRIORITIES, Job, Settlement, Undecodable, ack
from ..core.task import registry
from ..core.times import delay_ms_of
from ..settings.conf import conf
from ..worker import decision
from . import ends

if TYPE_CHECKING:
    from ..core.queue import Queue

logger: Final = logging.getLogger("django_delayq.pull")

#: what the bytes of a pull queue are stored under, where others have the name of a task
RAW: Final = "raw"


class HeldJob:
    """A job that this process holds until its ``deadline``. Nobody renews the lease but :meth:`touch`.

    One of :meth:`ack`, :meth:`fail`, :meth:`release` and :meth:`bury` ends it; each answers whether it counted, and
    after the first of them every other answers False. False from the first one means that the lease was lost: the job
    is somebody else's by now, or back in the queue, and nothing was changed. Any thread may call them.

    As a context manager it acks at the end of the block and fails on an exception; see :meth:`__exit__`.

    They raise :class:`QueueUnavailable` when Redis cannot be reached. Call again then; False may mean that the first
    call has counted.

    Attributes:
        id: its id, unique within its queue.
        queue: name of the queue.
        task: name that it was scheduled under; "raw" for what :meth:`Queue.put` stored.
        should_stop: somebody cancelled it; known after a :meth:`touch`.
        lost: the lease is known to be lost.
    """

    def __init__(self, queue: Queue, job: Job, *, taken_ms: float, ttr_ms: int) -> None:
        self.id = job.id
        self.queue = queue.name
        self.task = job.task
        self.should_stop = False
        self.lost = False
        self._live = queue
        self._job = job
        self._ttr_ms = ttr_ms
        self._taken_ms = taken_ms
        self._began = time.monotonic()
        self._deadline_ms = taken_ms + ttr_ms
        # The same moment on this machine's clock, counted from the answer: a reserve that is sent again, be it after
        # minutes without Redis, begins the lease anew.
        self._ends_at = self._began + ttr_ms / 1000
        self._policy = decision.policy_of(registry.get(job.task), job)
        self._ending = threading.Lock()
        self._ended = False

    def __repr__(self) -> str:
        return f"<HeldJob {self.queue}/{self.id} attempt={self.attempt}>"

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def record(self) -> Job:
        """What Redis said of it."""
        return self._job

    @property
    def body(self) -> bytes:
        """The bytes as they were put (of a task's job: its encoded arguments)."""
        return self._job.args

    @cached_property
    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        if self._job.merged:
            return [{self.id: list(self.payloads)}], {}
        return ([], {}) if self.task == RAW or not self._job.args else decode_args(self._job.args)

    @property
    def args(self) -> Sequence[Any]:
        """The task's positional arguments; of a merged job ``[{id: [payload, …]}]``; empty for raw bytes.

        Raises:
            Undecodable: what is stored are no arguments. A ``with`` block buries the job then.
        """
        return self._arguments[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The task's keyword arguments; see :attr:`args`."""
        return self._arguments[1]

    @cached_property
    def payloads(self) -> tuple[Any, ...]:
        """A merged job's payloads in the order of their scores; empty for others."""
        return tuple([decode(payload.data) for payload in self._job.payloads])

    @property
    def attempt(self) -> int:
        """Number of this counted attempt; the first is 1."""
        return self._job.failures + 1

    @property
    def failures(self) -> int:
        """Counted attempts that failed."""
        return self._job.failures

    @property
    def noe(self) -> int:
        """How often the job was handed out before this time, counted as a failure or not."""
        return self._job.reserves - 1

    @property
    def lives(self) -> int:
        """Attempts that are left, this one included."""
        return self._policy.max_attempts - self._job.failures

    @property
    def due(self) -> datetime:
        """When it was due (UTC)."""
        return _moment(self._job.due_ms)

    @property
    def key(self) -> str:
        """Key of this generation of the id (32 hex digits), the same in every attempt."""
        return self._job.key.hex()

    @property
    def token(self) -> int:
        """Fencing token: larger than that of every earlier holder of the job."""
        return self._job.token

    @cached_property
    def context(self) -> Mapping[str, Any]:
        """The ``context`` of the schedule call."""
        return self._job.context

    @property
    def deadline(self) -> datetime:
        """End of the lease (UTC, on Redis's clock), as far as this process knows."""
        return _moment(self._deadline_ms)

    @property
    def seconds_left(self) -> float:
        """Seconds until the lease ends, as far as this process knows; 0 when it is over, or the job has ended."""
        return 0.0 if self._ended or self.lost else max(0.0, self._ends_at - time.monotonic())

    @property
    def in_hand(self) -> bool:
        """Whether it is still to be ended, and its lease is not known to be lost."""
        return not (self._ended or self.lost)

    # -- how it ends -------------------------------------------------------------------------------------------------

    def ack(self) -> bool:
        """It is done; nothing of it stays."""
        return self._end(ack(self._job, int(self._taken_ms), self._run_ms()))

    def fail(self, error: BaseException | str = "", delay: float | timedelta | None = None) -> bool:
        """The attempt failed and counts. The job is due again after its task's back-off, or goes to the morgue if this
        was its last attempt. Without a registered task the defaults count.

        Args:
            error: what happened. ``Retry``, ``Bury``, ``Release`` and ``PartialFailure`` do what they do in a handler.
            delay: another back-off.
        """
        delay_ms = None if delay is None else _delay_ms(delay)
        if not isinstance(error, BaseException):
            error = Exception(error)
        if isinstance(error, PartialFailure):
            failed = decision.failures_of(error, [self.id])
            if self.id not in failed:
                return self.ack()
            error = failed[self.id]
        settlement = decision.raised(self._job, self._policy, error, int(self._taken_ms), self._run_ms())
        if delay_ms is not None and settlement.verb == "fail":
            settlement.delay_ms = delay_ms
        return self._end(settlement, error)

    def release(self, delay: float | timedelta | None = None, *, priority: int | None = None) -> bool:
        """Give it back without counting an attempt, after ``delay`` or (None) at its old place.

        Args:
            delay: seconds or a ``timedelta``.
            priority: 0 (first) … 7 from now on; None = as it is.
        """
        if priority is not None:
            check_int("priority", priority, 0, PRIORITIES - 1)
        return self.fail(Release(delay=None if delay is None else _delay_ms(delay) / 1000, priority=priority))

    def bury(self, reason: str = "") -> bool:
        """It can never succeed: into the morgue, where a person finds the reason."""
        return self.fail(Bury(reason))

    def touch(self, ttr: float | timedelta | None = None) -> bool:
        """Hold it longer: ``ttr`` from now on, by default as long as it was reserved for.

        Returns:
            False if the lease was lost, or the job has ended already.
        """
        ttr_ms = self._ttr_ms if ttr is None else check_ttr(ttr)
        with self._ending:
            return not (self._ended or self.lost) and self._touch(ttr_ms)

    def _touch(self, ttr_ms: int) -> bool:
        asked_at = time.monotonic()
        (answer,) = self._live.touch([self._job], {(self.id, self.token)}, ttr_ms=ttr_ms)
        self.lost, self.should_stop = answer == "lost", answer == "stopping"
        if not self.lost:
            self._deadline_ms = self._taken_ms + (asked_at - self._began) * 1000 + ttr_ms
            self._ends_at = asked_at + ttr_ms / 1000
        return not self.lost

    def refuse(self, error: Undecodable) -> bool:
        """What is stored cannot be read, now or ever: into the morgue, with its bytes."""
        return self._end(decision.undecodable(self._job, error), error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ack, or what the exception means, unless the block has ended the job itself.

        An exception counts as a failure and goes on. A verdict (``Retry``, ``Bury``, ``Release``, ``PartialFailure``)
        is carried out and ends here. What ends the process (KeyboardInterrupt, SystemExit) releases the job.
        """
        if error is None:
            if not self._ended and not self.ack():
                logger.warning("%s: done, but its lease was lost, so it may be run again", self.id)
            return False
        if not self._ended:
            try:
                self._meet(error)
            except DelayQError as trouble:
                logger.warning("%s: %s was not told to Redis; its lease will end: %s", self.id, kind, trouble)
        return isinstance(error, Verdict)

    def _meet(self, error: BaseException) -> None:
        if isinstance(error, Undecodable):
            self.refuse(error)
        elif isinstance(error, Exception):
            self.fail(error)
        else:
            self.release()

    def _given_back(self) -> Settlement | None:
        """How it goes back uncounted; None if it has ended already."""
        with self._ending:
            if self._ended or self.lost:
                return None
            self._ended = True
        return decision.give_back(self._job, self._policy, reason="nobody waits for it any more")

    def _run_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    def _end(self, settlement: Settlement, error: BaseException | None = None) -> bool:
        with self._ending:
            if self._ended or self.lost:
                return False
            if ends.is_heard(settlement):
                if not self._touch(self._ttr_ms):
                    return False  # it is somebody else's, and so is its end
                ends.notify(self._live, settlement, error)
            (counted,) = self._live.settle([settlement])
            self._ended, self.lost = True, not counted
        flusher.note(self._live.broker, [settlement])
        return counted


def give_back(jobs: Iterable[HeldJob]) -> None:
    """Gives jobs back that nobody will work on, uncounted, in few calls. If that fails their leases will end."""
    by_queue: dict[Queue, list[Settlement]] = {}
    for job in jobs:
        settlement = job._given_back()
        if settlement is not None:
            by_queue.setdefault(job._live, []).append(settlement)
    for queue, settlements in by_queue.items():
        try:
            queue.settle(settlements)
        except DelayQError as error:
            logger.warning(
                "%d jobs of %s were not given back; their leases will end: %s", len(settlements), queue.name, error
            )


def _moment(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _delay_ms(delay: float | timedelta) -> int:
    return delay_ms_of(delay, allow_far=conf().allow_far)


def check_ttr(ttr: float | timedelta) -> int:
    """The length of a lease in ms.

    Raises:
        InvalidJob: it is none.
    """
    ms = delay_ms_of(ttr, what="ttr")
    if ms == 0:
        raise InvalidJob("ttr is 0, so nothing could be held; give the seconds that the work may take")
    return ms
