"""Runner of due jobs in this process, through the worker's own execution: middlewares, signals, verdicts, back-off."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections as databases

from ..core.errors import DelayQError, LeakedTransaction
from ..core.job import Job
from ..core.outcomes import IN_MORGUE, AttemptOutcome, Batch
from ..core.queue import Queue
from ..core.task import registry
from ..core.times import datetime_of
from ..core.verdicts import Verdict
from ..pull import limits
from ..runtime import wiring
from ..settings.conf import Conf, conf, restore_context
from ..worker.attempt import Attempt, arrange, batch_size_of, trusted
from ..worker.ends import End, policy_of
from ..worker.execution import Execution
from ..worker.loop import Changes
from ..worker.shards import Pace, Source
from ..worker.slots import EventLoop

if TYPE_CHECKING:
    from .redis import MemoryBroker

logger: Final = logging.getLogger("django_delayq.testing")

#: worker name of jobs that a test runs
HOLDER: Final = "test"
#: attempts in one call after which a task is suspected of scheduling itself
SELF_SCHEDULING: Final = 10_000

Error = BaseException | type[BaseException]


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt at a job.

    ``outcome`` is the text of an :class:`~django_delayq.core.outcomes.AttemptOutcome`; lost also if the attempt
    ended after its lease had run out, so that its end changed nothing.
    """

    task: str
    id: str
    queue: str
    attempt: int
    outcome: str
    due: datetime
    #: time of the in-memory clock
    at: datetime
    error: BaseException | None = None
    #: delay until the next attempt
    retry_in: timedelta | None = None

    def __str__(self) -> str:
        reason = f": {type(self.error).__name__}: {self.error}" if self.error is not None else ""
        retry = f", retry in {self.retry_in}" if self.retry_in is not None else ""
        return f"{self.task} id={self.id} {self.outcome} (attempt {self.attempt}{retry}){reason}"


@dataclass(slots=True)
class RunReport:
    """Result of ``run_due()``. Its length is the number of attempts."""

    runs: list[Ran] = field(default_factory=list)
    #: number of jobs that had expired and were removed
    expired: int = 0

    def __len__(self) -> int:
        return len(self.runs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.runs)) or "no jobs were run"

    def of(self, *outcomes: str) -> list[Ran]:
        """Return the attempts with one of these outcomes."""
        return [ran for ran in self.runs if ran.outcome in outcomes]

    @property
    def succeeded(self) -> list[Ran]:
        """Attempts whose handler returned."""
        return self.of(AttemptOutcome.SUCCEEDED)

    @property
    def failed(self) -> list[Ran]:
        """Attempts that failed and counted, including the last ones of jobs that were buried."""
        return self.of(AttemptOutcome.FAILED, AttemptOutcome.TIMEOUT, AttemptOutcome.EXHAUSTED)

    @property
    def buried(self) -> list[Ran]:
        """Attempts that ended in the morgue."""
        return self.of(*IN_MORGUE)


