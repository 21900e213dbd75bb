"""Runner of due jobs in this process, through the worker's own execution: middlewares, signals, verdicts, back-off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import async_to_sync

from ..core.errors import DelayQError, LeakedTransaction, Verdict
from ..core.job import Job
from ..core.records.layout import PAUSED_OUT
from ..core.task import registry
from ..runtime import wiring
from ..settings import context_links
from ..settings.conf import Conf, conf
from ..worker import Hooks, decision
from ..worker.batch import Batcher
from ..worker.eventloop import EventLoop
from ..worker.execution import Execution
from ..worker.pace import Pace
from ..worker.run import Run, trusted
from ..worker.shard_selector import Source
from . import books
from .guard import Guard
from .state import CLASSES, ms_of
from .times import datetime_of

if TYPE_CHECKING:
    from .broker import MemoryBroker
    from .faults import Faults
    from .queue import MemoryQueue
    from .shard import Shard

#: worker name of jobs that a test runs
HOLDER: Final = "test"
#: attempts in one call after which a task is suspected of scheduling itself
MANY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Ran:
    """One attempt at a job. ``outcome``: succeeded, failed, timeout, exhausted, buried, released, undecodable, lost."""

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
        why = f": {type(self.error).__name__}: {self.error}" if self.error is not None else ""
        again = f", again in {self.retry_in}" if self.retry_in is not None else ""
        return f"{self.task} id={self.id} {self.outcome} (attempt {self.attempt}{again}){why}"


@dataclass(slots=True)
class RunReport:
    """Result of ``run_due()``. Its length is the number of attempts."""

    runs: list[Ran] = field(default_factory=list)
    #: number of jobs that had expired and were removed
    expired: int = 0

    def __len__(self) -> int:
        return len(self.runs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.runs)) or "nothing was run"

    def of(self, *outcomes: str) -> list[Ran]:
        """Return the attempts with one of these outcomes."""
        return [ran for ran in self.runs if ran.outcome in outcomes]

    @property
    def succeeded(self) -> list[Ran]:
        """Attempts whose handler returned."""
        return self.of("succeeded")

    @property
    def failed(self) -> list[Ran]:
        """Counted attempts that failed, final ones included."""
        return self.of("failed", "timeout", "exhausted")

    @property
    def buried(self) -> list[Ran]:
        """Attempts that ended in the morgue."""
        return self.of("exhausted", "buried", "undecodable", "poison")


class _CallersLoop(EventLoop):
    """Event loop that runs coroutines in the calling thread.

    Their ``sync_to_async`` code also runs in this thread, so that it works in the transaction of the test.
    """

    def run(self, coroutine: Coroutine[Any, Any, Any], run: Run) -> Any:
        async def outcome() -> Any:
            return await coroutine

        return async_to_sync(outcome)()


class _Execution(Execution):
    """Execution of the worker that also records the exceptions of handlers."""

    def __init__(self, hooks: Hooks, settings: Conf, faults: Faults) -> None:
        super().__init__(registry, hooks, wiring.make_middlewares(settings), loop=_CallersLoop())
        self.notifier = self._teller
        self._faults = faults
        self._inner = self._call
        self._call = self._watched
        self.raised: list[BaseException] = []

    def _watched(self, run: Run) -> Any:
        try:
            return self._inner(run)
        except BaseException as error:
            self.raised.append(error)
            raise

    def _handler(self, run: Run) -> Any:
        self._faults.strike(run)
        return super()._handler(run)


class Runner:
    """Runner for the jobs of one in-memory broker."""

    def __init__(self, broker: MemoryBroker, faults: Faults) -> None:
        self._broker = broker
        self._faults = faults
        self._batcher = Batcher(registry)
        self._made: tuple[Conf, _Execution] | None = None

    # -- selection ---------------------------------------------------------------------------------------------------

    def run_due(self, until_ms: int, *, max_jobs: int | None, raise_errors: bool) -> RunReport:
        """See :func:`django_delayq.testing.run_due`."""
        refuse_event_loop()
        books.keep(self._broker)
        try:
            return self._run_due(until_ms, max_jobs, raise_errors)
        finally:
            books.keep(self._broker)

    def _run_due(self, until_ms: int, max_jobs: int | None, raise_errors: bool) -> RunReport:
        report = RunReport()
        clock = self._broker.clock
        self._reap()
        while max_jobs is None or len(report) < max_jobs:
            shard = self._next(clock.now_ms)
            if shard is None:
                moment = self._next_moment_ms(clock.now_ms)
                if moment is None or moment > until_ms:
                    break
                clock.reach(moment)
                self._reap()
                continue
            if max_jobs is None and len(report) >= MANY:
                raise RuntimeError(
                    f"run_due() has run {MANY} jobs and {report.runs[-1].task} is due again: does a task schedule "
                    "itself? Give a smaller until=, or say max_jobs="
                )
            self._run_first(shard, report, raise_errors, None if max_jobs is None else max_jobs - len(report))
        else:
            return report
        clock.reach(until_ms)
        return report

    def _served(self) -> list[Shard]:
        kinds = {queue.name: queue.kind for queue in self._broker.queues()}
        return [
            shard
            for shard in self._broker.stores()
            if kinds.get(shard.queue) == "python" and not shard.rules.flags & PAUSED_OUT
        ]

    def _next(self, now_ms: int) -> Shard | None:
        """Return the shard with the next job: the most urgent class first, then the earliest due time."""
        best: tuple[int, int] | None = None
        chosen = None
        for shard in self._served():
            for class_ in range(CLASSES):
                first = shard.first(class_)
                if first is not None and ms_of(first[0]) <= now_ms:
                    if best is None or (class_, first[0]) < best:
                        best, chosen = (class_, first[0]), shard
                    break
        return chosen

    def _next_moment_ms(self, now_ms: int) -> int | None:
        """Return the next time at which a job is due or a lease expires."""
        moments = [due for shard in self._served() if (due := shard.next_due_ms()) is not None]
        for shard in self._broker.stores():
            moments += [max(job.deadline_ms, shard.hold_ms) for job in shard.leases()]
        return min((moment for moment in moments if moment > now_ms), default=None)

    def _reap(self) -> None:
        """Settle expired leases, as the worker's dispatcher does."""
        for shard in self._broker.stores():
            for job in shard.leases(only_expired=True):
                queue, task = self._queue(shard), registry.get(job.task)
                settlement = decision.lost(job, decision.policy_of(task, job))
                self._execution().notifier.ended_elsewhere(queue, task, settlement)
                queue.settle([settlement])

    # -- execution ---------------------------------------------------------------------------------------------------

    def _run_first(self, shard: Shard, report: RunReport, raise_errors: bool, room: int | None) -> None:
        queue = self._queue(shard)
        peeked = next(
            shard.lives[first[1]]
            for class_ in range(CLASSES)
            if (first := shard.first(class_)) and ms_of(first[0]) <= shard.now_ms
        )
        job = shard.job("", peeked)
        limit = self._batcher.size_of(job)
        batch = queue.reserve(shard.number, limit if room is None else min(limit, room), worker=HOLDER)
        report.expired += batch.expired
        self._run(queue, shard.number, batch.jobs, report, raise_errors)

    def run_one(self, queue: MemoryQueue, ident: str) -> None:
        """Run the waiting job of an id now, due or not; raise its exception."""
        refuse_event_loop()
        batch = queue.reserve_id(ident, worker=HOLDER, early=True)
        self._run(queue, queue.shard_of(ident), batch.jobs, RunReport(), True)

    def _run(self, queue: MemoryQueue, number: int, jobs: Sequence[Job], report: RunReport, raise_errors: bool) -> None:
        now, clock = time.monotonic(), self._broker.clock
        source = Source(queue, number, Pace())
        deadline, offset = now + trusted(self._broker.lease_ms / 1000), clock.now_ms - now * 1000
        execution = self._execution()
        waiting = self._batcher.arrange([Run(job, source, now, deadline, offset) for job in jobs])
        while waiting:
            run = waiting.pop(0)
            for part in run.parts:
                part.deadline = max(part.deadline, time.monotonic() + 1)  # a slow test must not lose the lease
            outside, execution.raised = execution.raised, []
            execution(run)
            raised, execution.raised = execution.raised, outside
            self._settle(queue, run, report)
            error = _worth_raising(run, raised, raise_errors)
            if error is not None:
                self._give_back(queue, waiting)
                raise error

    def _settle(self, queue: MemoryQueue, run: Run, report: RunReport) -> None:
        settlements = [part.settlement for part in run.parts if part.settlement is not None]
        counted = queue.settle(settlements)
        for part, settlement, good in zip(run.parts, settlements, counted, strict=True):
            job = part.job
            outcome = settlement.outcome if good else "lost"
            again = settlement.delay_ms if settlement.verb in ("fail", "release") and good else None
            report.runs.append(
                Ran(
                    job.task,
                    job.id,
                    job.queue,
                    job.failures + 1,
                    outcome,
                    datetime_of(job.due_ms),
                    self._broker.clock.now,
                    part.error,
                    None if again is None else timedelta(milliseconds=again),
                )
            )

    @staticmethod
    def _give_back(queue: MemoryQueue, runs: Sequence[Run]) -> None:
        for run in runs:
            queue.settle(
                [
                    decision.give_back(part.job, decision.policy_of(registry.get(part.job.task), part.job))
                    for part in run.parts
                ]
            )

    def _queue(self, shard: Shard) -> MemoryQueue:
        queue: MemoryQueue = self._broker.queue(shard.queue)  # type: ignore[assignment]
        return queue

    def _execution(self) -> _Execution:
        settings = conf()
        if self._made is None or self._made[0] is not settings:
            self._made = settings, _Execution(self._hooks(settings), settings, self._faults)
        return self._made[1]

    @staticmethod
    def _hooks(settings: Conf) -> Hooks:
        links, guard = context_links.links(settings), Guard()

        def before_job(job: Job) -> None:
            context_links.restore(job, links)
            guard.enter()

        hooks = wiring.make_hooks(settings)
        return replace(hooks, before_job=before_job, after_job=lambda _: guard.leave())


def _worth_raising(run: Run, raised: Sequence[BaseException], raise_errors: bool) -> BaseException | None:
    """Return the exception to raise to the caller. Verdicts are not raised, because they only decide about the job."""
    leaked = [part.error for part in run.parts if isinstance(part.error, LeakedTransaction)]
    found = [*raised, *leaked, *([run.error] if run.error and not raised else [])]
    for error in found:
        if isinstance(error, KeyboardInterrupt) or (raise_errors and not isinstance(error, Verdict)):
            return error
    if found or not raise_errors:
        return None
    for part in run.parts:
        settlement = part.settlement
        if settlement is not None and settlement.verb != "ack" and settlement.reason:
            return DelayQError(f"{part.job.task} id={part.job.id} could not be run: {settlement.reason}")
    return None


def refuse_event_loop() -> None:
    """Raise an error inside an event loop: jobs may use the database, which a coroutine may not."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "jobs are not run inside of a coroutine: use `await arun_due()`; around schedule() with "
        "immediate() use aschedule()"
    )
