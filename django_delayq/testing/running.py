"""Runner of due jobs in this process, through the worker's own execution: middlewares, signals, verdicts, back-off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ..core.errors import DelayQError, LeakedTransaction, QueueUnavailable, Verdict
from ..core.job import Job
from ..core.layouts import queue_policy
from ..core.outcomes import AttemptOutcome
from ..core.queue import Queue
from ..core.task import registry
from ..core.times import datetime_of
from ..runtime import wiring
from ..settings import context_links
from ..settings.conf import Conf, conf
from ..worker import crash
from ..worker.attempt import Attempt, Batcher, trusted
from ..worker.ends import give_back, policy_of
from ..worker.hooks import Hooks
from ..worker.shards import Pace, Source
from . import dispatching
from .agenda import Entry
from .execution import RecordingExecution
from .guard import Guard
from .report import Ran, RunReport

if TYPE_CHECKING:
    from .broker import MemoryBroker
    from .faults import Faults

#: worker name of jobs that a test runs
HOLDER: Final = "test"
#: attempts in one call after which a task is suspected of scheduling itself
SELF_SCHEDULING: Final = 10_000


class Runner:
    """Runner for the jobs of one in-memory broker."""

    def __init__(self, broker: MemoryBroker, faults: Faults) -> None:
        self._broker = broker
        self._agenda = broker.server.agenda
        self._faults = faults
        self._batcher = Batcher(registry)
        self._cached: tuple[Conf, RecordingExecution] | None = None
        #: due entries of paused queues
        self._paused: list[Entry] = []

    # -- selection ---------------------------------------------------------------------------------------------------

    def run_due(self, until_ms: int, *, max_jobs: int | None, raise_errors: bool) -> RunReport:
        """See :func:`django_delayq.testing.run_due`."""
        refuse_event_loop()
        dispatching.dispatch(self._broker)
        try:
            return self._run_due(until_ms, max_jobs, raise_errors)
        finally:
            dispatching.dispatch(self._broker)

    def _run_due(self, until_ms: int, max_jobs: int | None, raise_errors: bool) -> RunReport:
        report = RunReport()
        clock = self._broker.clock
        self._reap()
        while max_jobs is None or len(report) < max_jobs:
            entry = self._next()
            if entry is None:
                moment = self._next_moment_ms()
                if moment is None or moment > until_ms:
                    break
                clock.reach(moment)
                self._reap()
                continue
            if max_jobs is None and len(report) >= SELF_SCHEDULING:
                self._agenda.put_back([entry])
                raise RuntimeError(
                    f"run_due() has run {SELF_SCHEDULING} jobs, and {report.runs[-1].task} is due again. If a task "
                    "schedules itself, pass a smaller until=, or max_jobs="
                )
            self._run_entry(entry, report, raise_errors, None if max_jobs is None else max_jobs - len(report))
        else:
            return report
        clock.reach(until_ms)
        return report

    def _next(self) -> Entry | None:
        """Take the next due entry of a queue that is neither paused nor a pull queue."""
        self._agenda.put_back([entry for entry in self._paused if not self._is_paused(entry)])
        self._paused = [entry for entry in self._paused if self._is_paused(entry)]
        while (entry := self._agenda.take()) is not None:
            queue = self._broker.existing(entry.queue)
            if queue is None or queue.kind != "python":
                continue
            if not self._is_paused(entry):
                break
            self._paused.append(entry)
        return entry

    def _is_paused(self, entry: Entry) -> bool:
        queue = self._broker.existing(entry.queue)
        return queue is not None and queue_policy(queue.layout, self._broker.clock.now_ms)["paused"] in ("out", "both")

    def _next_moment_ms(self) -> int | None:
        """Return the next time at which a job is due, a lease expires, or the pause of a due job ends."""
        now_ms, due_ms = self._broker.clock.now_ms, self._agenda.next_ms()
        moments = [end_ms for _, _, end_ms in self._lease_ends()] + ([] if due_ms is None else [due_ms])
        queues = filter(None, (self._broker.existing(entry.queue) for entry in self._paused))
        moments += [ends["out"] for queue in queues if "out" in (ends := queue.layout.get("until") or {})]
        return min((moment for moment in moments if moment > now_ms), default=None)

    def _lease_ends(self) -> Iterator[tuple[Queue, int, int]]:
        """Yield the shards with reserved jobs, and when the first of these leases may be settled."""
        client = self._broker.client
        for queue in self._broker.queues():
            for number in queue.numbers:
                names = queue.shard(number).names
                for _, end_ms in client.zrange(names["lease"], 0, 0, withscores=True):
                    yield queue, number, max(int(end_ms), int(client.hget(names["meta"], "hold") or 0))

    def _reap(self) -> None:
        """Settle expired leases, as the worker's dispatcher does."""
        for queue, number, _ in list(self._lease_ends()):
            for job in (lost := queue.expired(number)) and queue.take_over(lost, "dispatcher"):
                task = registry.get(job.task)
                settlement = crash.lost(job, policy_of(task, job))
                self._execution().notifier.ended_elsewhere(queue, task, settlement)
                queue.settle([settlement])

    # -- execution ---------------------------------------------------------------------------------------------------

    def _run_entry(self, entry: Entry, report: RunReport, raise_errors: bool, room: int | None) -> None:
        """Run a due job, together with those that its task takes in one batch."""
        jobs = self._reserve(entry, report)
        if jobs:
            size = self._batcher.size_of(jobs[0])
            jobs += self._reserve_more(entry, (size if room is None else min(size, room)) - 1, report)
            self._run(self._broker.queue(entry.queue), entry.shard, jobs, report, raise_errors)

    def _reserve_more(self, first: Entry, most: int, report: RunReport) -> list[Job]:
        """Reserve up to ``most`` further due jobs of a shard."""
        jobs: list[Job] = []
        others: list[Entry] = []
        while len(jobs) < most and (entry := self._next()) is not None:
            if (entry.queue, entry.shard) == (first.queue, first.shard):
                jobs += self._reserve(entry, report)
            else:
                others.append(entry)
        self._agenda.put_back(others)
        return jobs

    def _reserve(self, entry: Entry, report: RunReport) -> list[Job]:
        """Reserve a due job; return none if it does not wait any more, or has expired."""
        try:
            batch = self._broker.queue(entry.queue).reserve_id(entry.id, worker=HOLDER)
        except QueueUnavailable:
            self._agenda.put_back([entry])
            raise
        report.expired += batch.expired
        return batch.jobs

    def run_one(self, queue: Queue, ident: str) -> None:
        """Run the waiting job of an id now, due or not; raise its exception."""
        refuse_event_loop()
        batch = queue.reserve_id(ident, worker=HOLDER, early=True)
        self._run(queue, queue.shard_of(ident), batch.jobs, RunReport(), True)

    def _run(self, queue: Queue, number: int, jobs: Sequence[Job], report: RunReport, raise_errors: bool) -> None:
        now, clock = time.monotonic(), self._broker.clock
        source = Source(queue, number, Pace())
        deadline, offset = now + trusted(self._broker.lease_ms / 1000), clock.now_ms - now * 1000
        execution = self._execution()
        waiting = self._batcher.arrange([Attempt(job, source, now, deadline, offset) for job in jobs])
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

    def _settle(self, queue: Queue, run: Attempt, report: RunReport) -> None:
        settlements = [part.settlement for part in run.parts if part.settlement is not None]
        counted = queue.settle(settlements)
        for part, settlement, good in zip(run.parts, settlements, counted, strict=True):
            job = part.job
            outcome = settlement.outcome if good else AttemptOutcome.LOST
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
    def _give_back(queue: Queue, runs: Sequence[Attempt]) -> None:
        for run in runs:
            queue.settle([give_back(part.job, policy_of(registry.get(part.job.task), part.job)) for part in run.parts])

    def _execution(self) -> RecordingExecution:
        settings = conf()
        if self._cached is None or self._cached[0] is not settings:
            self._cached = settings, RecordingExecution(self._hooks(settings), settings, self._faults)
        return self._cached[1]

    @staticmethod
    def _hooks(settings: Conf) -> Hooks:
        links, guard = context_links.links(settings), Guard()

        def before_job(job: Job) -> None:
            context_links.restore(job, links)
            guard.enter()

        hooks = wiring.make_hooks(settings)
        return replace(hooks, before_job=before_job, after_job=lambda _: guard.leave())


def _worth_raising(run: Attempt, raised: Sequence[BaseException], raise_errors: bool) -> BaseException | None:
    """Return the exception to raise to the caller. Verdicts are not raised, because they only decide about the job."""
    leaked = [part.error for part in run.parts if isinstance(part.error, LeakedTransaction)]
    errors = [*raised, *leaked, *([run.error] if run.error and not raised else [])]
    for error in errors:
        if isinstance(error, KeyboardInterrupt) or (raise_errors and not isinstance(error, Verdict)):
            return error
    if errors or not raise_errors:
        return None
    for part in run.parts:
        settlement = part.settlement
        if settlement is not None and settlement.verb != "ack" and settlement.reason:
            return DelayQError(f"{part.job.task} id={part.job.id} cannot be run: {settlement.reason}")
    return None


def refuse_event_loop() -> None:
    """Raise an error inside an event loop: jobs may use the database, which a coroutine may not."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "jobs cannot be run inside a coroutine: use `await arun_due()`; under immediate() use aschedule()"
    )