class Runner:
    """Runner for the jobs of one in-memory broker.

    Attributes:
        has_unsent: there was an outage, so the outbox may hold jobs that were never sent.
        faults: exceptions that the next attempts of tasks raise, by the name of the task.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self.has_unsent = False
        self.faults: dict[str, deque[Error]] = {}
        self._broker = broker
        self._cached: tuple[Conf, LocalExecution] | None = None

    # -- selection ---------------------------------------------------------------------------------------------------

    def run_one(self, queue: Queue, ident: str) -> None:
        """Run the waiting job of an id now, due or not; raise its exception."""
        batch = queue.reserve_id(ident, worker=HOLDER, early=True)
        self._run(queue, queue.shard_of(ident), batch.jobs, RunReport(), True)

    def run_due(self, until_ms: int, max_jobs: int | None, raise_errors: bool) -> RunReport:
        """See :meth:`.Fake.run_due`."""
        report, clock = RunReport(), self._broker.clock
        while max_jobs is None or len(report) < max_jobs:
            now_ms, due, moments = clock.now_ms, *self._read_shards()
            # After each job another shard may have the one that is due first.
            if any(self._run_first(queue, number, report, max_jobs, raise_errors) for _, queue, number in due):
                continue
            if due:  # what limits do not let start is due later now
                _, moments = self._read_shards()
            moment = min((moment for moment in moments if moment > now_ms), default=until_ms + 1)
            if (target := min(moment, until_ms)) > now_ms:
                clock.set(target)
            if moment > until_ms:
                break
        return report

    def _read_shards(self) -> tuple[list[tuple[float, Queue, int]], list[int]]:
        """Settle expired leases, as a dispatcher does.

        Returns:
            The shards with due jobs, by their first due time, and the moments at which there may be others.
        """
        due: list[tuple[float, Queue, int]] = []
        moments: list[int] = []
        for queue in self._broker.queues():
            for number in queue.numbers if queue.kind == "python" else ():
                tick = queue.tick(number)
                if tick.expired:
                    self._settle_expired(queue, number)
                    tick = queue.tick(number)
                moments += [int(ms) for ms in (tick.next_due_ms, tick.next_deadline_ms) if ms is not None]
                if tick.set_aside or (tick.next_due_ms or math.inf) <= tick.now_ms:
                    due.append((tick.next_due_ms or math.inf, queue, number))
        return sorted(due, key=itemgetter(0)), moments

    def _settle_expired(self, queue: Queue, number: int) -> None:
        for job in queue.take_over(queue.expired(number), "dispatcher"):
            task = registry.get(job.task)
            settlement = End(job, policy_of(task, job)).lost()
            self._execution().notifier.ended_elsewhere(queue, task, settlement)
            limits.settle(queue, [settlement])

    def _run_first(
        self, queue: Queue, number: int, report: RunReport, max_jobs: int | None, raise_errors: bool
    ) -> bool:
        """Run the first due job of a shard, in a batch with others; return False if none is due or may start."""
        before, jobs = report.expired, self._reserve(queue, number, 1, report)
        if jobs:
            self._run(queue, number, self._complete(queue, jobs, report, max_jobs), report, raise_errors)
        return bool(jobs) or report.expired > before

    @staticmethod
    def _reserve(queue: Queue, number: int, most: int, report: RunReport, task: str | None = None) -> list[Job]:
        """Return due jobs of a shard that its limits let start; of those behind limits only jobs of ``task``."""

        def send(room: int, lanes: bytes) -> Batch:
            batch = queue.reserve(number, room, worker=HOLDER, lanes=lanes)
            report.expired += batch.expired
            return batch

        while True:
            batch = limits.reserve(queue, number, most, send, only=task)
            # What the limits do not let start is out of the way of the next call.
            if batch.jobs or not (batch.moved or batch.offers):
                return batch.jobs

    def _complete(self, queue: Queue, jobs: list[Job], report: RunReport, max_jobs: int | None) -> list[Job]:
        """Return a reserved job with those that its task takes in the same batch."""
        (first,) = jobs
        if max_jobs is None and len(report) >= SELF_SCHEDULING:
            self._give_back(queue, jobs)
            raise RuntimeError(
                f"run_due() has run {SELF_SCHEDULING} jobs, and {report.runs[-1].task} is due again. If a task "
                "schedules itself, pass a smaller until=, or max_jobs="
            )
        size = batch_size_of(registry, first)
        room = min(size, size if max_jobs is None else max_jobs - len(report)) - 1
        if room > 0:
            more = self._reserve(queue, first.shard, room, report, first.task)
            jobs += [job for job in more if job.task == first.task]
            self._give_back(queue, [job for job in more if job.task != first.task])
        return jobs

    # -- execution ---------------------------------------------------------------------------------------------------

    def _run(self, queue: Queue, number: int, jobs: Sequence[Job], report: RunReport, raise_errors: bool) -> None:
        now, clock = time.monotonic(), self._broker.clock
        source = Source(queue, number, Pace())
        deadline, offset = now + trusted(self._broker.lease_ms / 1000), clock.now_ms - now * 1000
        execution = self._execution()
        for run in arrange(registry, [Attempt(job, source, now, deadline, offset) for job in jobs]):
            execution(run)
            self._settle(queue, run, report)
            error = _error_of(run, run.error, raise_errors)
            if error is not None:
                raise error

    def _settle(self, queue: Queue, run: Attempt, report: RunReport) -> None:
        settlements = [part.settlement for part in run.parts if part.settlement is not None]
        applied = limits.settle(queue, settlements)
        for part, settlement, is_applied in zip(run.parts, settlements, applied, strict=True):
            job, due, now, retry_in = part.job, datetime_of(part.job.due_ms), self._broker.clock.now, None
            if is_applied and settlement.verb in ("fail", "release") and settlement.delay_ms is not None:
                retry_in = timedelta(milliseconds=settlement.delay_ms)
            outcome = settlement.outcome if is_applied else AttemptOutcome.LOST
            ran = Ran(job.task, job.id, job.queue, job.attempt, outcome, due, now, part.error, retry_in)
            report.runs.append(ran)

    @staticmethod
    def _give_back(queue: Queue, jobs: Sequence[Job]) -> None:
        limits.settle(queue, [End(job, policy_of(registry.get(job.task), job)).give_back() for job in jobs])

    def _execution(self) -> LocalExecution:
        settings = conf()
        if self._cached is None or self._cached[0] is not settings:
            self._cached = settings, LocalExecution(settings, self.faults)
        return self._cached[1]

    # -- dispatcher --------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Do what a dispatcher does for durable jobs: send pending rows, and delete the rows of finished jobs."""
        from ..outbox.duties import Marks, Relay
        from ..outbox.rows import waiting

        if self._broker.server.down:
            return
        aliases = conf().outbox.databases
        if self.has_unsent:
            self.has_unsent = False
            for alias in aliases:
                with suppress(DatabaseError, AssertionError, RuntimeError):  # a test without databases wrote no rows
                    relay = Relay(conf(), alias, self._broker)
                    while waiting(alias).exists() and relay.turn():
                        pass
        marks = Marks(aliases, self._broker, Changes())
        for queue in self._broker.queues():
            for number in queue.numbers:
                if self._broker.client.exists(queue.shard(number).names["marks"]):
                    marks.take_down(queue.name, number)


