"""From Django's Tasks to registered tasks of the queue: the name that jobs store, and what a worker calls."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final

from django.apps import apps

from ..core import task as core
from ..core.errors import Misconfigured
from ..core.job import PRIORITIES
from ..scheduling.decorators import task_name
from .compat import InvalidTask, Task
from .options import build
from .task import AnyTask

logger: Final = logging.getLogger("django_delayq.tasks")

_LOWEST: Final = -100
_HIGHEST: Final = 100
_lock: Final = threading.RLock()
_known: Final[dict[Callable[..., Any], FrameworkTask]] = {}
#: decorated while Django's apps were loaded
_early: Final[list[AnyTask]] = []


class FrameworkTask(core.Task):
    """A registered task whose function was decorated with the framework's ``@task``. It hears of its own runs.

    Attributes:
        task: the framework's Task, as it was decorated.
        said: the options that it was made of.
    """

    def __init__(self, task: AnyTask, name: str, options: core.TaskOptions, said: Mapping[str, Any]) -> None:
        self.task = task
        self.said = said
        self.listener = _listener(self)
        super().__init__(_performer(self), name=name, options=options)


def priority_class(priority: float) -> int:
    """The queue's class of a priority of the framework: -100 … 100 to 7 … 0, and 0 to 4, the default of both."""
    return round((_HIGHEST - priority) * (PRIORITIES - 1) / (_HIGHEST - _LOWEST))


def register(task: AnyTask, options_of: Callable[..., dict[str, Any]]) -> FrameworkTask | None:
    """The registered task of this Task's function, made now if there is none, or its own backend says otherwise now.

    Arguments:
        options_of: what the settings say about the task of these names.

    Returns:
        None while Django's apps are loaded: the name begins with the app's label, which nobody knows yet. It is
        registered by :func:`adopt` then.

    Raises:
        InvalidTask: an unknown or wrong option, or another function has the name.
    """
    if not apps.apps_ready:
        _early.append(task)
        return None
    what = f"@task {task.module_path}"
    with _lock:
        known = _known.get(task.func)
        if known is not None and known.task.backend != task.backend:
            return known  # a worker has one policy for a task: that of the backend it was made for, not of using()
        try:
            by_default = task_name(task.func)
            said = {**options_of(by_default, task.module_path), **getattr(task, "options", {})}
            if known is not None and known.said == said:
                return known
            first = known.task if known is not None else task
            options = build(said, what, queue=first.queue_name, priority=priority_class(first.priority))
            made = FrameworkTask(first, said.get("name") or by_default, options, said)
            if known is not None and known.name != made.name:
                core.registry.remove(known)
            core.registry.add(made)  # in one step, where the name is the same: a worker may look it up now
        except Misconfigured as error:
            raise InvalidTask(str(error)) from None
        _known[task.func] = made
        return made


def known(func: Callable[..., Any]) -> FrameworkTask | None:
    """The registered task of this function."""
    return _known.get(func)


def known_names() -> set[str]:
    """What options of single tasks may be given by: registered names, those by default among them, and module paths."""
    with _lock:
        tasks = list(_known.values())
    return {name for one in tasks for name in (one.name, task_name(one.task.func), one.task.module_path)}


def adopt(modules: Iterable[str], options_of: Callable[[AnyTask], Callable[..., dict[str, Any]]]) -> None:
    """Register what could not be before: Tasks from the time before the apps were known, and those of other backends.

    ``using(backend=…)`` may bring any Task of these modules here, and a worker has to know it then.

    Arguments:
        options_of: gives for a Task what the settings say of it.
    """
    while _early:
        task = _early.pop(0)  # the decorated one comes before those of using()
        register(task, options_of(task))
    for name in modules:
        for value in list(vars(sys.modules[name]).values()):
            if isinstance(value, Task) and value.func not in _known:
                try:
                    register(value, options_of(value))
                except InvalidTask as error:
                    logger.warning("%s cannot be run by django_delayq: %s", value.module_path, error)


def _listener(registered: FrameworkTask) -> Callable[..., None]:
    from . import listening

    return functools.partial(listening.heard, registered)


def _performer(registered: FrameworkTask) -> Callable[..., Any]:
    """What a worker calls: the function, its context in front, what it returns checked."""
    from . import attempts

    func, lead = registered.task.func, registered.task.takes_context

    def perform(*args: Any, **kwargs: Any) -> Any:
        attempt = attempts.current(registered)
        return attempt.returned(func(*attempt.lead(lead), *args, **kwargs))

    async def aperform(*args: Any, **kwargs: Any) -> Any:
        attempt = attempts.current(registered)
        return attempt.returned(await func(*attempt.lead(lead), *args, **kwargs))

    called: Callable[..., Any] = aperform if iscoroutinefunction(func) else perform
    functools.update_wrapper(called, func)
    signature = inspect.signature(func)
    # Callers give the arguments without the context.
    parameters = list(signature.parameters.values())[1 if lead else 0 :]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called
