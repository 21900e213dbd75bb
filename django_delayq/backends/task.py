"""Task that the framework's ``@task`` creates on this backend: Django's Task with options of django_delayq."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from .compat import Task

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
else:
    AnyTask = Task


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class DelayQTask(AnyTask):
    """Task with options of django_delayq: ``@task(max_attempts=5, retry_in=60)``.

    Keywords that the framework does not define are passed on as options. Django 6.0 refuses them: use
    ``TASKS[alias]["OPTIONS"]["tasks"]`` there instead.

    Attributes:
        options: the decorator's arguments beyond the framework's own.
    """

    # Excluded from comparison: it belongs to the function, and may contain values without a hash.
    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __init__(
        self,
        *,
        func: Callable[..., Any],
        priority: int = 0,
        backend: str = "default",
        queue_name: str = "default",
        run_after: datetime | timedelta | None = None,
        takes_context: bool = False,
        options: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        values = {
            "func": func,
            "priority": priority,
            "backend": backend,
            "queue_name": queue_name,
            "run_after": run_after,
            "takes_context": takes_context,
            "options": {**(options or {}), **named},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        AnyTask.__post_init__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it as the task of its module with the changes of ``using()``: functions have no other stored form."""
        changes = {name: getattr(self, name) for name in ("priority", "backend", "queue_name", "run_after")}
        return _task_at, (self.module_path, changes)


def _task_at(path: str, changes: Mapping[str, Any]) -> AnyTask:
    try:
        task = import_string(path)
    except ImportError as error:
        raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
    if not isinstance(task, Task):
        raise ValueError(f"Expected {path!r} to point to a Task instance.")
    return like(task, **changes)


def like(task: AnyTask, **changes: Any) -> AnyTask:
    """Return a copy of this task with ``changes``, not validated, for values stored under earlier settings."""
    copy = object.__new__(type(task))
    for item in fields(task):
        object.__setattr__(copy, item.name, changes.get(item.name, getattr(task, item.name)))
    return copy
