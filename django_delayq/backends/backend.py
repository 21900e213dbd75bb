"""Backend: ``enqueue()`` schedules a job, ``get_result()`` reads its result."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from django.core.checks import CheckMessage, Error, Warning
from django.db import transaction
from django.utils import timezone

from ..core.errors import DelayQError, InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, short, suggest
from ..core.outcomes import ScheduleOutcome
from ..outbox import durability, producer
from ..scheduling.verbs import schedule_call
from ..settings.conf import SETTING, conf_or_defaults
from ..signals import emit
from ..transactions import ON_COMMIT, in_transaction
from . import results
from .compat import AnyResult, AnyTask, BaseTaskBackend, InvalidTask, InvalidTaskBackend, task_backends, task_enqueued
from .registration import BackendOptions, adopt, known, known_names, priority_class, register

if TYPE_CHECKING:
    from ..scheduling.verbs import JobHandle

logger: Final = logging.getLogger("django_delayq.tasks")


class DelayQBackend(BaseTaskBackend):
    """Backend that runs Django's Tasks as jobs of django_delayq.

    One is created in each thread, while task modules are imported, so it holds only its settings.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.given_queues = params.get("QUEUES", ["default"])
        # check() reports what is no list: an exception here would end the import of a task module, and hide the check.
        super().__init__(alias, {**params, "QUEUES": self.given_queues if _is_list(self.given_queues) else []})

    @cached_property
    def settings(self) -> BackendOptions:
        """Validated ``OPTIONS``.

        Raises:
            InvalidTaskBackend: they are invalid.
        """
        try:
            return BackendOptions.read(f"TASKS[{self.alias!r}]['OPTIONS']", self.options)
        except Misconfigured as error:
            raise InvalidTaskBackend(str(error)) from None

    def settings_or_defaults(self) -> BackendOptions:
        """Return ``OPTIONS``, or the defaults while they are invalid."""
        try:
            return self.settings
        except InvalidTaskBackend:
            return BackendOptions()

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return the errors in the settings of this backend (``delayq.E040`` …)."""
        where, names = f"TASKS[{self.alias!r}]", known_names()
        found = list(_errors_of_queues(self.given_queues, f"{where}['QUEUES']"))
        try:
            unknown = [name for name in self.settings.tasks if name not in names]
        except InvalidTaskBackend as error:
            return [*found, Error(str(error), hint="Correct it: no task can be enqueued until then.", id="delayq.E041")]
        for name in unknown:
            text = f"{where}['OPTIONS']['tasks'] names {short(name)}, which is not a Task.{suggest(name, names)}"
            hint = "Correct the name (its app's label and the function, or its module path), or remove it."
            found.append(Warning(text, hint=hint, id="delayq.W040"))
        return found

    def validate_task(self, task: AnyTask) -> None:
        """Validate a task, as the framework requires.

        ``run_after`` may also be a ``timedelta``, which counts from ``enqueue()`` on.

        Raises:
            InvalidTask: the task cannot be run here; the message says why.
        """
        after: object = task.run_after
        if isinstance(after, timedelta) and after >= timedelta(0):
            super().validate_task(results.like(task, run_after=None))
        elif after is None or isinstance(after, datetime):
            super().validate_task(task)
        else:
            raise InvalidTask(f"run_after must be a datetime, or a timedelta that is not negative; got {short(after)}")
        try:
            check_queue_name(task.queue_name)
        except InvalidJob as error:
            raise InvalidTask(str(error)) from None
        register(task, self.settings_or_defaults())

    def enqueue(self, task: AnyTask, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Schedule the task; inside a transaction, when it commits.

        Raises:
            InvalidTask, InvalidTaskBackend: see :meth:`validate_task` and :attr:`settings`.
            TypeError: the function cannot be called with these arguments.
            TypeError, ValueError: an argument has no form in JSON.
            QueueFull, QueuePaused, QueueUnavailable: Redis refused the job or is unreachable. After a commit these are
                logged and signalled instead.
        """
        self.validate_task(task)
        settings, registered = self.settings, known(task.func)
        if registered is None:
            raise InvalidTask(f"{task.module_path} cannot be enqueued before Django's apps are loaded")
        now, after = timezone.now(), task.run_after
        run_after = now + after if isinstance(after, timedelta) else after
        facts = (self.alias, task.priority, now.isoformat(), run_after.isoformat() if run_after is not None else None)
        request = {
            **dict(zip(results.FACTS, facts, strict=True)),
            "task": registered.name,
            "queue": task.queue_name,
            "args": results.plain(list(args)),
            "kwargs": results.plain(dict(kwargs)),
        }
        durable = durability.is_durable(registered, {}, task.queue_name)
        result = results.result_of(results.new_result_id(durable=durable), request)
        options = {
            "id": result.id,
            "queue": task.queue_name,
            "priority": priority_class(task.priority),
            "on_conflict": "ignore",
            "durable": durable,
            "context": {results.CONTEXT: facts},
            "using_db": settings.using_db,
        }
        if after is not None:
            options["delay" if isinstance(after, timedelta) else "at"] = after
        handle = schedule_call(registered, tuple(request["args"]), request["kwargs"], options)
        announce = partial(self._announce, result, json.dumps(request), handle)
        if in_transaction(handle.using_db):
            transaction.on_commit(announce, using=handle.using_db, robust=True)
        else:
            announce()
        return result

    def _announce(self, result: AnyResult, request: str, handle: JobHandle) -> None:
        """Create the record of a stored job, and send the framework's signal."""
        if handle.outcome == ScheduleOutcome.NOT_SENT:
            return  # logged and signalled already
        if handle.outcome not in (ON_COMMIT, ScheduleOutcome.OUTBOX):  # Redis has the job
            wait = max(0.0, (handle.due - datetime.now(UTC)).total_seconds())
            ttl_ms = int((self.settings.result_ttl + wait) * 1000)
            fields = {"head": request, "state": results.READY.value}
            create = partial(results.write, ident=result.id, verb="create", ttl_ms=ttl_ms, fields=fields)
            try:
                producer.call_briefly(create)
            except DelayQError as error:  # the job itself has all that its record has while it is live
                logger.warning("%s: the result of a task could not be prepared: %s", result.id, error)
        emit(task_enqueued, type(self), task_result=result)

    def get_result(self, result_id: str) -> AnyResult:
        """Return the current result, read from Redis on each call.

        Raises:
            TaskResultDoesNotExist: there is no such result, it has expired, or its transaction has not committed.
            QueueUnavailable: Redis is unreachable.
        """
        return results.find(result_id)


