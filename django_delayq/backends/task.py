"""The Task that ``@task`` of Django's framework makes on this backend: Django's own, and options of ours."""

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
    """A Task with options of django_delayq: ``@task(max_attempts=5, retry_in=60)``.

    Keywords that the framework does not know come here (not on Django 6.0, which refuses them: there
    ``TASKS[alias]["OPTIONS"]["tasks"]`` says the same).

    Attributes:
        options: what the decorator was given beyond the framework's own.
    """

    # Not a part of what makes two tasks equal: it belongs to the function, and may hold what has no hash.
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
        """As the task of its module with the changes of ``using()``: functions have no other stored form."""
        changes = {name: getattr(self, name) for name in ("priority", "backend", "queue_name", "run_after")}
        return _found, (self.module_path, changes)


def _found(path: str, changes: Mapping[str, Any]) -> AnyTask:
    try:
        task = import_string(path)
    except ImportError as error:
        raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
    if not isinstance(task, Task):
        raise ValueError(f"Expected {path!r} to point to a Task instance.")
    return like(task, **changes)


def like(task: AnyTask, **changes: Any) -> AnyTask:
    """A task as this one but for ``changes``, not validated: for what was stored under earlier settings."""
    made = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(made, one.name, changes.get(one.name, getattr(task, one.name)))
    return made
