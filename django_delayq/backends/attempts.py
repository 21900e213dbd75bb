"""Attempt at a Task in a worker: the signals it sends and the record it stores."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.utils import timezone

from .. import connections
from ..core.errors import DelayQError, QueueUnavailable
from ..core.job import Job
from ..core.redis.faults import Backoff, classify
from ..signals import emit
from ..worker.attempt import running
from .compat import TaskContext, TaskResultStatus, normalize_json, task_finished, task_started
from .errors import ResultTooLarge
from .result_records import READY, RUNNING, SUCCESSFUL, ResultRecord, Results
from .stored import LOST, Head, change, error_line, read_errors, result_of

if TYPE_CHECKING:
    from .options import BackendOptions
    from .registration import FrameworkTask
    from .stored import AnyResult

T = TypeVar("T")
logger: Final = logging.getLogger("django_delayq.tasks")

_attempt: ContextVar[Attempt | None] = ContextVar("delayq_task_attempt", default=None)


def current(task: FrameworkTask) -> Attempt:
    """Return the attempt that runs here; outside of a worker one that stores nothing."""
    attempt = _attempt.get()
    return attempt if attempt is not None and attempt.task is task else Attempt(task, None)


def begin(task: FrameworkTask, job: Job) -> None:
    """Start an attempt. Called before the worker calls the function."""
    attempt = Attempt(task, job)
    _attempt.set(attempt)
    attempt.start(job)


def finish(
    task: FrameworkTask, job: Job, state: str, *, error: BaseException | None = None, retry_in: float = 0.0
) -> None:
    """End an attempt, or a start that failed, after the outcome of the job is decided."""
    attempt = _attempt.get()
    if attempt is None or attempt.job is not job:
        attempt = Attempt(task, job)
    attempt.end(state, error, retry_in)


class Attempt:
    """Attempt at a Task, also one that could not begin.

    Belongs to the thread of its job (``check_value`` may be called on the event loop).
    """

    def __init__(self, task: FrameworkTask, job: Job | None) -> None:
        self.task = task
        self.job = job
        self._value: bytes | None = None
        self._stored = False
        self._overtaken = False
        self._began = ""
        self._head = (
            Head.of_job(job)
            if job is not None
            else Head(task=task.name, queue=task.options.queue, args=[], kwargs={}, facts=None)
        )
        facts = self._head.facts
        self._backend, self._options = _backend_of(facts.backend if facts is not None else task.task.backend)
        self.result: AnyResult = result_of(
            job.id if job is not None else "", self._head, ResultRecord(), status=RUNNING, backend=task.task.backend
        )

    @property
    def recorded(self) -> bool:
        """Return True if the result can be read: ``enqueue()`` created the job."""
        return self._head.facts is not None

    # --- around the function

    def context_args(self, takes_context: bool) -> tuple[Any, ...]:
        """Return the arguments that the function gets before its own."""
        return (TaskContext(task_result=self.result),) if takes_context else ()

    def check_value(self, raw: Any) -> Any:
        """Check and keep the function's return value.

        Raises:
            TypeError, ValueError: it has no form in JSON.
            ResultTooLarge: it is too large to be kept.
        """
        encoded = json.dumps(normalize_json(raw), separators=(",", ":")).encode()
        if len(encoded) > self._options.max_result_bytes:
            raise ResultTooLarge(
                f"the task returned {len(encoded)} bytes, but at most {self._options.max_result_bytes} are stored. "
                f"Store the data elsewhere and return its location, or raise OPTIONS['max_result_bytes'] of "
                f"TASKS[{self.result.backend!r}]"
            )
        self._value = encoded
        return raw

    # --- signals and records

    def start(self, job: Job) -> None:
        """Store the start, and send the signal."""
        now = timezone.now()
        self._began = now.isoformat()
        record = ResultRecord(first=self._began, last=self._began, workers=(job.worker,))
        if self.recorded:
            try:
                stored = self._results().start(
                    job.id, job, job.worker, self._ttl_ms(), head=self._head.pack(), at=self._began, lost=LOST
                )
                self._stored, self._overtaken = True, stored is None
                record = stored or record
            except DelayQError as error:
                # The attempt matters more than its record; the end is stored with more retries.
                logger.warning("%s: the start of task %s could not be stored: %s", job.id, job.task, error)
        self.result = result_of(job.id, self._head, record, status=RUNNING, backend=self.task.task.backend)
        if not self._overtaken:
            emit(task_started, self._backend, task_result=self.result)

    def end(self, state: str, error: BaseException | None, retry_in: float) -> None:
        """Store the outcome, and send the signal if it is final."""
        run, job = running.get(), self.job
        if job is None or self._overtaken or (run is not None and run.lost):
            return  # its outcome does not count any more: the job belongs to another worker
        now = timezone.now()
        line = error_line(error) if error is not None else b""
        record: ResultRecord | None = None
        if self.recorded:
            record = _retry_until(
                lambda: self._store_end(job, state, now.isoformat(), line, retry_in),
                job,
                run.deadline if run is not None else 0.0,
            )
            if self._overtaken:
                return
        change(self.result, status=TaskResultStatus(state), finished_at=now if state != READY else None)
        if record is not None:
            change(self.result, worker_ids=list(record.workers), errors=read_errors(record.errors))
        elif line:
            self.result.errors.extend(read_errors([line]))
        if state == SUCCESSFUL and self._value is not None:
            change(self.result, _return_value=json.loads(self._value))
        if state != READY:
            self._send_finished(error)

    def _store_end(self, job: Job, state: str, at: str, line: bytes, retry_in: float) -> ResultRecord | None:
        value = self._value if state == SUCCESSFUL else None
        for head in (b"" if self._stored else self._head.pack(), self._head.pack()):
            record = self._results().end(
                job.id,
                job,
                job.worker,
                self._ttl_ms(retry_in),
                head=head,
                state=state,
                began=self._began,
                at=at,
                value=value,
                error=line,
            )
            self._overtaken = record is None
            if record is None or record.head:
                break  # otherwise it expired during the attempt, and has to be written completely
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

    def _ttl_ms(self, seconds: float = 0.0) -> int:
        return int((self._options.result_ttl + seconds) * 1000)

    @staticmethod
    def _results() -> Results:
        return Results(connections.broker())


def _backend_of(alias: str) -> tuple[type[Any], BackendOptions]:
    from .backend import backend_of

    return backend_of(alias)


def _retry_until(call: Callable[[], T], job: Job, deadline: float) -> T | None:
    """Call ``call()``, and retry it while Redis is unreachable, until the job surely belongs to another worker."""
    pause = Backoff()
    until = deadline + connections.broker().lease_ms / 1000
    while True:
        try:
            return call()
        except DelayQError as error:
            wait = pause.next(classify(error)) if isinstance(error, QueueUnavailable) else math.inf
            if time.monotonic() + wait > until:
                logger.error("%s: the result of task %s could not be stored: %s", job.id, job.task, error)
                return None
            time.sleep(wait)
