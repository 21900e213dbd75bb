"""In-memory queue of a test, with its assertions, its clock and its failures."""

from __future__ import annotations

import threading
import unittest
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Self, Unpack

from asgiref.sync import sync_to_async
from django.utils.asyncio import async_unsafe

from .. import connections
from ..core.queue import Queue
from ..core.task import Task
from ..outbox.producer import breaker_of
from ..scheduling.build import find_task
from ..settings.conf import conf
from ..transactions import warn_caller
from .clock import Clock, Moment, ms_of_delta, ms_of_moment
from .jobs import Expectation, Expected, ScheduledJob, check_scheduled, hint_of_commit, jobs_of, waiting_calls
from .redis import MemoryBroker
from .running import SELF_SCHEDULING, Error, Runner, RunReport

TaskName = Task | str
Until = datetime | timedelta | float | None


@async_unsafe("jobs cannot be run inside a coroutine: use `await fake.arun_due()`; under immediate() aschedule()")
def refuse_event_loop() -> None:
    """Raise an error inside an event loop: jobs may use the database, which a coroutine may not."""


class Fake:
    """In-memory queue with a clock that moves only on request: ``with fake_queue() as fake:``.

    Until the block ends, its broker replaces that of the whole process.

    Args:
        at: time at which the clock is frozen (aware ``datetime`` or Unix seconds); None = the machine's current time.

    Attributes:
        broker: the in-memory broker.
        clock: its clock; ``clock.now`` is its time.
    """

    def __init__(self, at: Moment | None = None) -> None:
        self.clock = Clock(at)
        self.broker = MemoryBroker(self.clock, prefix=conf().prefix, lease_ms=int(conf().lease * 1000))
        self._runner = Runner(self.broker)
        #: calls waiting in transactions that began earlier, like that of the test's class
        self._earlier = waiting_calls()

    def __enter__(self) -> Self:
        self._replaced = connections.stand_in(self.broker)
        return self

    def __exit__(self, *_: object) -> None:
        connections.stand_in(self._replaced)

    # -- inspect -----------------------------------------------------------------------------------------------------

    def scheduled_jobs(
        self, task: TaskName | None = None, queue: str | None = None, id: str | int | None = None, *, state: str = ""
    ) -> list[ScheduledJob]:
        """Return the waiting and running jobs by due time; with ``state="morgue"`` those in the morgue.

        Args:
            task: only jobs of this task (or of the task with this name).
            queue: only jobs in this queue.
            id: only the job with this id.
            state: only jobs in this state: delayed, ready, reserved, gated or morgue.
        """
        return jobs_of(self.broker, task, queue, id, state or None)

    def assert_scheduled(
        self, /, task: TaskName, *, count: int | None = None, **expected: Unpack[Expected]
    ) -> ScheduledJob | None:
        """Fail unless a matching job is scheduled; arguments that are None match anything.

        Args:
            task: its task, or the task's name.
            count: the exact number of matching jobs; 0 = none. None = at least one.
            expected: ``args`` and ``kwargs``, exactly; ``id`` and ``queue``; ``delay``, a ``timedelta`` or seconds from
                now until the job is due, by the queue's clock; ``at``, an aware ``datetime`` or Unix seconds;
                ``within``, the tolerance for these two (1 s); ``payloads``, ``context``, ``priority``, ``group``,
                ``state`` and ``failures``.

        Returns:
            The matching job that is due first; None with ``count=0``.
        """
        wanted, jobs = Expectation(_name(task), expected), self._of(task, expected)
        matches = check_scheduled(wanted, jobs, self.scheduled_jobs(), count, self._hint_of_commit())
        return matches[0] if matches else None

    def refute_scheduled(self, /, task: TaskName, **expected: Unpack[Expected]) -> None:
        """Fail if a matching job is scheduled; arguments as for :meth:`assert_scheduled`."""
        jobs = self._of(task, expected)
        if not jobs:
            find_task(task)  # a misspelled name must not pass
        check_scheduled(Expectation(_name(task), expected), jobs, jobs, 0, "")

    def _of(self, task: TaskName, expected: Expected) -> list[ScheduledJob]:
        return self.scheduled_jobs(task, state="morgue" if expected.get("state") == "morgue" else "")

    def _hint_of_commit(self) -> str:
        return hint_of_commit([call for call in waiting_calls() if call not in self._earlier])

    def _warn_of_commit(self, what: str) -> None:
        """Warn of calls that wait for a commit, because the transaction of a test never commits."""
        if hint := self._hint_of_commit():
            warn_caller(f"{what}: {hint}", UserWarning)

    # -- run ---------------------------------------------------------------------------------------------------------

    def run_due(self, until: Until = None, *, max_jobs: int | None = None, raise_errors: bool = True) -> RunReport:
        """Run the due jobs here as a worker would, with middlewares, signals, retries, batches and the morgue.

        The clock moves from due time to due time, and is set to ``until`` at the end. Time limits (``timeout``) are not
        enforced.

        Args:
            until: a ``timedelta`` or seconds from now, or a moment (aware ``datetime``); None = now, so the clock does
                not move.
            max_jobs: stop after this number of attempts; None = until nothing is due.
            raise_errors: raise the exception of a handler after storing it as a worker would; a verdict (``Retry``,
                ``Release``, ``Bury``, ``PartialFailure``) is never raised. False = report it only.

        Returns:
            The attempts and their outcomes.
        """
        until_ms = self.clock.now_ms
        if until is not None:
            until_ms = ms_of_moment(until) if isinstance(until, datetime) else until_ms + ms_of_delta(until)
        refuse_event_loop()
        self._runner.dispatch()
        try:
            report = self._runner.run_due(until_ms, max_jobs, raise_errors)
        finally:
            self._runner.dispatch()
        if not report.runs:
            self._warn_of_commit("run_due() ran no job")
        return report

    async def arun_due(
        self, until: Until = None, *, max_jobs: int | None = None, raise_errors: bool = True
    ) -> RunReport:
        """Do the same as :meth:`run_due` for coroutines, in the thread of their database code."""
        return await sync_to_async(self.run_due)(until, max_jobs=max_jobs, raise_errors=raise_errors)

    def immediate(self) -> AbstractContextManager[Fake]:
        """Return a block in which a job runs when it is scheduled, or on commit in a transaction; delays are ignored.

        What a job schedules runs when the job is over, before the first ``schedule()`` returns. Exceptions of jobs are
        raised when the block ends.
        """
        return _Immediate(self)

    # -- time and failures -------------------------------------------------------------------------------------------

    def freeze(self, moment: Moment | None = None) -> datetime:
        """Freeze the clock at a moment (aware ``datetime`` or Unix seconds; None = as it is); return the time."""
        return self.clock.set(self.clock.now_ms if moment is None else ms_of_moment(moment))

    def travel(self, delta: timedelta | float) -> datetime:
        """Move the clock by a ``timedelta`` or seconds without running jobs; return the time."""
        return self.clock.set(self.clock.now_ms + ms_of_delta(delta))

    def fail_next(self, task: TaskName, error: Error, times: int = 1) -> None:
        """Make the next ``times`` attempts of ``task`` raise ``error`` (an exception or class) instead of running."""
        name = find_task(task).name
        if not (isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException))):
            raise TypeError(f"fail_next() takes an exception or an exception class, not {error!r}")
        self._runner.faults.setdefault(name, deque()).extend([error] * times)

    @contextmanager
    def redis_down(self) -> Iterator[None]:
        """Return a block in which every call raises ``QueueUnavailable``, as in an outage of Redis."""
        try:
            with self.broker.reachable(False):
                yield
        finally:
            self._runner.has_unsent = True
            breaker_of(self.broker).succeeded()  # the outbox uses Redis again without a pause


