"""The run of a job, as a pipeline of verbs over a :class:`Run`: resolved → decoded → prepared → performed → settled.

Whatever a handler does ends here as a settlement: an exception of any kind (SystemExit, KeyboardInterrupt,
GeneratorExit and CancelledError included), nonsense as a result, a fork of which both sides come back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextvars import copy_context
from time import monotonic
from types import CoroutineType
from typing import Any, Final

from django_delayq.core.codec import decode, decode_args
from django_delayq.core.errors import DelayQError, JobTimeout, Verdict
from django_delayq.core.job import Settlement, ack, release
from django_delayq.core.task import Registry, Task

from . import decision
from .board import Board
from .current import running
from .decision import Policy
from .eventloop import EventLoop
from .hooks import Hooks
from .limits import Warden
from .middleware import Middleware, compose
from .run import Run

logger: Final = logging.getLogger(__name__)


class Execution:
    """What a slot calls with each run."""

    def __init__(
        self,
        registry: Registry,
        hooks: Hooks,
        middlewares: Sequence[Middleware] = (),
        *,
        board: Board | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        #: set by the composition root, since the warden watches the slots that call this
        self.warden: Warden | None = None
        self._registry = registry
        self._hooks = hooks
        self._board = board
        self._loop = loop or EventLoop()
        self._call = compose(middlewares, self._handler)
        self._policies: dict[Task, Policy] = {}
        self._pid = os.getpid()

    def __call__(self, run: Run) -> None:
        """Run the job and leave ``run.settlement`` behind. Never raises."""
        run.started = monotonic()
        try:
            if run.lost or run.started >= run.deadline:
                run.settlement = release(run.job, reason="the lease ended before the run could start")
            else:
                # A context of its own: no ContextVar of one job is seen by the next one in this thread.
                copy_context().run(self._pipeline, run)
        except BaseException as error:  # the boundary: a slot outlives everything
            logger.exception("%s: the execution itself failed", run.job.id)
            run.error = error
        if run.settlement is None:
            run.settlement = release(run.job, delay_ms=5000, reason="the execution itself failed")
        run.ended = run.ended or monotonic()
        run.view = None

    def _pipeline(self, run: Run) -> None:
        if not (self._resolved(run) and self._decoded(run) and self._prepared(run)):
            return
        self._performed(run)
        self._settled(run)

    # --- the verbs

    def _resolved(self, run: Run) -> bool:
        task = run.task = self._registry.get(run.job.task)
        if task is None:
            run.settlement = decision.unknown_task(run.job)
            logger.warning("%s: no task named %s in this process", run.job.id, run.job.task)
            self._told(run, None)
            return False
        if run.job.options_json:
            run.policy = decision.policy_of(task, run.job)
        else:
            policy = self._policies.get(task)
            if policy is None:
                policy = self._policies[task] = decision.policy_of(task)
            run.policy = policy
        return True

    def _decoded(self, run: Run) -> bool:
        job = run.job
        try:
            if job.merged:
                run.args = [{job.id: [decode(payload.data) for payload in job.payloads]}]
            elif job.args:
                run.args, run.kwargs = decode_args(job.args)
        except Exception as error:
            run.settlement = decision.undecodable(job, error)
            logger.error("%s: arguments of task %s cannot be decoded", job.id, job.task)
            self._told(run, error)
            return False
        return True

    def _prepared(self, run: Run) -> bool:
        running.set(run)
        if self._hooks.before_job is None:
            return True
        try:
            self._hooks.before_job(run.job)
        except BaseException as error:
            run.settlement = decision.not_prepared(run.job, error)
            logger.warning("%s: given back, before_job raised %s", run.job.id, decision.class_of(error))
            return False
        return True

    def _performed(self, run: Run) -> None:
        hooks = self._hooks
        if hooks.wants("job_started"):
            self._notify("job_started", run)
        board, warden, policy = self._board, self.warden, run.policy
        run.started = monotonic()
        if board is not None:
            board.mark(run)
        try:
            if policy is None or policy.timeout is None or warden is None:
                self._call(run)
            else:
                self._limited(run, policy.timeout, warden)
        except BaseException as error:
            run.error = error
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and the copy came back: only one of the two may settle
        if hooks.after_job is not None:
            try:
                hooks.after_job(run.job)
            except BaseException as error:
                if run.error is None:
                    run.error = error
        run.ended = monotonic()
        if board is not None:
            board.clear(run.slot)

    def _limited(self, run: Run, seconds: float, warden: Warden) -> None:
        warden.arm(run, seconds)
        try:
            try:
                self._call(run)
            finally:
                warden.disarm(run)
        except JobTimeout:
            warden.disarm(run)  # it may have struck in the middle of the disarming above
            raise

    def _handler(self, run: Run) -> Any:
        """The innermost call: the task's function, on the event loop if it is a coroutine."""
        if run.task is None:
            raise LookupError(f"no task named {run.job.task} in this process")
        result = run.task.func(*run.args, **run.kwargs)
        if type(result) is CoroutineType:
            return self._loop.run(result, run)
        return result

    def _settled(self, run: Run) -> None:
        job, error = run.job, run.error
        if error is None:
            run.settlement = ack(job, run.started_ms, run.run_ms)
            if self._hooks.wants("job_succeeded"):
                self._notify("job_succeeded", run, seconds=run.ended - run.started)
            return
        policy = run.policy or Policy()
        timed_out = bool(run.limited_by) and not isinstance(error, Verdict)
        run.settlement = decision.raised(job, policy, error, run.started_ms, run.run_ms, timed_out=timed_out)
        self._log_failure(run, run.settlement)
        self._told(run, error)

    # --- telling

    def _told(self, run: Run, error: BaseException | None) -> None:
        settlement = run.settlement
        if settlement is None:
            return
        if settlement.verb == "fail" and self._hooks.wants("job_failed"):
            retry_in = (settlement.delay_ms or 0) / 1000
            self._notify("job_failed", run, error=error, outcome=settlement.outcome, retry_in=retry_in)
        elif settlement.verb == "bury" and self._hooks.wants("job_buried"):
            self._notify("job_buried", run, error=error, reason=settlement.reason)

    def _notify(self, event: str, run: Run, **details: Any) -> None:
        try:
            self._hooks.notify(event, job=run.job, task=run.task, **details)
        except Exception:
            logger.exception("%s: a listener of %s failed", run.job.id, event)

    def _log_failure(self, run: Run, settlement: Settlement) -> None:
        job = run.job
        kind = settlement.error_class or "-"
        if settlement.verb == "bury":
            # Without the traceback: messages of exceptions may carry arguments. The morgue keeps it.
            logger.error("%s: task %s went to the morgue (%s) after attempt %d: %s",
                         job.id, job.task, settlement.reason, job.failures + 1, kind)  # fmt: skip
        elif settlement.verb == "fail":
            logger.warning("%s: attempt %d of task %s %s (%s); again in %.1f s", job.id, job.failures + 1, job.task,
                           settlement.outcome, kind, (settlement.delay_ms or 0) / 1000)  # fmt: skip
        else:
            logger.info("%s: task %s gave the job back", job.id, job.task)
        if logger.isEnabledFor(logging.DEBUG) and not isinstance(run.error, DelayQError):
            logger.debug("%s: traceback", job.id, exc_info=run.error)
