"""``@task``: makes a registered task of a function, and keeps the function's signature for type checkers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady

from .conf import conf_or_defaults
from .core import task as core
from .core.errors import Misconfigured

if TYPE_CHECKING:
    from .scheduling import JobHandle

P = ParamSpec("P")
R = TypeVar("R")

#: options of DESIGN's interface whose machinery comes with a later release: refused, never silently ignored
LATER_OPTIONS = ("merge", "batch_size", "max_payloads", "payloads", "score_policy", "expires")


class Task(core.Task, Generic[P, R]):
    """A task of this Django project. Calling it runs the function at once; :meth:`schedule` stores a job."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Schedule a run with these arguments as soon as a worker is free. All arguments go to the function."""
        from .scheduling import schedule_call

        return schedule_call(self, args, kwargs, {})

    def using(self, **options: Any) -> Using[P]:
        """``task.using(delay=60, id="x").schedule(…)``: the options of :func:`django_delayq.schedule`, checked now.

        Raises:
            TypeError: unknown option.
        """
        from .scheduling import check_option_names

        check_option_names(options)
        return Using(self, options)


class Using(Generic[P]):
    """A task with schedule options, waiting for its arguments."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: Task[P, Any], options: dict[str, Any]) -> None:
        self._task = task
        self._options = options

    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Schedule a run with these arguments. All arguments go to the function."""
        from .scheduling import schedule_call

        return schedule_call(self._task, args, kwargs, self._options)


@overload
def task(func: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(*, name: str | None = None, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(func: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Register a function as a task: ``@task`` or ``@task(queue="orders", max_attempts=5, timeout=30)``.

    Arguments:
        name: what jobs store; default ``"app_label.function"``. Give one when two functions of one app share a name.
        options: fields of :class:`django_delayq.core.task.TaskOptions`; they win over ``DELAYQ["TASK_DEFAULTS"]``.

    Raises:
        Misconfigured: an unknown or wrong option, or the name is taken by another function.
    """

    def decorate(func: Callable[..., Any]) -> Task[..., Any]:
        where = f"@task {getattr(func, '__module__', '?')}.{getattr(func, '__qualname__', func)}"
        for option in options:
            if option in LATER_OPTIONS:
                raise Misconfigured(f"{where}: the option {option!r} is not available in this release")
        if options.get("on_conflict") == "merge":
            raise Misconfigured(f'{where}: on_conflict="merge" is for merged tasks; use replace, ignore or error')
        chosen = core.TaskOptions.build({**conf_or_defaults().task_defaults, **options}, what=where)
        made: Task[..., Any] = Task(func, name=name if name is not None else task_name(func), options=chosen)
        functools.update_wrapper(made, func)
        core.registry.add(made)
        return made

    if func is None:
        return decorate
    if not callable(func):
        raise Misconfigured(f"@task takes options by keyword only: @task(name=…), got {core.short(func)}")
    return decorate(func)


def task_name(func: Callable[..., Any]) -> str:
    """``app_label.function``, or ``module.function`` for a module outside the installed apps.

    Raises:
        Misconfigured: the installed apps are not known yet, so the name would depend on the order of imports.
    """
    module = getattr(func, "__module__", None) or "__main__"
    qualname: str = getattr(func, "__qualname__", "") or type(func).__qualname__
    function = qualname.rpartition("<locals>.")[2]
    try:
        app = apps.get_containing_app_config(module)
    except AppRegistryNotReady:
        raise Misconfigured(
            f"@task on {module}.{function}: Django's apps are not loaded yet, so the task's name cannot be found. "
            f"Move it to the app's tasks module, or give it a name: @task(name={function!r})"
        ) from None
    return f"{app.label if app is not None else module}.{function}"