#: a block with an in-memory queue
fake_queue: Final = Fake
_LOOP: Final = "if a task schedules itself, leave the block out and call run_due(until=…) or run_due(max_jobs=…)"


class _Immediate:
    """Block in which jobs run when they are scheduled."""

    def __init__(self, fake: Fake) -> None:
        self._fake = fake
        self._errors: list[BaseException] = []
        #: the jobs that this thread has scheduled and not run yet, while one runs
        self._waiting = threading.local()

    def __enter__(self) -> Fake:
        self._before, self._fake.broker.on_scheduled = self._fake.broker.on_scheduled, self._run
        return self._fake

    def __exit__(self, kind: object, *_: object) -> None:
        self._fake.broker.on_scheduled = self._before
        self._fake._runner.dispatch()
        if kind is None and self._errors:
            raise self._errors[0] if len(self._errors) == 1 else BaseExceptionGroup("jobs failed", self._errors)
        if kind is None:
            self._fake._warn_of_commit("immediate() did not run every job")

    def _run(self, queue: Queue, idents: Sequence[str]) -> None:
        refuse_event_loop()
        jobs = [(queue, ident) for ident in idents if queue.kind == "python"]
        if hasattr(self._waiting, "jobs"):
            self._waiting.jobs.extend(jobs)
            return
        waiting = self._waiting.jobs = deque(jobs)
        runs = 0
        try:
            while waiting and runs < SELF_SCHEDULING:
                runs += 1
                try:
                    self._fake._runner.run_one(*waiting.popleft())
                except Exception as error:
                    self._errors.append(error)
            if waiting:
                self._errors.append(RuntimeError(f"immediate() has run {runs} jobs that schedule themselves; {_LOOP}"))
        finally:
            del self._waiting.jobs


class DelayQTestCase:
    """Mixin for test classes of Django and unittest: ``class OrderTests(DelayQTestCase, TestCase)``; must come first.

    Each test has its own in-memory queue, ``self.delayq``; the class's set-up (``setUpTestData``) has another one.

    Attributes:
        delayq: the :class:`Fake` of the test.
        delayq_options: arguments of :class:`Fake`.
    """

    delayq: Fake
    delayq_options: Mapping[str, Any] = {}

    @classmethod
    def setUpClass(cls) -> None:
        """Give the set-up of the class a queue of its own."""
        cls.enterClassContext(Fake(**cls.delayq_options))  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test with its set-up and tear-down in a queue of its own."""
        with Fake(**self.delayq_options) as self.delayq:
            return super().run(result)  # type: ignore[misc, no-any-return]

    def debug(self) -> None:
        """Run the test without collecting a result."""
        with Fake(**self.delayq_options) as self.delayq:
            super().debug()  # type: ignore[misc]


def _name(task: TaskName) -> str:
    return task if isinstance(task, str) else find_task(task).name
