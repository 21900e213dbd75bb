"""Lookup of the task and the job that a caller refers to."""

from __future__ import annotations

from ..core.errors import InvalidJob
from ..core.inputs import check_id, check_queue_name, short, suggest
from ..core.task import Task, registry
from ..outbox.row_verbs import Target
from ..settings.conf import check_installed, conf
from .handle import JobHandle


def find_task(task: Task | str) -> Task:
    """Return the registered task, given itself or its name.

    Raises:
        InvalidJob: it is not a task; the message says what to do.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        registered = registry.get(task)
        if registered is None:
            raise InvalidJob(f"no task is named {short(task)}.{suggest(task, registry.tasks)}")
        return registered
    if hasattr(task, "enqueue"):
        raise InvalidJob(f"{short(task)} is a task of Django's framework: call its enqueue(…)")
    if callable(task):
        name = getattr(task, "__qualname__", None) or short(task)
        raise InvalidJob(f"{name} is not a task; put @task (from django_delayq import task) above it")
    raise InvalidJob(f"expected a task or the name of one, got {short(task)}")


def find_job(
    target: JobHandle | Task | str | None,
    id: str | int | None,
    task: Task | str | None,
    queue: str | None,
    using_db: str | None = None,
) -> Target:
    """Return the job that the arguments of :func:`django_delayq.cancel` identify.

    Raises:
        TypeError: it is identified twice.
        InvalidJob: it is not identified, or the value is not a valid name.
        Misconfigured: the app is not in ``INSTALLED_APPS``.
    """
    check_installed()
    if isinstance(target, JobHandle):
        if id is not None or task is not None or queue is not None:
            raise TypeError("a handle identifies its job completely; give the handle alone")
        using_db = using_db or target.using_db
        return Target(target.queue, target.id, target.task, _name(target.task), using_db, target.durable, handle=target)
    if target is not None and id is not None:
        if task is not None:
            raise TypeError("give the task once")
        task = target
    elif isinstance(target, Task):
        raise InvalidJob(f"which job of {target.name}? Give its id= too")
    elif target is not None:
        id = target
    if id is None:
        raise InvalidJob("which job? Give a handle, or an id= with a task or queue=")
    registered = find_task(task) if task is not None else None
    if queue is not None:
        place = check_queue_name(queue)
    elif registered is not None:
        place = registered.options.queue
    else:
        place = conf().task_defaults.get("queue", "default")
    return Target(place, check_id(id), registered, _name(registered), using_db)


def _name(task: Task | None) -> str:
    """Return the name that a live job must have; "" = any, because jobs of a renamed task also have the old name."""
    return "" if task is None or task.options.aliases else task.name
