"""Code of the project and of a framework around attempts: hooks, middlewares, and the listeners of their ends.

The worker itself depends on no framework. A task may have ``on_exhausted`` and its own listener, and signals have
receivers. All listeners of an end are called *before* the settlement is stored, by the process that settles the job. If
it dies in between, the job stays held, or its attempt stays open, and the process that settles it next calls them
again: so each end is notified at least once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextvars import copy_context
from dataclasses import dataclass, field
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.codec import decode, decode_args
from ..core.errors import Crashed, JobTimeout
from ..core.job import Job
from ..core.outcomes import AttemptOutcome, Settlement
from ..core.task import Task
from .attempt import Attempt, CurrentJob, running, trusted, view_of
from .ends import policy_of
from .record import AttemptLog, Formatter, logger
from .shards import Pace, Source
from .slots import EventLoop

if TYPE_CHECKING:
    from ..core.queue import Queue

#: calls the rest of the chain, at its end the handler; returns the handler's result, raises what it raised
Call: TypeAlias = Callable[["Attempt"], Any]
#: built once per process with the next call: ``def timing(next): def call(attempt): ...; return call``
Middleware: TypeAlias = Callable[[Call], Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Optional callables around a process, its job threads and each job.

    Events for ``notify`` (each with ``job`` and ``task``, the latter None when not registered here):
    ``job_started``; ``job_succeeded`` (seconds); ``job_failed`` (error, outcome, retry_in seconds, None = never);
    ``job_buried`` (error, reason). They are sent from the job's thread, before the outcome of the attempt is stored. A
    batch sends one for each of its jobs. ``before_job`` and ``after_job`` are called once for a batch, with its first
    job.

    Outcomes of jobs whose process is gone are sent from a thread of a supervisor or a dispatcher (:mod:`.dead`),
    within ``before_job``, ``after_job`` and ``thread_end``.
    """

    #: called before the first / after the last part of the process runs
    process_start: Callable[[], object] = lambda: None
    process_stop: Callable[[], object] = lambda: None
    #: called in each thread that runs jobs, at its end
    thread_end: Callable[[], object] = lambda: None
    #: called before the handler, in its thread. An exception gives the job back without counting an attempt
    before_job: Callable[[Job], object] = lambda job: None
    #: called after the handler, whatever its outcome, and before the ack. An exception makes a successful attempt a
    #: failed one
    after_job: Callable[[Job], object] = lambda job: None
    #: returns True if a task's event has receivers; called before anything is prepared for it
    wants: Callable[[str, Task | None], bool] = lambda event, task: False
    #: sends an event; exceptions are logged
    notify: Callable[..., object] = lambda event, **details: None
    #: returns the stored form of a handler's exception; if it fails itself, the default form is stored
    format_error: Formatter | None = None
    #: sends a failure to an error tracker, given the job and the error; called for each counted failure, before it is
    #: stored. Exceptions are logged
    report_error: Callable[[CurrentJob, BaseException], None] | None = None
    #: logs how attempts ended
    log: AttemptLog = field(default_factory=AttemptLog)
    #: called with the error, once, before the process ends although jobs still run, or by a fatal error (flush logs);
    #: there is little time left
    last_words: Callable[[BaseException], object] = lambda error: None


#: calls a listener for an attempt
Caller: TypeAlias = Callable[[Attempt, Callable[[], Any]], Any]


