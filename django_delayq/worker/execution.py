"""Execution of an attempt: a pipeline of steps, :meth:`Execution._pipeline`.

Every end of a handler becomes a settlement here: an exception of any kind (SystemExit, KeyboardInterrupt,
GeneratorExit and CancelledError included), an unusable result, a fork in which both processes return. A batch passes
the same steps with several jobs: each leaves where its own settlement is decided, and the handler gets the others.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, Final

from ..core.errors import JobTimeout
from ..core.outcomes import Settlement
from ..core.task import Registry
from ..core.verdicts import PartialFailure, Retry, Verdict
from .attempt import NEVER, Attempt, running, view_of
from .child import Scoreboard
from .ends import End, crashed_early, failures_of, policy_of, undecodable
from .fetch import ReadinessGate
from .hooks import Call, Hooks, Middleware, Notifier, arguments_of
from .loop import Reminders
from .record import class_of, error_record, project_part
from .slots import EventLoop
from .timeouts import TimeoutMonitor

logger: Final = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Execution:
    """Callable that a slot calls with each attempt."""

    _registry: Registry
    _hooks: Hooks
    _middlewares: InitVar[Sequence[Middleware]] = ()
    _: KW_ONLY
    board: Scoreboard | None = None
    #: runs coroutines
    loop: EventLoop = field(default_factory=EventLoop)
    #: enforces time limits; None = there are none
    timeout_monitor: TimeoutMonitor | None = None
    #: ``knows_task(queue, task, now_ms)`` returns True if a live worker of the queue knows the task
    knows_task: Callable[[str, str, float], bool] = lambda queue, task, now_ms: False
    _reminders: Reminders = field(default_factory=Reminders, init=False)

    def __post_init__(self, middlewares: Sequence[Middleware]) -> None:
        #: readiness gate: whether jobs can begin here
        self.readiness = ReadinessGate()
        self.notifier = Notifier(self._hooks, self.loop, self._limited)
        self._record = partial(error_record, formatter=self._hooks.format_error)
        self._call: Call = self._call_handler
        for middleware in reversed(middlewares):  # the first one is the outermost
            self._call = middleware(self._call)
        self._pid = os.getpid()

    def __call__(self, attempt: Attempt) -> None:
        """Run the job and set ``attempt.settlement``, in a batch that of each member. Never raises."""
        attempt.started = monotonic()
        try:
            # A separate context, so that no ContextVar of one job is visible to the next one in this thread.
            copy_context().run(self._pipeline, attempt)
        except BaseException as error:  # the outermost handler: a slot must survive everything
            logger.exception("%s: the execution itself failed", attempt.job.id)
            attempt.error = attempt.error or error  # that of the handler says more
        attempt.ended = attempt.ended or monotonic()
        if attempt.settlement is None:
            copy_context().run(self._close, attempt)
        attempt.view = None

    def _pipeline(self, attempt: Attempt) -> None:
        """Pass the attempt through all steps. A step that returns False has set the settlements of all its jobs."""
        running.set(attempt)
        for part in attempt.parts:
            _ = self._resolve(part, attempt.started) and self._decode(part)
        if self._combine(attempt) and self._prepare(attempt) and self._ack_early(attempt):
            self._mark_started(attempt)
            self._perform(attempt)
            self._decide(attempt)

    # --- steps of each job

    def _resolve(self, part: Attempt, now: float) -> bool:
        """Look up the task and the options of the job, and check that it may still begin."""
        job = part.job
        task = part.task = self._registry.get(job.task)
        # A settlement needs the options of the task in any case: payloads that arrived meanwhile are merged by them.
        policy = part.policy = policy_of(task, job) if task is None or job.options_json else task.options
        if part.lost or now >= part.deadline:
            part.settlement = End(job, policy).give_back("the lease ended before the attempt could begin")
            return False
        if task is None:
            part.settlement = self._postpone_unknown(part)
            self.notifier.ended(part, part.settlement, None)
        return task is not None

    def _postpone_unknown(self, part: Attempt) -> Settlement:
        job, now_ms = part.job, part.now_ms
        if self._reminders.pass_on(job.task):
            logger.warning("no task named %s in this process; its jobs wait for a worker that has it", job.task)

        def is_known() -> bool:
            try:
                return self.knows_task(job.queue, job.task, now_ms)
            except Exception as error:  # the job has to be settled in any case, and is not buried in doubt
                logger.warning("the tasks of the other workers cannot be read: %s", error)
                return True

        return End(job, part.policy).unknown_task(now_ms, jitter=random.random(), is_known=is_known)

    def _decode(self, part: Attempt) -> bool:
        job = part.job
        try:
            if job.merged or job.args:
                part.arguments = arguments_of(job)
        except Exception as error:
            part.settlement = undecodable(job, error)
            logger.error("%s: arguments of task %s cannot be decoded", job.id, job.task)
            self.notifier.ended(part, part.settlement, error)
            return False
        return True

    # --- steps of the whole attempt

    def _combine(self, attempt: Attempt) -> bool:
        """Set arguments, policy and view of a batch from its remaining jobs. Return False if no job remains."""
        if not attempt.members:
            return attempt.settlement is None
        parts = attempt.live
        if not parts:
            return False
        attempt.job, attempt.task = parts[0].job, parts[0].task
        attempt.arguments = [{part.job.id: part.arguments[0][0][part.job.id] for part in parts}], {}
        attempt.policy = min([part.policy for part in parts], key=lambda policy: policy.timeout or NEVER)
        attempt.view = None
        view_of(attempt)  # created now: later it would lack the jobs that are settled by then
        return True

    def _prepare(self, attempt: Attempt) -> bool:
        """Run the framework's preparations, such as those of database connections."""
        try:
            self._limited(attempt, self._hooks.before_job, attempt.job)
        except BaseException as error:
            hung = isinstance(error, JobTimeout)
            logger.warning("%s: given back, before_job raised %s", attempt.job.id, class_of(error), exc_info=hung)
            self.readiness.unfit()
            for part in attempt.live:
                part.settlement = End(part.job, part.policy).not_prepared(error, part.now_ms)
            return False
        if self.readiness.in_doubt:
            self.readiness.fit()
        return True

    def _ack_early(self, attempt: Attempt) -> bool:
        return attempt.policy.ack != "early" or (ack_early(attempt) and self._combine(attempt))

    def _mark_started(self, attempt: Attempt) -> None:
        """Note the start of each job where the supervisor sees it, and notify of it."""
        members = attempt.live if attempt.members else ()
        attempt.started = monotonic()
        if self.board is not None:
            self.board.mark(attempt, members)
        if self._hooks.wants("job_started", attempt.task):
            for part in attempt.live:
                self.notifier.notify("job_started", part)
            attempt.started = monotonic()
        for part in members:
            part.started = attempt.started

    def _perform(self, attempt: Attempt) -> None:
        """Call the handler through the middlewares, and ``after_job``. The error is kept in the attempt."""
        try:
            self._limited(attempt, self._call, attempt)
        except BaseException as error:
            # Not error.with_traceback: a class of exceptions may define anything.
            attempt.error = BaseException.with_traceback(error, project_part(error.__traceback__))
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and the child process returned: only one of the two may settle
        try:
            self._hooks.after_job(attempt.job)
        except BaseException as error:
            # It overrides a partial failure, which would ack the other jobs: a leak concerns all of them.
            if attempt.error is None or isinstance(attempt.error, PartialFailure):
                attempt.error = error
        attempt.ended = monotonic()
        if self.board is not None:
            self.board.clear(attempt.slot)

    def _decide(self, attempt: Attempt) -> None:
        """Set the settlement of each job by the error of the attempt."""
        failures: Mapping[str, BaseException] = {}
        if attempt.error is not None:
            failures = failures_of(attempt.error, [part.job.id for part in attempt.live])
        record = _remembering(self._record) if failures else self._record
        limited_by = attempt.limited_by  # of the handler; the listeners of each job have a limit, too
        for part in attempt.live:
            part.ended, part.limited_by, part.error = attempt.ended, limited_by, failures.get(part.job.id)
            if part.error is not None:
                self._settle_failed(part, part.error, record)
                continue
            verb = "record" if part.acked else "ack"
            part.settlement = Settlement(part.job, part.started_ms, part.run_ms, verb=verb)
            self.notifier.succeeded(part)

    # --- parts of these steps

    def _limited(self, part: Attempt, call: Callable[..., Any], *arguments: Any) -> Any:
        """Run a part of an attempt that is the project's code, within the time limit of an attempt."""
        seconds, timeout_monitor = part.policy.timeout, self.timeout_monitor
        if seconds is None or timeout_monitor is None:
            return call(*arguments)
        attempt = running.get() or part  # the slot runs the whole batch
        return timeout_monitor.limited(attempt, seconds, partial(call, *arguments))

    def _call_handler(self, attempt: Attempt) -> Any:
        """Call the task's function, on the event loop if it returns a coroutine. The innermost call of the chain."""
        if attempt.task is None:
            raise LookupError(f"no task named {attempt.job.task} in this process")
        args, kwargs = attempt.arguments
        result = attempt.task.func(*args, **kwargs)
        if type(result) is CoroutineType:
            result = self.loop.run(result, attempt)
        if result is False and attempt.task.options.retry_on_false:
            raise Retry("the handler returned False")
        return result

    def _settle_failed(self, part: Attempt, error: BaseException, record: Callable[[BaseException], bytes]) -> None:
        end = End(part.job, part.policy, part.started_ms, part.run_ms)
        timed_out = bool(part.limited_by) and not isinstance(error, Verdict)
        decide = partial(end.raised, error, acked=part.acked, timed_out=timed_out, record=record)
        part.settlement = self._limited(part, decide)  # it calls the project's back-off and form of errors
        self.notifier.failed(part, part.settlement, error)

    def _close(self, attempt: Attempt) -> None:
        """Give every job a settlement that has none yet: the execution itself failed.

        It counts as a failure, after which the default back-off follows: an error here must not repeat a job for ever.
        """
        running.set(attempt)
        for part in attempt.parts:
            part.ended, part.view = attempt.ended, None
            if part.settlement is None:
                error = part.error or attempt.error or RuntimeError("the execution itself failed")
                part.started = part.started or attempt.started
                end = End(part.job, part.policy, part.started_ms, part.run_ms)
                part.settlement = end.broken(error, acked=part.acked)
                self.notifier.failed(part, part.settlement, error)


