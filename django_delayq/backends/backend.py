"""Backend: ``enqueue()`` schedules a job, ``get_result()`` reads its state."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from django.core.checks import CheckMessage
from django.db import transaction
from django.utils import timezone

from ..core.errors import DelayQError, InvalidJob, Misconfigured
from ..core.inputs import check_queue_name
from ..core.outcomes import ScheduleOutcome
from ..outbox import durability, producer
from ..scheduling.verbs import schedule_call
from ..signals import emit
from ..transactions import ON_COMMIT, in_transaction
from . import lookup, options
from .compat import BaseTaskBackend, InvalidTask, InvalidTaskBackend, task_backends, task_enqueued
from .registration import adopt, known, priority_class, register
from .result_records import READY, ResultRecord, Results
from .stored import CONTEXT, Facts, Head, change, new_result_id, plain, result_of
from .task import DelayQTask, like

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..scheduling.verbs import JobHandle
    from .registration import FrameworkTask
    from .stored import AnyResult
    from .task import AnyTask

logger: Final = logging.getLogger("django_delayq.tasks")
#: outcomes of a handle whose job is not in Redis (yet)
_NOT_IN_REDIS: Final = (ON_COMMIT, ScheduleOutcome.OUTBOX)
_EVERY_QUEUE: Final[list[str]] = []


@dataclass(frozen=True, slots=True)
class _Call:
    """Checked call of ``enqueue()``.

    Attributes:
        task: the registered task.
        head: constant part of the result.
        options: options of the job.
        result: the result that the caller gets.
    """

    task: FrameworkTask
    head: Head
    options: dict[str, Any]
    result: AnyResult


class DelayQBackend(BaseTaskBackend):
    """Backend that runs Django's Tasks as jobs of django_delayq.

    One is created in each thread, while task modules are imported, so it holds only its settings.
    """

    task_class = DelayQTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.given_queues = params.get("QUEUES", ["default"])
        usable = isinstance(self.given_queues, (list, tuple, set, frozenset)) and all(
            isinstance(name, str) for name in self.given_queues
        )
        # check() reports errors: an exception here would end the import of a task module, and hide the check.
        super().__init__(alias, {**params, "QUEUES": self.given_queues if usable else _EVERY_QUEUE})

    @cached_property
    def settings(self) -> options.BackendOptions:
        """Validated ``OPTIONS``.

        Raises:
            InvalidTaskBackend: they are invalid.
        """
        try:
            return options.BackendOptions.read(f"TASKS[{self.alias!r}]['OPTIONS']", self.options)
        except Misconfigured as error:
            raise InvalidTaskBackend(str(error)) from None

    def settings_or_defaults(self) -> options.BackendOptions:
        """Return ``OPTIONS``, or the defaults while they are invalid."""
        try:
            return self.settings
        except InvalidTaskBackend:
            return options.BackendOptions()

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return the errors in the settings of this backend (``delayq.E040`` …)."""
        from .checking import messages

        return list(messages(self))

    # --- enqueue

    def validate_task(self, task: AnyTask) -> None:
        """Validate a task, as the framework requires.

        ``run_after`` may also be a ``timedelta``, which counts from ``enqueue()`` on.

        Raises:
            InvalidTask: the task cannot be run here; the message says why.
        """
        after: object = task.run_after
        if isinstance(after, timedelta):
            if after < timedelta(0):
                raise InvalidTask(f"run_after must not be in the past, got {after}")
            super().validate_task(like(task, run_after=None))
        elif after is None or isinstance(after, datetime):
            super().validate_task(task)
        else:
            raise InvalidTask(f"run_after must be a datetime or a timedelta, not {type(after).__name__}")
        try:
            check_queue_name(task.queue_name)
        except InvalidJob as error:
            raise InvalidTask(str(error)) from None
        register(task, self.settings_or_defaults().of)

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Schedule the task; inside a transaction, when it commits.

        Raises:
            InvalidTask, InvalidTaskBackend: see :meth:`validate_task` and :attr:`settings`.
            TypeError: the function cannot be called with these arguments.
            TypeError, ValueError: an argument has no form in JSON.
            QueueFull, QueuePaused, QueueUnavailable: Redis refused the job or is unreachable. After a commit these are
                logged and signalled instead.
        """
        call = self._call(task, args, kwargs)
        handle = schedule_call(call.task, tuple(call.head.args), call.head.kwargs, call.options)
        if in_transaction(handle.using_db):
            transaction.on_commit(partial(self._announce, call, handle), using=handle.using_db, robust=True)
        else:
            self._announce(call, handle)
        return call.result

    def _call(self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]) -> _Call:
        """Return a checked call."""
        self.validate_task(task)
        settings = self.settings
        registered = known(task.func)
        if registered is None:
            raise InvalidTask(f"{task.module_path} cannot be enqueued before Django's apps are loaded")
        now = timezone.now()
        after: Any = task.run_after
        run_after = now + after if isinstance(after, timedelta) else after
        facts = Facts(backend=self.alias, priority=task.priority, enqueued_at=now, run_after=run_after)
        head = Head(
            task=registered.name, queue=task.queue_name, args=plain(list(args)), kwargs=plain(dict(kwargs)), facts=facts
        )
        durable = durability.is_durable(registered, {}, task.queue_name)
        ident = new_result_id(task.queue_name, durable=durable)
        job_options = {
            "id": ident,
            "queue": task.queue_name,
            "priority": priority_class(task.priority),
            "on_conflict": "ignore",
            "durable": durable,
            "context": {CONTEXT: facts.dump()},
            "using_db": settings.using_db,
            **({"delay": after} if isinstance(after, timedelta) else {"at": after} if after is not None else {}),
        }
        return _Call(registered, head, job_options, result_of(ident, head, ResultRecord(), status=READY))

    def _announce(self, call: _Call, handle: JobHandle) -> None:
        """Create the record of a stored job, and send the framework's signal."""
        if handle.outcome == ScheduleOutcome.NOT_SENT:
            return  # logged and signalled already
        if handle.outcome not in _NOT_IN_REDIS:
            try:
                producer.call_briefly(partial(self._create_record, call, handle))
            except DelayQError as error:  # the job itself has all that its record has while it is live
                message = "%s: the result of task %s could not be prepared: %s"
                logger.warning(message, call.result.id, call.head.task, error)
        self._send_signal(call)

    def _create_record(self, call: _Call, handle: JobHandle, broker: DjangoBroker) -> None:
        wait = max(0.0, (handle.due - datetime.now(UTC)).total_seconds())
        ttl_ms = int((self.settings.result_ttl + wait) * 1000)
        Results(broker).create(call.result.id, call.head.pack(), ttl_ms)

    def _send_signal(self, call: _Call) -> None:
        emit(task_enqueued, type(self), task_result=call.result)

    # --- results

    def get_result(self, result_id: str) -> AnyResult:
        """Return the current result, read from Redis on each call.

        Raises:
            TaskResultDoesNotExist: there is no such result, it has expired, or its transaction has not committed.
            QueueUnavailable: Redis is unreachable.
        """
        return self._with_known_alias(lookup.find(result_id))

    def _with_known_alias(self, result: AnyResult) -> AnyResult:
        if result.backend not in task_backends.settings:  # the alias was removed; refresh() needs one that exists
            change(result, backend=self.alias, task=like(result.task, backend=self.alias))
        return result


def backend_of(alias: str) -> tuple[type[DelayQBackend], options.BackendOptions]:
    """Return class and options of the backend that a job came from; the defaults, if no backend has that name."""
    try:
        backend: object = task_backends[alias]
    except InvalidTaskBackend:
        backend = None
    if isinstance(backend, DelayQBackend):
        return type(backend), backend.settings_or_defaults()
    return DelayQBackend, options.BackendOptions()


def adopt_tasks(modules: Iterable[str]) -> None:
    """Register the Tasks of these modules for workers, if ``TASKS`` has a backend of this package.

    See :func:`adopt`.
    """
    own = {backend.alias: backend for backend in _own_backends()}
    if own:
        first = next(iter(own.values()))
        adopt(modules, lambda task: own.get(task.backend, first).settings_or_defaults().of)


def _own_backends() -> list[DelayQBackend]:
    backends: list[Any] = []
    for alias in task_backends:
        with contextlib.suppress(InvalidTaskBackend):  # Django's own check reports the error in that one
            backends.append(task_backends[alias])
    return [backend for backend in backends if isinstance(backend, DelayQBackend)]