class Notifier:
    """Notifier that calls the listeners of a job's start and end. Their exceptions are logged.

    Args:
        hooks: the hooks of the framework.
        loop: runs ``on_exhausted`` if that is a coroutine function.
        call: calls one listener, in a worker within the time limit of the attempt.
    """

    def __init__(
        self, hooks: Hooks, loop: EventLoop | None = None, call: Caller = lambda attempt, listener: listener()
    ) -> None:
        self._hooks = hooks
        self._loop = loop or EventLoop()
        self._call_limited = call

    def has_listeners(self, settlement: Settlement, task: Task | None) -> bool:
        """Return True if a listener is called for this end."""
        event = event_of(settlement)
        has_hook = task is not None and task.options.on_exhausted is not None
        is_heard = event is not None and (self._hooks.report_error is not None or self._hooks.wants(event, task))
        return is_heard or (has_hook and is_exhausted(settlement))

    def notify(self, event: str, attempt: Attempt, **details: Any) -> None:
        """Notify the hooks of one job."""
        self._call(event, attempt, lambda: self._hooks.notify(event, job=attempt.job, task=attempt.task, **details))

    def succeeded(self, attempt: Attempt) -> None:
        """Log that the handler returned, and notify of it."""
        self._hooks.log.succeeded(attempt)
        if self._hooks.wants("job_succeeded", attempt.task):
            self.notify("job_succeeded", attempt, seconds=attempt.ended - attempt.started)

    def failed(self, attempt: Attempt, settlement: Settlement, error: BaseException) -> None:
        """Log that the handler raised, and notify of it."""
        self._hooks.log.failed(settlement, error)
        self.ended(attempt, settlement, error)

    def ended(self, attempt: Attempt, settlement: Settlement, error: BaseException | None) -> None:
        """Notify all listeners of the end of a job that did not simply succeed."""
        event, report = event_of(settlement), self._hooks.report_error
        hook = attempt.task.options.on_exhausted if attempt.task is not None else None
        if hook is not None and error is not None and is_exhausted(settlement):
            self._call("on_exhausted", attempt, lambda: hook(view_of(attempt), error))
        if event is not None and error is not None and report is not None:
            self._call("report_error", attempt, lambda: report(view_of(attempt), error))
        if event is None or not self._hooks.wants(event, attempt.task):
            return
        if event == "job_buried":
            self.notify(event, attempt, error=error, reason=settlement.reason)
        else:
            retry_in = (settlement.delay_ms or 0) / 1000 if settlement.verb == "fail" else None
            self.notify(event, attempt, error=error, outcome=settlement.outcome, retry_in=retry_in)

    def ended_elsewhere(
        self, queue: Queue, task: Task | None, settlement: Settlement, error: BaseException | None = None
    ) -> None:
        """Notify of the end of a job that no slot of this process ran. ``current_job()`` is that job meanwhile.

        Args:
            queue: the job's queue.
            task: None if it is not registered here.
            settlement: the end.
            error: the cause; by default derived from the settlement.
        """
        attempt = _attempt_elsewhere(queue, task, settlement.job)

        def notify() -> None:
            running.set(attempt)
            self.ended(attempt, settlement, error or error_of(settlement))

        copy_context().run(notify)

    def _call(self, name: str, attempt: Attempt, listener: Callable[[], Any]) -> None:
        def call() -> None:
            result = listener()
            if type(result) is CoroutineType:
                self._loop.run(result, running.get() or attempt)

        try:
            self._call_limited(attempt, call)
        except BaseException as error:
            # Also what ends a thread or a process, and the time limit: the listener is given up, not the job.
            is_late = isinstance(error, JobTimeout | CancelledError)
            why = "did not end within the time limit of its task and is given up" if is_late else "failed"
            logger.exception("%s: %s of task %s %s", attempt.job.id, name, attempt.job.task, why)


def event_of(settlement: Settlement) -> str | None:
    """Return the event of an end that did not simply succeed; None if it has none (given back, expired)."""
    if settlement.verb == "bury":
        return "job_buried"
    if settlement.verb == "fail" or (settlement.verb == "record" and settlement.outcome != AttemptOutcome.SUCCEEDED):
        return "job_failed"
    return None


def is_exhausted(settlement: Settlement) -> bool:
    """Return True if a failure was the last attempt. A job that was acked before it began has only one."""
    if settlement.verb == "record":
        return settlement.outcome != AttemptOutcome.SUCCEEDED
    return settlement.verb == "bury" and settlement.outcome in (AttemptOutcome.EXHAUSTED, AttemptOutcome.POISON)


def error_of(settlement: Settlement) -> BaseException:
    """Return an exception for an end that the attempt's own code did not see: its process died or was ended."""
    try:
        message = json.loads(settlement.error)["message"]
    except (ValueError, TypeError, KeyError):
        message = settlement.reason or settlement.outcome
    return JobTimeout(message) if settlement.error_class == JobTimeout.__name__ else Crashed(message)


def arguments_of(job: Job) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a job's handler. Raise if they cannot be decoded."""
    if job.merged:
        return [{job.id: [decode(payload.data) for payload in job.payloads]}], {}
    return decode_args(job.args)


def _attempt_elsewhere(queue: Queue, task: Task | None, job: Job) -> Attempt:
    """Return an attempt that represents one that took place elsewhere."""
    now = time.monotonic()
    deadline = now + trusted(queue.deployment.lease_ms / 1000)
    attempt = Attempt(job, Source(queue, job.shard, Pace()), now, deadline, time.time() * 1000 - now * 1000)
    attempt.task, attempt.policy = task, policy_of(task, job)
    try:
        attempt.arguments = arguments_of(job)
    except Exception:
        logger.info("%s: the listeners of its end get no arguments, because they cannot be decoded", job.id)
    return attempt
