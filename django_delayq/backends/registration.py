"""Registration of Django's Tasks as tasks of the queue: the names that jobs store, and the functions for workers."""

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
from ..scheduling.tasks import task_name
from .compat import InvalidTask, Task
from .options import build
from .task import AnyTask

logger: Final = logging.getLogger("django_delayq.tasks")

_LOWEST: Final = -100
_HIGHEST: Final = 100
_lock: Final = threading.RLock()
_known: Final[dict[Callable[..., Any], FrameworkTask]] = {}
#: Tasks that were decorated while Django's apps were loading
_deferred: Final[list[AnyTask]] = []


class FrameworkTask(core.Task):
    """Registered task whose function was decorated with the framework's ``@task``. Listens to its own attempts.

    Attributes:
        task: the framework's Task, as it was decorated.
        given: the options that it was built from.
    """

    def __init__(self, task: AnyTask, name: str, options: core.TaskOptions, given: Mapping[str, Any]) -> None:
        self.task = task
        self.given = given
        self.listener = _event_handler(self)
        super().__init__(_worker_function(self), name=name, options=options)


def priority_class(priority: float) -> int:
    """Return the queue's class of a framework priority: -100 … 100 maps to 7 … 0, and 0 to the default, 4."""
    return round((_HIGHEST - priority) * (PRIORITIES - 1) / (_HIGHEST - _LOWEST))


def register(task: AnyTask, options_of: Callable[..., dict[str, Any]]) -> FrameworkTask | None:
    """Return the registered task of this Task's function.

    It is created if there is none, or if the options of its own backend have changed.

    Args:
        options_of: returns the options in the settings for the task of these names.

    Returns:
        None while Django's apps are loading: the name begins with the app's label, which is unknown until then.
        :func:`adopt` registers the task later.

    Raises:
        InvalidTask: an unknown or invalid option, or another function has the name.
    """
    if not apps.apps_ready:
        _deferred.append(task)
        return None
    what = f"@task {task.module_path}"
    with _lock:
        earlier = _known.get(task.func)
        if earlier is not None and earlier.task.backend != task.backend:
            return earlier  # a worker has one policy for a task: that of the backend it was made for, not of using()
        try:
            by_default = task_name(task.func)
            given = {**options_of(by_default, task.module_path), **getattr(task, "options", {})}
            if earlier is not None and earlier.given == given:
                return earlier
            first = earlier.task if earlier is not None else task
            options = build(given, what, queue=first.queue_name, priority=priority_class(first.priority))
            registered = FrameworkTask(first, given.get("name") or by_default, options, given)
            if earlier is not None and earlier.name != registered.name:
                core.registry.remove(earlier)
            core.registry.add(registered)  # one step if the name is the same, because a worker may look it up now
        except Misconfigured as error:
            raise InvalidTask(str(error)) from None
        _known[task.func] = registered
        return registered


def known(func: Callable[..., Any]) -> FrameworkTask | None:
    """Return the registered task of this function."""
    return _known.get(func)


def known_names() -> set[str]:
    """Return the names that options of single tasks may use: registered names, default names and module paths."""
    with _lock:
        tasks = list(_known.values())
    return {name for one in tasks for name in (one.name, task_name(one.task.func), one.task.module_path)}


def adopt(modules: Iterable[str], options_of: Callable[[AnyTask], Callable[..., dict[str, Any]]]) -> None:
    """Register Tasks that could not be registered before: those decorated early, and those of other backends.

    ``using(backend=…)`` may send any Task of these modules here, and then a worker needs it.

    Args:
        options_of: returns, for a Task, the function that gives its options in the settings.
    """
    while _deferred:
        task = _deferred.pop(0)  # the decorated one is first, before those of using()
        register(task, options_of(task))
    for name in modules:
        for value in list(vars(sys.modules[name]).values()):
            if isinstance(value, Task) and value.func not in _known:
                try:
                    register(value, options_of(value))
                except InvalidTask as error:
                    logger.warning("%s cannot be run by django_delayq: %s", value.module_path, error)


def _event_handler(registered: FrameworkTask) -> Callable[..., None]:
    from . import listening

    return functools.partial(listening.handle_event, registered)


def _worker_function(registered: FrameworkTask) -> Callable[..., Any]:
    """Return the function that a worker calls: it adds the context argument and checks the return value."""
    from . import attempts

    func, takes_context = registered.task.func, registered.task.takes_context

    def perform(*args: Any, **kwargs: Any) -> Any:
        attempt = attempts.current(registered)
        return attempt.check_value(func(*attempt.context_args(takes_context), *args, **kwargs))

    async def aperform(*args: Any, **kwargs: Any) -> Any:
        attempt = attempts.current(registered)
        return attempt.check_value(await func(*attempt.context_args(takes_context), *args, **kwargs))

    function: Callable[..., Any] = aperform if iscoroutinefunction(func) else perform
    functools.update_wrapper(function, func)
    signature = inspect.signature(func)
    # Callers pass the arguments without the context.
    parameters = list(signature.parameters.values())[1 if takes_context else 0 :]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function