def ack_early(attempt: Attempt) -> bool:
    """Ack the jobs of ``attempt``, whose task has ``ack="early"``, and settle those that may not begin.

    Such a job is done when its attempt begins, so it can never begin twice, and a crash loses it. Redis keeps a record
    of the attempt until its end is stored, so that a crash also leaves an event.

    Returns:
        True if any of them may begin.
    """
    parts, error = attempt.live, None
    for part in parts:
        part.acked = True  # before the call: the heartbeat shall not take a lease that is gone for a lost one
    try:
        counted = attempt.queue.settle([Settlement(part.job, verb="ack_early", event=False) for part in parts])
    except Exception as unsure:
        # The ack may have been applied or not. If not, the release returns the job to its queue. If it was, the
        # release does nothing, and the job is lost rather than begun twice. Its attempt is then open in Redis, and no
        # process would close it while this worker lives, so its end is stored too; without such an attempt that does
        # nothing.
        logger.warning("%s: not begun, its early ack failed: %s", attempt.job.id, unsure)
        counted, error = [False] * len(parts), unsure
    for part, good in zip(parts, counted, strict=True):
        if good:
            continue
        part.acked, part.lost = False, part.lost or error is None
        reason = "the lease was lost before the attempt could begin" if error is None else "its early ack failed"
        part.settlement = End(part.job, part.policy).give_back(reason)
        if error is not None:
            now_ms = part.now_ms  # read once, since the attempt took no time
            part.settlement.also = crashed_early(replace(part.job, deadline_ms=int(now_ms)), reason, now_ms)
    return any(counted)


def _remembering(record: Callable[[BaseException], bytes]) -> Callable[[BaseException], bytes]:
    """Return the function ``record`` with a cache by error, since all jobs of a batch may share one error."""
    records: dict[int, bytes] = {}
    return lambda error: records.get(id(error)) or records.setdefault(id(error), record(error))
