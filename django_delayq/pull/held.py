"""Job that was reserved through the pull API, and the ways to end it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from types import TracebackType
from typing import Any, Final, Self

from .. import signals
from ..core.codec import decode
from ..core.errors import DelayQError
from ..core.inputs import check_int
from ..core.job import PRIORITIES, RAW, Job, Undecodable
from ..core.outcomes import Batch, Settlement, ack
from ..core.queue import Queue
from ..core.task import registry
from ..core.times import USUAL_TTR_MS, datetime_of, delay_ms_of, ttr_ms_of
from ..core.verdicts import Bury, PartialFailure, Release, Verdict
from ..settings.conf import SETTING, conf, load_function
from ..worker.attempt import ReservedJob
from ..worker.ends import End, failures_of, policy_of, undecodable
from ..worker.hooks import Hooks, Notifier, arguments_of
from . import limits

logger: Final = logging.getLogger("django_delayq.pull")


class HeldJob(ReservedJob):
    """Job that this process holds until its ``deadline``. Only :meth:`touch` renews the lease.

    The job ends with one call of :meth:`ack`, :meth:`fail`, :meth:`release` or :meth:`bury`. The call returns True if
    it took effect; after that all of them return False. False from the first call means that the lease was lost: the
    job has another holder by now, or is back in the queue, and nothing was changed. Any thread may call them.

    As a context manager it acks at the end of the block and fails on an exception; see :meth:`__exit__`.

    They raise :class:`QueueUnavailable` when Redis cannot be reached. Call again then; False may then mean that the
    first call took effect.

    Attributes:
        task: name of the task; "raw" for bytes stored by :meth:`Queue.put`.
        should_stop: True if the job was cancelled; updated by :meth:`touch`.
        lost: True if the lease is known to be lost.
    """

    def __init__(self, queue: Queue, job: Job, batch: Batch, *, ttr_ms: int | None) -> None:
        super().__init__(job)
        ttr_ms = ttr_ms or job.ttr_ms or USUAL_TTR_MS
        self.should_stop = False
        self.lost = False
        self._core_queue = queue
        self._ttr_ms = ttr_ms
        self._taken_ms = batch.now_ms
        self._began = time.monotonic()
        #: :attr:`deadline` as Unix ms
        self.deadline_ms = batch.now_ms + ttr_ms
        # The deadline on this machine's clock, or an earlier moment, because the reply may have been delayed. A
        # repeated reserve call, even after minutes without Redis, restarts the lease.
        self._ends_at = batch.sent_at + ttr_ms / 1000
        self._policy = policy_of(registry.get(job.task), job)
        self._ending = threading.Lock()
        self._ended = False

    def __repr__(self) -> str:
        return f"<HeldJob {self.queue}/{self.id} attempt={self.attempt}>"

    # -- properties --------------------------------------------------------------------------------------------------

    @property
    def _max_attempts(self) -> int:
        return self._policy.max_attempts

    @property
    def record(self) -> Job:
        """Job as Redis returned it."""
        return self._job

    @property
    def body(self) -> bytes:
        """Bytes as they were put (for a task's job: its encoded arguments)."""
        return self._job.args

    @cached_property
    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        return ([], {}) if self.task == RAW else arguments_of(self._job)

    @property
    def args(self) -> Sequence[Any]:
        """Positional arguments of the task; for a merged job ``[{id: [payload, …]}]``; empty for raw bytes.

        Raises:
            Undecodable: the stored arguments cannot be decoded. A ``with`` block buries the job then.
        """
        return self._arguments[0]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Keyword arguments of the task; see :attr:`args`."""
        return self._arguments[1]

    @cached_property
    def payloads(self) -> tuple[Any, ...]:
        """Payloads of a merged job in the order of their scores; empty for other jobs."""
        return tuple([decode(payload.data) for payload in self._job.payloads])

    @property
    def failures(self) -> int:
        """Number of failed attempts that were counted."""
        return self._job.failures

    @property
    def deadline(self) -> datetime:
        """End of the lease (UTC, on Redis's clock), as far as this process knows."""
        return datetime_of(self.deadline_ms)

    @property
    def seconds_left(self) -> float:
        """Seconds until the lease ends, counted from its request; 0 = it may have ended, or the job has ended."""
        return max(0.0, self._ends_at - time.monotonic()) if self.in_hand else 0.0

    @property
    def in_hand(self) -> bool:
        """True if the job has not ended and its lease is not known to be lost."""
        return not (self._ended or self.lost)

    # -- settlement --------------------------------------------------------------------------------------------------

    def ack(self) -> bool:
        """Acknowledge the job as done and delete it; return True if that took effect."""
        return self._end(ack(self._job, int(self._taken_ms), self._run_ms()))

    def fail(self, error: BaseException | str = "", delay: float | timedelta | None = None) -> bool:
        """End the attempt as a counted failure; return True if that took effect.

        The job is due again after its task's back-off, or is buried in the morgue if this was its last attempt. Without
        a registered task the defaults apply.

        Args:
            error: the exception or a message. ``Retry``, ``Bury``, ``Release`` and ``PartialFailure`` have the same
                effect as in a handler.
            delay: a back-off to use instead of the task's.
        """
        delay_ms = None if delay is None else _delay_ms(delay)
        if not isinstance(error, BaseException):
            error = Exception(error)
        if isinstance(error, PartialFailure):
            failed = failures_of(error, [self.id])
            if self.id not in failed:
                return self.ack()
            error = failed[self.id]
        settlement = End(self._job, self._policy, int(self._taken_ms), self._run_ms()).raised(error)
        if delay_ms is not None and settlement.verb == "fail":
            settlement.delay_ms = delay_ms
        return self._end(settlement, error)

    def release(self, delay: float | timedelta | None = None, *, priority: int | None = None) -> bool:
        """Return the job to the queue without counting an attempt; return True if that took effect.

        Args:
            delay: seconds or a ``timedelta`` until the job is due; None = it keeps its old place.
            priority: new priority from 0 (first) to 7; None = unchanged.
        """
        if priority is not None:
            check_int("priority", priority, 0, PRIORITIES - 1)
        return self.fail(Release(delay=None if delay is None else _delay_ms(delay) / 1000, priority=priority))

    def bury(self, reason: str = "") -> bool:
        """Move the job to the morgue with a reason, because it can never succeed; return True if that took effect."""
        return self.fail(Bury(reason))

    def touch(self, ttr: float | timedelta | None = None) -> bool:
        """Extend the lease to ``ttr`` from now on, by default to the time that the job was reserved for.

        Returns:
            False if the lease was lost, or the job has ended already.
        """
        ttr_ms = self._ttr_ms if ttr is None else ttr_ms_of(ttr)
        with self._ending:
            return self.in_hand and self._touch(ttr_ms)

    def _touch(self, ttr_ms: int) -> bool:
        sent_at = time.monotonic()
        limits.renew(self._core_queue, [self._job], ttr_ms)
        (answer,) = self._core_queue.touch([self._job], {(self.id, self.token)}, ttr_ms=ttr_ms)
        self.lost, self.should_stop = answer == "lost", answer == "stopping"
        if not self.lost:
            self.deadline_ms = self._taken_ms + (sent_at - self._began) * 1000 + ttr_ms
            self._ends_at = sent_at + ttr_ms / 1000
        return not self.lost

    def refuse(self, error: Undecodable) -> bool:
        """Move a job that can never be decoded to the morgue, with its bytes; return True if that took effect."""
        return self._end(undecodable(self._job, error), error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Ack the job, or settle it according to the exception, unless the block has ended it.

        An exception counts as a failure and propagates. A verdict (``Retry``, ``Bury``, ``Release``,
        ``PartialFailure``) is applied and does not propagate. Exceptions that end the process (KeyboardInterrupt,
        SystemExit) release the job and propagate.
        """
        if error is None:
            if not self._ended and not self.ack():
                logger.warning("%s: done, but its lease was lost, so it may be run again", self.id)
            return False
        if not self._ended:
            try:
                if isinstance(error, Undecodable):
                    self.refuse(error)
                elif isinstance(error, Exception):
                    self.fail(error)
                else:
                    self.release()
            except DelayQError as trouble:
                logger.warning(
                    "%s: the end by %s could not be stored; the lease will expire: %s", self.id, kind, trouble
                )
        return isinstance(error, Verdict)

    def _prepare_release(self) -> Settlement | None:
        """Mark the job as ended and return the settlement that releases it uncounted; None if it is no longer held."""
        with self._ending:
            if not self.in_hand:
                return None
            self._ended = True
        return End(self._job, self._policy).give_back("its caller does not wait any more")

    def _run_ms(self) -> int:
        return int((time.monotonic() - self._began) * 1000)

    def _end(self, settlement: Settlement, error: BaseException | None = None) -> bool:
        with self._ending:
            if not self.in_hand:
                return False
            if has_listeners(settlement):
                if not self._touch(self._ttr_ms):
                    return False  # the lease was lost, so the new holder reports the end
                notify(self._core_queue, settlement, error)
            (counted,) = limits.settle(self._core_queue, [settlement])
            self._ended, self.lost = True, not counted
        self._core_queue.tally.ended(self._core_queue.name, [settlement])
        return counted


def give_back(jobs: Iterable[HeldJob]) -> None:
    """Return jobs to their queues in few calls, without counting an attempt.

    Errors are logged; the jobs then return when their leases end.
    """
    by_queue: dict[Queue, list[Settlement]] = {}
    for job in jobs:
        settlement = job._prepare_release()
        if settlement is not None:
            by_queue.setdefault(job._core_queue, []).append(settlement)
    for queue, settlements in by_queue.items():
        try:
            limits.settle(queue, settlements)
        except DelayQError as error:
            logger.warning(
                "%d jobs of %s were not given back; their leases will end: %s", len(settlements), queue.name, error
            )


def _delay_ms(delay: float | timedelta) -> int:
    return delay_ms_of(delay, allow_far=conf().allow_far)


# -- listeners for ends outside of workers, called before the end is stored, as in a worker --------------------------
# If the process dies in between, the job stays held, and a dispatcher settles it when its lease has expired.


@lru_cache(maxsize=1)
def _notifier_for(report_error: str | None) -> Notifier:
    """Return the notifier for a path in ``HOOKS["report_error"]``."""
    report = None if report_error is None else load_function(f"{SETTING}['HOOKS']['report_error']", report_error)
    return Notifier(Hooks(wants=signals.wants, notify=signals.notify, report_error=report))


def has_listeners(settlement: Settlement) -> bool:
    """Return True if any listener is called for this end."""
    return _notifier_for(conf().hooks.report_error).has_listeners(settlement, registry.get(settlement.job.task))


def notify(queue: Queue, settlement: Settlement, error: BaseException | None) -> None:
    """Call the listeners for an end that is about to be stored."""
    notifier, task = _notifier_for(conf().hooks.report_error), registry.get(settlement.job.task)
    notifier.ended_elsewhere(queue, task, settlement, error)


# A forked child makes a new one: the inherited one has no thread for coroutines.
os.register_at_fork(after_in_child=_notifier_for.cache_clear)
