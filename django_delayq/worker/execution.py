"""Execution of an attempt: a pipeline of steps over a :class:`Attempt`.

The steps are resolved → decoded → prepared → performed → settled.

Every outcome of a handler ends here as a settlement: an exception of any kind (SystemExit, KeyboardInterrupt,
GeneratorExit and CancelledError included), an unusable result, a fork where both processes return. A batch takes the
same path with several jobs: each leaves it where its own outcome is decided, and the handler gets the remaining ones.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, Final, TypeAlias

from ..core.errors import JobTimeout, PartialFailure, Verdict
from ..core.job import Settlement, ack
from ..core.task import Registry, Task
from . import decision
from .attempt import Attempt, BatchAttempt
from .current import running, view_of
from .decision import Policy
from .early import ack_early
from .eventloop import EventLoop
from .hooks import Hooks
from .limits import TimeoutMonitor
from .middleware import Middleware, compose
from .notifier import Notifier, arguments_of
from .readiness import ReadinessGate
from .record import class_of, error_record
from .scoreboard import Scoreboard
from .unknown import UnknownTasks

logger: Final = logging.getLogger(__name__)

#: returns the stored form of an error
Recorder: TypeAlias = Callable[[BaseException], bytes]


class Execution:
    """Callable that a slot calls with each attempt."""

    def __init__(
        self,
        registry: Registry,
        hooks: Hooks,
        middlewares: Sequence[Middleware] = (),
        *,
        board: Scoreboard | None = None,
        loop: EventLoop | None = None,
    ) -> None:
        #: timeout monitor; set by the composition root, because it watches the slots that call this object
        self.timeout_monitor: TimeoutMonitor | None = None
        #: settles jobs of other releases; the composition root sets one that reads the registry of workers
        self.unknown = UnknownTasks()
        #: readiness gate: whether jobs can begin here
        self.readiness = ReadinessGate()
        self._registry = registry
        self._hooks = hooks
        self._loop = loop or EventLoop()
        self._teller = Notifier(hooks, self._loop)
        self._record = partial(error_record, formatter=hooks.format_error)
        self._board = board
        self._call = compose(middlewares, self._handler)
        self._policies: dict[Task, Policy] = {}
        self._pid = os.getpid()

    def __call__(self, attempt: Attempt) -> None:
        """Run the job and set ``attempt.settlement``, in a batch that of each member. Never raises."""
        attempt.started = monotonic()
        try:
            # A separate context, so that no ContextVar of one job is visible to the next one in this thread.
            if type(attempt) is BatchAttempt:
                copy_context().run(self._together, attempt)
            elif attempt.lost or attempt.started >= attempt.deadline:
                attempt.settlement = self._too_late(attempt)
            else:
                copy_context().run(self._pipeline, attempt)
        except BaseException as error:  # the outermost handler: a slot must survive everything
            logger.exception("%s: the execution itself failed", attempt.job.id)
            attempt.error = error
        attempt.ended = attempt.ended or monotonic()
        if attempt.settlement is None:
            self._close(attempt)
        attempt.view = None

    def _policy_of(self, attempt: Attempt) -> Policy:
        """Return the policy of an attempt, also of one that was never resolved.

        A settlement always needs it: payloads that arrived meanwhile are merged with the job by its task's rules.
        """
        return attempt.policy or decision.policy_of(self._registry.get(attempt.job.task), attempt.job)

    def _too_late(self, attempt: Attempt) -> Settlement:
        return decision.give_back(
            attempt.job, self._policy_of(attempt), reason="the lease ended before the attempt could begin"
        )

    def _close(self, attempt: Attempt) -> None:
        """Give every job a settlement that has none yet."""
        for part in attempt.parts:
            part.ended, part.view = attempt.ended, None
            if part.settlement is not None:
                continue
            if part.acked:
                part.settlement = decision.recorded(part.job, attempt.error, part.started_ms, part.run_ms)
                self._teller.ended(part, part.settlement, attempt.error)
            else:
                part.settlement = decision.give_back(
                    part.job, self._policy_of(part), delay_ms=5000, reason="the execution itself failed"
                )

    def _pipeline(self, attempt: Attempt) -> None:
        if not (self._resolved(attempt) and self._decoded(attempt) and self._prepared(attempt)):
            return
        policy = attempt.policy
        if policy is None or not policy.early:
            self._performed(attempt)
            self._settled(attempt)
        elif ack_early(attempt, policy):
            self._performed(attempt)
            self._recorded(attempt)

    # --- the steps

    def _resolved(self, attempt: Attempt) -> bool:
        task = attempt.task = self._registry.get(attempt.job.task)
        if task is None:
            attempt.settlement = self.unknown.settle(attempt, self._policy_of(attempt))
            self._teller.ended(attempt, attempt.settlement, None)
            return False
        if attempt.job.options_json:
            attempt.policy = decision.policy_of(task, attempt.job)
        else:
            policy = self._policies.get(task)
            if policy is None:
                policy = self._policies[task] = decision.policy_of(task)
            attempt.policy = policy
        return True

    def _decoded(self, attempt: Attempt) -> bool:
        job = attempt.job
        try:
            if job.merged or job.args:
                attempt.args, attempt.kwargs = arguments_of(job)
        except Exception as error:
            attempt.settlement = decision.undecodable(job, error)
            logger.error("%s: arguments of task %s cannot be decoded", job.id, job.task)
            self._teller.ended(attempt, attempt.settlement, error)
            return False
        return True

    def _prepared(self, attempt: Attempt) -> bool:
        running.set(attempt)
        if self._hooks.before_job is None:
            return True
        try:
            self._hooks.before_job(attempt.job)
        except BaseException as error:
            logger.warning("%s: given back, before_job raised %s", attempt.job.id, class_of(error))
            self.readiness.unfit()
            for part in attempt.live:
                part.settlement = decision.not_prepared(part.job, self._policy_of(part), error, part.now_ms)
            return False
        self.readiness.fit()
        return True

    def _performed(self, attempt: Attempt, parts: tuple[Attempt, ...] = ()) -> None:
        hooks = self._hooks
        if hooks.wants("job_started", attempt.task):
            for part in parts or (attempt,):
                self._teller.notify("job_started", part)
        board, timeout_monitor, policy = self._board, self.timeout_monitor, attempt.policy
        attempt.started = monotonic()
        for part in parts:
            part.started = attempt.started
        if board is not None:
            board.mark(attempt, parts)
        try:
            if policy is None or policy.timeout is None or timeout_monitor is None:
                self._call(attempt)
            else:
                self._limited(attempt, policy.timeout, timeout_monitor)
        except BaseException as error:
            attempt.error = error
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and the child process returned: only one of the two may settle
        if hooks.after_job is not None:
            try:
                hooks.after_job(attempt.job)
            except BaseException as error:
                # It overrides a partial failure, which would ack the other jobs: a leak concerns all of them.
                if attempt.error is None or isinstance(attempt.error, PartialFailure):
                    attempt.error = error
        attempt.ended = monotonic()
        if board is not None:
            board.clear(attempt.slot)

    def _limited(self, attempt: Attempt, seconds: float, timeout_monitor: TimeoutMonitor) -> None:
        timeout_monitor.arm(attempt, seconds)
        try:
            try:
                self._call(attempt)
            finally:
                timeout_monitor.disarm(attempt)
        except JobTimeout:
            timeout_monitor.disarm(attempt)  # it may have been raised inside the disarming above
            raise

    def _handler(self, attempt: Attempt) -> Any:
        """Call the task's function, on the event loop if it returns a coroutine. The innermost call of the chain."""
        if attempt.task is None:
            raise LookupError(f"no task named {attempt.job.task} in this process")
        result = attempt.task.func(*attempt.args, **attempt.kwargs)
        if type(result) is CoroutineType:
            return self._loop.run(result, attempt)
        return result

    def _settled(self, attempt: Attempt, record: Recorder | None = None) -> None:
        job, error = attempt.job, attempt.error
        if error is not None and isinstance(error, PartialFailure):
            error = attempt.error = decision.failures_of(error, [job.id]).get(job.id)
        if error is None:
            attempt.settlement = ack(job, attempt.started_ms, attempt.run_ms)
            self._succeeded(attempt)
            return
        policy = self._policy_of(attempt)
        attempt.settlement = decision.raised(
            job,
            policy,
            error,
            attempt.started_ms,
            attempt.run_ms,
            timed_out=_timed_out(attempt),
            record=record or self._record,
            retry_delay=self._hooks.retry_delay,
        )
        self._teller.failed(attempt, attempt.settlement, error)

    def _recorded(self, attempt: Attempt, record: Recorder | None = None) -> None:
        """Settle a job that was acked before its handler began. Replaces :meth:`_settled` for it."""
        job, error = attempt.job, attempt.error
        if error is not None and isinstance(error, PartialFailure):
            error = attempt.error = decision.failures_of(error, [job.id]).get(job.id)
        attempt.settlement = decision.recorded(
            job, error, attempt.started_ms, attempt.run_ms, timed_out=_timed_out(attempt), record=record or self._record
        )
        if error is None:
            self._succeeded(attempt)
        else:
            self._teller.failed(attempt, attempt.settlement, error)

    def _succeeded(self, attempt: Attempt) -> None:
        if self._hooks.wants("job_succeeded", attempt.task):
            self._teller.notify("job_succeeded", attempt, seconds=attempt.ended - attempt.started)

    # --- several jobs in one call

    def _together(self, batch: BatchAttempt) -> None:
        """Run the pipeline for a batch: the same steps, for each member where its own outcome is decided."""
        for member in batch.members:
            if member.lost or batch.started >= member.deadline:
                member.settlement = self._too_late(member)
            elif self._resolved(member):
                self._decoded(member)
        if self._agreed(batch) and self._prepared(batch) and self._acked_early(batch):
            parts = batch.live
            view_of(batch)  # created here, when the members that the handler gets are known
            self._performed(batch, parts)
            self._parted(batch, parts)
        self._close(batch)

    def _agreed(self, batch: BatchAttempt) -> bool:
        """Set the arguments and the policy of the call from the remaining members. Return False if there are none."""
        parts = batch.live
        if not parts:
            return False
        batch.job, batch.task = parts[0].job, parts[0].task
        batch.args = [{part.job.id: part.args[0][part.job.id] for part in parts}]
        policies = [self._policy_of(part) for part in parts]
        limits = [policy.timeout for policy in policies if policy.timeout is not None]
        batch.policy = replace(policies[0], timeout=min(limits, default=None))
        batch.view = None
        return True

    def _acked_early(self, batch: BatchAttempt) -> bool:
        policy = batch.policy
        return policy is None or not policy.early or (ack_early(batch, policy) and self._agreed(batch))

    def _parted(self, batch: BatchAttempt, parts: tuple[Attempt, ...]) -> None:
        """Settle each member after the call."""
        record = _remembering(self._record)
        failures: dict[str, BaseException] = {}
        if batch.error is not None:
            failures = decision.failures_of(batch.error, [part.job.id for part in parts])
        for part in parts:
            part.ended, part.limited_by, part.error = batch.ended, batch.limited_by, failures.get(part.job.id)
            (self._recorded if part.acked else self._settled)(part, record)


def _timed_out(attempt: Attempt) -> bool:
    return bool(attempt.limited_by) and not isinstance(attempt.error, Verdict)


def _remembering(record: Recorder) -> Recorder:
    """Return the function ``record`` with a cache by error, since all jobs of a batch may share one error."""
    known: dict[int, bytes] = {}

    def remembered(error: BaseException) -> bytes:
        if id(error) not in known:
            known[id(error)] = record(error)
        return known[id(error)]

    return remembered