def _is_list(given: object) -> bool:
    return isinstance(given, (list, tuple, set, frozenset))


def _errors_of_queues(given: Any, where: str) -> Iterator[CheckMessage]:
    if not _is_list(given):
        yield Error(
            f"{where} must be a list of queue names, got {short(given)}.",
            hint="Give a list like ['default']; [] takes every name.",
            id="delayq.E040",
        )
        return
    for name in sorted(given, key=str):
        try:
            check_queue_name(name)
        except InvalidJob as error:
            yield Error(f"{where}: {error}.", hint="Give the queue another name.", id="delayq.E040")
            continue
        if conf_or_defaults().queue(name).kind == "pull":
            yield Error(
                f"{where} names {name!r}, which is of kind 'pull' in {SETTING}['QUEUES']: no worker runs its tasks.",
                hint="Give the tasks another queue, or make this one of kind 'python'.",
                id="delayq.E042",
            )


def backend_of(alias: str) -> tuple[type[DelayQBackend], BackendOptions]:
    """Return class and options of the backend that a job came from; the defaults, if no backend has that name."""
    with contextlib.suppress(InvalidTaskBackend):
        if isinstance(backend := task_backends[alias], DelayQBackend):
            return type(backend), backend.settings_or_defaults()
    return DelayQBackend, BackendOptions()


def adopt_tasks(modules: Iterable[str]) -> None:
    """Register the Tasks of these modules for workers, if ``TASKS`` has a backend of this package.

    See :func:`adopt`.
    """
    own: dict[str, BackendOptions] = {}
    for alias in task_backends:
        with contextlib.suppress(InvalidTaskBackend):  # Django's own check reports the error in that one
            if isinstance(backend := task_backends[alias], DelayQBackend):
                own[alias] = backend.settings_or_defaults()
    if own:
        first = next(iter(own.values()))
        adopt(modules, lambda task: own.get(task.backend, first))