class LocalExecution(Execution):
    """Execution of the worker in the thread of a test, between the transactions of the test.

    A worker has no open transaction around a job, but a ``TestCase`` has. So the on-commit callbacks of a job are
    called when the job is over, as its own commits would have done, and an ``atomic`` block that the handler entered
    and not left is detected as in a worker.
    """

    def __init__(self, settings: Conf, faults: dict[str, deque[Error]]) -> None:
        hooks = replace(wiring.make_hooks(settings), before_job=restore_context, after_job=lambda job: None)
        super().__init__(registry, hooks, wiring.make_middlewares(settings), loop=_CallersLoop())
        self._faults = faults
        self._inner = self._call
        self._call = self._call_between_transactions

    def _call_between_transactions(self, attempt: Attempt) -> Any:
        before = {one.alias: (len(one.atomic_blocks), len(one.run_on_commit)) for one in _open_databases()}
        try:
            result = self._inner(attempt)
        except BaseException:
            with suppress(LeakedTransaction):
                _end_transactions(before)
            raise
        _end_transactions(before)
        return result

    def _call_handler(self, attempt: Attempt) -> Any:
        if attempt.task is not None and (errors := self._faults.get(attempt.task.name)):
            error = errors.popleft()
            # An object that is raised again would keep the traceback of its earlier attempts, too.
            raise error.with_traceback(None) if isinstance(error, BaseException) else error()
        return super()._call_handler(attempt)


class _CallersLoop(EventLoop):
    """Event loop that runs coroutines in the calling thread.

    Their ``sync_to_async`` code also runs in this thread, so that it works in the transaction of the test.
    """

    def run(self, coroutine: Coroutine[Any, Any, Any], run: Attempt) -> Any:
        async def outcome() -> Any:
            return await coroutine

        return async_to_sync(outcome)()


def _open_databases() -> Sequence[Any]:
    return databases.all(initialized_only=True)


def _end_transactions(before: dict[str, tuple[int, int]]) -> None:
    """Roll back what a handler left open, then call its on-commit callbacks, and remove them.

    Args:
        before: numbers of ``atomic`` blocks and of callbacks before the handler, by the alias of the database.

    Raises:
        LeakedTransaction: it left a transaction open.
        Exception: raised by a callback of ``transaction.on_commit`` that is not robust.
    """
    for connection in _open_databases():
        depth, first = before.get(connection.alias, (0, 0))
        if len(connection.atomic_blocks) > depth:
            leaked = LeakedTransaction(
                f"an atomic() block on the database {connection.alias!r} was entered and not left, so the work was "
                "rolled back. Use `with transaction.atomic():`"
            )
            while len(connection.atomic_blocks) > depth:
                connection.atomic_blocks[-1].__exit__(LeakedTransaction, leaked, None)
            raise leaked
        while depth and len(connection.run_on_commit) > first:
            _, callback, is_robust = connection.run_on_commit.pop(first)
            try:
                callback()
            except Exception:
                if not is_robust:
                    raise
                logger.exception("a robust callback of transaction.on_commit() failed")


def _error_of(run: Attempt, raised: BaseException | None, raise_errors: bool) -> BaseException | None:
    """Return the exception to raise to the caller. Verdicts are not raised, because they only decide about the job."""
    if isinstance(raised, KeyboardInterrupt) or not raise_errors:
        return raised if isinstance(raised, KeyboardInterrupt) else None
    if raised is not None:
        return None if isinstance(raised, Verdict) else raised
    for part in run.parts:
        settlement = part.settlement
        if settlement is not None and settlement.verb != "ack" and settlement.reason:
            return DelayQError(f"{part.job.task} id={part.job.id} cannot be run: {settlement.reason}")
    return None
