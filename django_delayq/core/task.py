"""Tasks: registered callables with a name and a policy. The registry is where a worker looks a name up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

from .errors import InvalidJob, Misconfigured
from .inputs import check_choice, check_id, check_int, check_queue_name, check_seconds, check_task_name, short, suggest
from .options import (
    ACKS,
    CONFLICTS,
    DEFAULT_MAX_PAYLOADS,
    DUE_POLICIES,
    MAX_BATCH,
    MISSED,
    OPTION_NAMES,
    PAYLOAD_POLICIES,
    SCORE_POLICIES,
    TaskOptions,
)
from .records.keys import MAX_SHARDS

# Whoever speaks of tasks finds here what belongs to them, the checks of names and options included.
__all__ = [
    "ACKS",
    "CONFLICTS",
    "DEFAULT_MAX_PAYLOADS",
    "DUE_POLICIES",
    "MAX_BATCH",
    "MAX_SHARDS",
    "MISSED",
    "OPTION_NAMES",
    "PAYLOAD_POLICIES",
    "SCORE_POLICIES",
    "Registry",
    "Task",
    "TaskOptions",
    "check_choice",
    "check_id",
    "check_int",
    "check_queue_name",
    "check_seconds",
    "check_task_name",
    "registry",
    "short",
    "suggest",
]

_MANY: Final = 1 << 30


class Task:
    """A registered callable. Calling it runs the function here and now.

    Attributes:
        name: what is stored in a job; never an import path that the worker would follow.
        func: the function itself.
        options: its policy.
        is_async: whether ``func`` is an ``async def``.
        listener: called with the name of an event and what belongs to it, for each run of its jobs (the events of
            ``worker.Hooks.notify``); None for a task that need not know.
    """

    listener: Callable[..., None] | None = None

    def __init__(self, func: Callable[..., Any], *, name: str, options: TaskOptions | None = None) -> None:
        if not callable(func):
            raise Misconfigured(f"task {short(name)}: {short(func)} is not callable")
        if isinstance(func, Task):
            raise Misconfigured(f"{func!r} is a task already; one @task is enough")
        check_is_no_generator(func)
        try:
            self.name = check_task_name(name)
        except InvalidJob as error:
            raise Misconfigured(str(error)) from None
        self.func = func
        self.options = options if options is not None else TaskOptions()
        self.is_async = inspect.iscoroutinefunction(func)
        self._signature: inspect.Signature | None = None
        self._required, self._positional = _plain_arity(func)
        self._check_arity()

    def _check_arity(self) -> None:
        """What the worker calls the function with, where no caller chooses the arguments."""
        if self.options.merge and not (self._required <= 1 and self._positional in (1, _MANY)):
            raise Misconfigured(
                f"task {self.name}: the function of a merged task takes exactly one positional argument, the dict "
                f"{{id: [payload, …]}}; {_where(self)} takes {inspect.signature(self.func)}"
            )
        if self.options.recurring and self._required > 0:
            raise Misconfigured(
                f"task {self.name}: a recurring task is called without arguments; give those of {_where(self)} defaults"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.options.queue}>"

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the arguments that can be given by position."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return tuple(name for name, one in inspect.signature(self.func).parameters.items() if one.kind in kinds)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` unchanged, if the function can be called with them.

        Raises:
            TypeError: it cannot; the message names the task.
        """
        if not kwargs and self._required <= len(args) <= self._positional:
            return args, kwargs
        if self._signature is None:
            self._signature = inspect.signature(self.func)
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self.name}: {error} (its arguments are {self._signature})") from None
        return args, kwargs


def check_is_no_generator(func: Callable[..., Any]) -> None:
    """Refuse a function whose call would end at once and well, without a line of it having run.

    Raises:
        Misconfigured: it is a generator, of coroutines or not.
    """
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise Misconfigured(
            f"{func.__qualname__} is a generator, so a call would run nothing of it; take the `yield` out, or make a "
            f"task of a function that loops over it"
        )


def _plain_arity(func: Callable[..., Any]) -> tuple[int, int]:
    """``(fewest, most)`` plain positional arguments that surely fit, or ``(1, 0)`` when only a real bind can tell."""
    required = positional = 0
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError) as error:
        raise Misconfigured(f"{short(func)} has no signature to check arguments against; wrap it in a def") from error
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional += 1
            required += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional = _MANY
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            return 1, 0
    return required, positional


class Registry:
    """Tasks by name and by alias."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._aliases: dict[str, Task] = {}

    @property
    def tasks(self) -> dict[str, Task]:
        """A copy: registered name → task, without aliases."""
        return dict(self._tasks)

    def add(self, task: Task) -> None:
        """Register ``task`` under its name and its aliases. The same function again replaces itself (re-import).

        Raises:
            Misconfigured: the name or an alias belongs to another function.
        """
        for name in (task.name, *task.options.aliases):
            other = self._tasks.get(name) or self._aliases.get(name)
            if other is not None and not _same_function(other, task):
                raise Misconfigured(
                    f"task name {name!r} is taken by {_where(other)}; {_where(task)} needs a name of its own "
                    f'(@task(name="…"))'
                )
        known = self._tasks.get(task.name)
        if known is not None:
            for alias in known.options.aliases:
                self._aliases.pop(alias, None)
        self._tasks[task.name] = task
        for alias in task.options.aliases:
            self._aliases[alias] = task

    def remove(self, task: Task) -> None:
        """Forget ``task``, if it is registered."""
        if self._tasks.get(task.name) is task:
            del self._tasks[task.name]
            for alias in task.options.aliases:
                self._aliases.pop(alias, None)

    @property
    def names(self) -> list[str]:
        """All names under which a task can be found: registered ones and aliases."""
        return [*self._tasks, *self._aliases]

    def get(self, name: str) -> Task | None:
        """The task of that name or alias, or None."""
        return self._tasks.get(name) or self._aliases.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks or name in self._aliases

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)


def _same_function(one: Task, two: Task) -> bool:
    a, b = one.func, two.func
    if a is b:
        return True
    where = (getattr(a, "__module__", None), getattr(a, "__qualname__", None))
    return where == (getattr(b, "__module__", None), getattr(b, "__qualname__", None)) and None not in where


def _where(task: Task) -> str:
    return f"{getattr(task.func, '__module__', '?')}.{getattr(task.func, '__qualname__', '?')}"


#: the process's own registry: ``@task`` adds to it, workers look jobs up in it
registry: Final = Registry()
