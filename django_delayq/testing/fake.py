"""In-memory queue of a test, with its assertions, its clock and its failures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import FrameType
from typing import Any, Final

from asgiref.sync import sync_to_async

from ..core.queue import Queue
from ..core.task import Task
from ..scheduling.build import find_task
from ..settings.conf import conf
from ..transactions import warn_caller
from .asserting import Expectation, check_not_scheduled, check_scheduled
from .broker import MemoryBroker
from .faults import Error, Faults, outage
from .jobs import ScheduledJob, hint_of_commit, jobs_of, names_of, waiting_calls
from .report import RunReport
from .running import Runner
from .times import Clock, Moment, ms_of_delta, ms_of_moment

Until = datetime | timedelta | float | None

#: maximum depth of nested schedule calls under immediate()
DEPTH: Final = 50
#: functions that send jobs after a commit (or, for durable jobs, beside a committed row), where errors cannot be raised
#: to the caller: module -> function, "" = any
_COMMITS: Final = {
    "django.db.backends.base.base": "run_and_clear_commit_hooks",
    "django.test.testcases": "captureOnCommitCallbacks",
    f"{__package__}.guard": "_commit",
    "django_delayq.outbox.producer": "",
}


class Fake:
    """In-memory queue of a test. The functions of ``django_delayq.testing`` call the active one.

    Attributes:
        broker: the in-memory broker.
        clock: its clock.
        errors: exceptions of jobs that ``immediate()`` ran after a commit.
    """

    def __init__(self, at: Moment | None = None, *, time_machine: bool = False) -> None:
        self.clock = Clock(at, time_machine=time_machine)
        self.broker = MemoryBroker(self.clock, prefix=conf().prefix, lease_ms=int(conf().lease * 1000))
        self.errors: list[BaseException] = []
        self._faults = Faults()
        self._runner = Runner(self.broker, self._faults)
        self._depth = threading.local()
        #: calls waiting in transactions that began earlier, like that of the test's class
        self._earlier = waiting_calls()

    # -- inspect ----------------------------------------------------------------------------------------------------

    def scheduled_jobs(
        self,
        task: Task | str | None = None,
        queue: str | None = None,
        id: str | int | None = None,
        *,
        state: str | None = None,
    ) -> list[ScheduledJob]:
        """Return the waiting and running jobs by due time; with ``state="morgue"`` those in the morgue.

        Args:
            task: only jobs of this task (or of the task with this name).
            queue: only jobs in this queue.
            id: only the job with this id.
            state: only jobs in this state: delayed, ready, reserved, gated or morgue.
        """
        return jobs_of(self.broker, task, queue, id, state)

    def assert_scheduled(
        self,
        /,
        task: Task | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        id: str | int | None = None,
        queue: str | None = None,
        delay: timedelta | float | None = None,
        at: datetime | float | None = None,
        within: timedelta | float | None = None,
        count: int | None = None,
        **more: Any,
    ) -> ScheduledJob | None:
        """Fail unless a matching job is scheduled; arguments that are None match anything.

        Args:
            task: its task, or the task's name.
            args, kwargs: the arguments of the call, exactly.
            id, queue: of the job.
            delay: a ``timedelta`` or seconds, counted from the call that set the due time.
            at: an aware ``datetime`` or Unix seconds.
            within: tolerance for ``delay`` or ``at`` (1 s).
            count: the exact number of matching jobs; 0 = none. None = at least one.
            more: ``payloads``, ``context``, ``priority``, ``state``, ``failures``.

        Returns:
            The matching job that is due first; None with ``count=0``.
        """
        expected = Expectation(
            _name(task), args=args, kwargs=kwargs, id=id, queue=queue, delay=delay, at=at, within=within, **more
        )
        matches = check_scheduled(expected, self._of(task, more), self.scheduled_jobs(), count, self._hint_of_commit())
        return matches[0] if matches else None

    def refute_scheduled(self, /, task: Task | str, **expected: Any) -> None:
        """Fail if a matching job is scheduled; arguments as for :meth:`assert_scheduled`."""
        jobs = self._of(task, expected)
        if not jobs:
            find_task(task)  # a misspelled name must not pass
        check_not_scheduled(Expectation(_name(task), **expected), jobs)

    def _hint_of_commit(self) -> str:
        return hint_of_commit([call for call in waiting_calls() if call not in self._earlier])

    def _warn_of_commit(self, what: str) -> None:
        """Warn of calls that wait for a commit, because the transaction of a test never commits."""
        if hint := self._hint_of_commit():
            warn_caller(f"{what}: {hint}", UserWarning)

    def _of(self, task: Task | str, expected: Mapping[str, Any]) -> list[ScheduledJob]:
        return self.scheduled_jobs(task, state="morgue" if expected.get("state") == "morgue" else None)

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
        report = self._runner.run_due(self._until_ms(until), max_jobs=max_jobs, raise_errors=raise_errors)
        if not report.runs:
            self._warn_of_commit("run_due() ran no job")
        return report

    async def arun_due(
        self, until: Until = None, *, max_jobs: int | None = None, raise_errors: bool = True
    ) -> RunReport:
        """Do the same as :meth:`run_due` for coroutines, in the thread of their database code."""
        return await sync_to_async(self.run_due)(until, max_jobs=max_jobs, raise_errors=raise_errors)

    def _until_ms(self, until: Until) -> int:
        if until is None:
            return self.clock.now_ms
        return ms_of_moment(until) if isinstance(until, datetime) else self.clock.now_ms + ms_of_delta(until)

    def run_at_once(self, queue: Queue, idents: Sequence[str]) -> None:
        """Run jobs that were just scheduled, for ``immediate()``."""
        if queue.kind != "python":
            return
        depth = getattr(self._depth, "n", 0)
        if depth >= DEPTH:
            raise RuntimeError(
                f"immediate(): {DEPTH} jobs run inside one another. If a task schedules itself, use fake_queue() and "
                "run_due()"
            )
        self._depth.n = depth + 1
        try:
            for ident in idents:
                try:
                    self._runner.run_one(queue, ident)
                except Exception as error:
                    if _is_committing(sys._getframe(1)):
                        self.errors.append(error)  # Django would only log it, and the job stays scheduled
                    else:
                        raise
        finally:
            self._depth.n = depth

    # -- time and failures ------------------------------------------------------------------------------------------

    def freeze(self, moment: Moment | None = None) -> datetime:
        """Freeze the clock at a moment (aware ``datetime`` or Unix seconds; None = as it is); return the time."""
        return self.clock.freeze(moment)

    def travel(self, delta: timedelta | float) -> datetime:
        """Move the clock by a ``timedelta`` or seconds without running jobs; return the time."""
        return self.clock.travel(delta)

    def fail_next(self, task: Task | str, error: Error, times: int = 1) -> None:
        """Make the next ``times`` attempts of ``task`` raise ``error`` (an exception or class) instead of running."""
        self._faults.add(task, error, times)

    def redis_down(self) -> AbstractContextManager[None]:
        """Return a block in which every call raises ``QueueUnavailable``, as in an outage of Redis."""
        return outage(self.broker)

    def immediate(self) -> AbstractContextManager[Fake]:
        """Return a block in which jobs run when they are scheduled; see :class:`immediate`."""
        from .blocks import immediate

        return immediate(_on=self)

    def close(self) -> None:
        """Restore the machine's clock."""
        self.clock.close()


def _name(task: Task | str) -> str:
    return task if isinstance(task, str) else min(names_of(task), key=lambda name: name != task.name)


def _is_committing(frame: FrameType | None) -> bool:
    """Return True if the call comes from a commit callback itself, and not from a job that such a callback runs."""
    while frame is not None and frame.f_code.co_name != "run_at_once":
        if _COMMITS.get(frame.f_globals.get("__name__", "")) in ("", frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


# -- the active queue -------------------------------------------------------------------------------------------------

#: in-memory queues of the blocks that were entered, the innermost last
actives: Final[list[Fake]] = []


def active() -> Fake:
    """Return the in-memory queue that was entered last.

    Raises:
        RuntimeError: none is active.
    """
    if not actives:
        raise RuntimeError(
            "no in-memory queue is active: use `with fake_queue():`, DelayQTestCase or the pytest fixture delayq_fake"
        )
    return actives[-1]
