"""Attempts at Tasks in a worker, or settled for a dead one: the records they write and the signals they send."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone

from .. import connections
from ..core.errors import DelayQError, QueueUnavailable
from ..core.job import Job
from ..core.redis.faults import Backoff, classify
from ..signals import emit
from ..worker.attempt import running
from . import results
from .backend import backend_of
from .compat import AnyResult, TaskContext, normalize_json, task_finished, task_started
from .errors import ResultTooLarge
from .results import FACTS, FAILED, READY, RUNNING, SUCCESSFUL, Record, error_line, request_of, result_of

if TYPE_CHECKING:
    from .registration import FrameworkTask

logger: Final = logging.getLogger("django_delayq.tasks")

#: state of the record after each end of an attempt
_STATES: Final = {"job_succeeded": SUCCESSFUL, "job_failed": READY, "job_buried": FAILED}
_attempt: ContextVar[Attempt | None] = ContextVar("delayq_task_attempt", default=None)


def handle_event(
    task: FrameworkTask,
    event: str,
    *,
    job: Job,
    error: BaseException | None = None,
    retry_in: float | None = None,
    **_: Any,
) -> None:
    """Handle an event of an attempt at this task; see ``worker.Hooks.notify``."""
    attempt = _attempt.get()
    if event == "job_started" or attempt is None or attempt.job is not job:
        attempt = Attempt(task, job)  # without a start it ended elsewhere, or before its function could be called
    if event == "job_started":
        _attempt.set(attempt)
        attempt.start(job)
    else:
        attempt.end(job, _STATES[event], error, retry_in or 0.0)


def worker_function(task: FrameworkTask) -> Callable[..., Any]:
    """Return the function that a worker calls: it adds the context argument and checks the return value."""
    func, takes_context = task.task.func, task.task.takes_context

    def perform(*args: Any, **kwargs: Any) -> Any:
        attempt = _current(task)
        return attempt.check_value(func(*attempt.context_args(), *args, **kwargs))

    async def aperform(*args: Any, **kwargs: Any) -> Any:
        attempt = _current(task)
        return attempt.check_value(await func(*attempt.context_args(), *args, **kwargs))

    function: Callable[..., Any] = aperform if inspect.iscoroutinefunction(func) else perform
    functools.update_wrapper(function, func)
    signature = inspect.signature(func)
    # Callers pass the arguments without the context.
    parameters = list(signature.parameters.values())[1 if takes_context else 0 :]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _current(task: FrameworkTask) -> Attempt:
    """Return the attempt that runs here; outside of a worker one that stores nothing."""
    attempt = _attempt.get()
    return attempt if attempt is not None and attempt.task is task else Attempt(task, None)


class Attempt:
    """Attempt at a Task, also one that could not begin.

    Belongs to the thread of its job (``check_value`` may be called on the event loop).
    """

    def __init__(self, task: FrameworkTask, job: Job | None) -> None:
        self.task = task
        self.job = job
        self._record = Record()
        self._value = "null"
        self._overtaken = False
        self._began = ""
        nothing: dict[str, Any] = {"task": task.name, "queue": task.options.queue, "args": [], "kwargs": {}}
        self._request = request_of(job) if job is not None else nothing
        #: what is stored of it; "" = the job was not created by ``enqueue()``, so it has no result to read
        self._head = json.dumps(self._request) if FACTS[0] in self._request else ""
        self._backend, self._options = backend_of(self._request.get("backend", task.task.backend))
        self.result: AnyResult = result_of(job.id if job is not None else "", self._request, status=RUNNING)

    # -- around the function

    def context_args(self) -> tuple[Any, ...]:
        """Return the arguments that the function gets before its own."""
        return (TaskContext(task_result=self.result),) if self.task.task.takes_context else ()

    def check_value(self, raw: Any) -> Any:
        """Check and keep the function's return value.

        Raises:
            TypeError, ValueError: it has no form in JSON.
            ResultTooLarge: it is too large to be kept.
        """
        encoded, most = json.dumps(normalize_json(raw), separators=(",", ":")), self._options.max_result_bytes
        if len(encoded) > most:  # a character is a byte, because others are escaped
            raise ResultTooLarge(
                f"the task returned {len(encoded)} bytes, but at most {most} are stored. Store the data elsewhere and "
                f"return its location, or raise OPTIONS['max_result_bytes'] of TASKS[{self.result.backend!r}]"
            )
        self._value = encoded
        return raw

    # -- records and signals

    def start(self, job: Job) -> None:
        """Store the start, and send the signal."""
        self._began = timezone.now().isoformat()
        self._record = Record(first=self._began, last=self._began, workers=[job.worker])
        try:
            self._record = self._write(job, "start", RUNNING) or self._record
        except DelayQError as error:
            # The attempt matters more than its record; the end is stored with more retries.
            logger.warning("%s: the start of task %s could not be stored: %s", job.id, job.task, error)
        self.result = result_of(job.id, self._request, self._record, RUNNING)
        if not self._overtaken:
            emit(task_started, self._backend, task_result=self.result)

    def end(self, job: Job, state: str, error: BaseException | None, retry_in: float) -> None:
        """Store the outcome, and send the signal if it is final. Called before the job is settled."""
        attempt = running.get()
        if self._overtaken or (attempt is not None and attempt.lost):
            return  # its outcome does not count any more: the job belongs to another worker
        now = timezone.now().isoformat()
        line = error_line(error) if error is not None else ""
        fields = {"end": now, "value": self._value} if state == SUCCESSFUL else {"end": now}
        until = (attempt.deadline if attempt is not None else 0.0) + connections.broker().lease_ms / 1000
        record = _retry_until(until, job, lambda: self._write(job, "end", state, line, retry_in, **fields))
        if self._overtaken or state == READY:
            return
        errors = [*self._record.errors, line] if line else self._record.errors
        local = replace(self._record, state=state, end=now, value=self._value, errors=errors)
        self.result = result_of(job.id, self._request, record or local)
        self._send_finished(error)

    def _write(
        self, job: Job, verb: str, state: str, error: str = "", retry_in: float = 0.0, **fields: str
    ) -> Record | None:
        """Write to the record, and return it; None if there is none or a later attempt has begun."""
        if not self._head:
            return None
        if self._began:
            fields |= {"first": self._began, "last": self._began}
        record = results.write(
            connections.broker(),
            job.id,
            verb,
            int((self._options.result_ttl + retry_in) * 1000),
            {"head": self._head, "state": state, **fields},
            token=job.token,
            worker=job.worker if self._began else "",
            error=error,
        )
        self._overtaken = record is None
        return record

    def _send_finished(self, error: BaseException | None) -> None:
        """Send the signal while handling the error.

        The framework's own receiver logs the exception that is being handled, so there has to be one.
        """
        if error is None:
            emit(task_finished, self._backend, task_result=self.result)
            return
        trace = error.__traceback__
        try:
            raise error
        except BaseException:
            emit(task_finished, self._backend, task_result=self.result)
        error.__traceback__ = trace


def _retry_until(until: float, job: Job, write: Callable[[], Record | None]) -> Record | None:
    """Call ``write()``, and retry it while Redis is unreachable, until the job surely belongs to another worker."""
    pause = Backoff()
    while True:
        try:
            return write()
        except DelayQError as error:
            wait = pause.next(classify(error)) if isinstance(error, QueueUnavailable) else math.inf
            if time.monotonic() + wait > until:
                logger.error("%s: the result of task %s could not be stored: %s", job.id, job.task, error)
                return None
            time.sleep(wait)
