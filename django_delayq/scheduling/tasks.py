"""Decorator ``@task``, which turns a function into a registered task and keeps its signature for type checkers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady

from ..core import task as core
from ..core.errors import Misconfigured
from ..core.inputs import short
from ..settings.conf import conf_or_defaults
from .verbs import JobHandle, awaitable, schedule_call

P = ParamSpec("P")
R = TypeVar("R")
#: argument of a merged task's function: ``{id: [payload, …]}``, payloads in the order of their scores
Payloads = dict[str, list[Any]]


class _WithOptions:
    def __init__(self, task: core.Task, options: dict[str, Any]) -> None:
        core.check_option_names(options, task)
        self._task = task
        self._options = options


class Using(_WithOptions, Generic[P]):
    """Task with schedule options, ready to be scheduled with its arguments."""

    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Schedule a job with these arguments, due now unless an option says otherwise.

        All arguments are passed to the function.
        """
        return schedule_call(self._task, args, kwargs, self._options)

    aschedule = awaitable(schedule)


class MergedUsing(_WithOptions):
    """Merged task with schedule options, ready to be scheduled with an id and a payload."""

    def schedule(
        self, id: str | int, payload: object = None, *, score: float | Decimal | str | None = None
    ) -> JobHandle:
        """Add a payload to the job waiting under ``id``, due now unless an option says otherwise.

        See :func:`django_delayq.schedule`.
        """
        options = {**self._options, "id": id, "payload": payload}
        return schedule_call(self._task, (), {}, options if score is None else {**options, "score": score})

    aschedule = awaitable(schedule)


class _Registered(core.Task):
    """Task that can be scheduled as it is, without options."""

    def __init__(self, func: Callable[..., Any], *, name: str, options: core.TaskOptions | None = None) -> None:
        super().__init__(func, name=name, options=options)
        self._task: core.Task = self
        self._options: dict[str, Any] = {}


class Task(_Registered, Using[P], Generic[P, R]):
    """Task of this Django project. Calling it runs the function at once; :meth:`schedule` stores a job."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def using(self, **options: Any) -> Using[P]:
        """Return the task with schedule options: ``task.using(delay=60, id="x").schedule(…)``.

        The options are those of :func:`django_delayq.schedule` and are checked now.

        Raises:
            TypeError: unknown option.
            InvalidJob: an option that plain tasks do not have.
        """
        return Using(self, options)


class MergedTask(_Registered, MergedUsing, Generic[R]):
    """Task whose jobs are merged by their ids until they run: ``@task(merge=True)``."""

    if TYPE_CHECKING:

        def __call__(self, payloads_by_id: Payloads, /) -> R: ...

    def using(self, **options: Any) -> MergedUsing:
        """Return the task with schedule options: ``task.using(delay=60).schedule(5, {…})``.

        The options are those of :func:`django_delayq.schedule` and are checked now.

        Raises:
            TypeError: unknown option.
            InvalidJob: an option that merged tasks do not have.
        """
        return MergedUsing(self, options)


@overload
def task(func: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *, merge: Literal[True], name: str | None = None, **options: Any
) -> Callable[[Callable[[Payloads], R]], MergedTask[R]]: ...
@overload
def task(
    *, merge: Literal[False] = False, name: str | None = None, **options: Any
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(func: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any) -> Any:
    """Register a function as a task: ``@task`` or ``@task(queue="orders", max_attempts=5, timeout=30)``.

    Args:
        name: name stored in jobs; default ``"app_label.function"``. Set it when two functions of one app share a name.
        options: fields of :class:`django_delayq.core.options.TaskOptions`; they override ``DELAYQ["TASK_DEFAULTS"]``. A
            merged task without ``queue`` gets its own queue, named like the task.

    Raises:
        Misconfigured: an option is unknown or wrong, the name is taken by another function, or the function has no name
            (a lambda).
    """

    def decorate(func: Callable[..., Any]) -> core.Task:
        where = f"@task {getattr(func, '__module__', '?')}.{getattr(func, '__qualname__', func)}"
        called = name if name is not None else task_name(func)
        # Merged jobs are found by their ids, so these must not be shared with the jobs of other tasks.
        own_queue = {"queue": called} if options.get("merge") is True else {}
        chosen = core.TaskOptions.build({**own_queue, **options}, defaults=conf_or_defaults().task_defaults, what=where)
        kind: type[core.Task] = MergedTask if chosen.merge else Task
        new = kind(func, name=called, options=chosen)
        if chosen.recurring:
            from ..worker.recurring import check_recurring

            check_recurring(new)
        functools.update_wrapper(new, func)
        core.registry.add(new)
        return new

    if func is None:
        return decorate
    if not callable(func):
        raise Misconfigured(f"@task takes options by keyword only: @task(name=…), got {short(func)}")
    return decorate(func)


def task_name(func: Callable[..., Any]) -> str:
    """Return ``app_label.function``, or ``module.function`` for a module outside the installed apps.

    Raises:
        Misconfigured: the function has no name of its own, or the installed apps are not known yet, so that the name
            would depend on the order of imports.
    """
    module = getattr(func, "__module__", None) or "__main__"
    function: str = getattr(func, "__qualname__", "").rpartition("<locals>.")[2]
    if not function or "<lambda>" in function:
        kind = "a lambda" if function else f"a {type(func).__qualname__}"
        raise Misconfigured(
            f"@task on {kind} in {module}: it has no name by which a worker could find it. Write it as a def, or give "
            f'it a name: @task(name="…")'
        )
    try:
        app = apps.get_containing_app_config(module)
    except AppRegistryNotReady:
        raise Misconfigured(
            f"@task on {module}.{function}: Django's apps are not loaded yet, so the task's name cannot be found. "
            f"Move it to the app's tasks module, or give it a name: @task(name={function!r})"
        ) from None
    return f"{app.label if app is not None else module}.{function}"
