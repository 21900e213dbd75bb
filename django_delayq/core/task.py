"""Tasks, which are registered callables with a name and a policy, and the registry in which workers look them up."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import count
from string import Formatter
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidJob, Misconfigured
from .inputs import check_known, check_task_name, short
from .options import CALL_OPTIONS, OPTIONS, TaskOptions

__all__ = ["Registry", "Task", "TaskOptions", "check_is_no_generator", "registry"]

_MANY: Final = 1 << 30
#: kinds of parameters whose arguments may be given by position
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
#: how other systems call the method that stores a job
_FOREIGN_VERBS: Final = {
    *("delay", "delay_on_commit", "apply_async", "s", "si", "enqueue", "enqueue_in", "enqueue_at", "send"),
    *("send_with_options", "perform_async", "perform_in", "perform_at"),
}


class Task:
    """Registered callable. Calling it runs the function in the calling thread.

    Attributes:
        name: stored in each job; never an import path that the worker would follow.
        func: the function itself.
        options: the policy of the task.
        is_async: True if ``func`` is an ``async def``.
        signature: its parameters.
        arity: (fewest, most) plain positional arguments that fit without a look at the signature; none fit (1, 0).
        listener: called with the name of an event and its data, for each attempt of its jobs (the events of
            ``worker.Hooks.notify``); None = no listener.
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
        try:
            self.signature = inspect.signature(func)
        except (TypeError, ValueError) as error:
            raise Misconfigured(
                f"{short(func)} has no signature to check arguments against; wrap it in a def"
            ) from error
        self.arity = _plain_arity(self.signature)
        self._check_arguments()

    def _check_arguments(self) -> None:
        """Check the signature where the worker, not a caller, chooses the arguments."""
        fewest, most = self.arity
        if self.options.merge and not (fewest <= 1 and most in (1, _MANY)):
            raise Misconfigured(
                f"task {self.name}: the function of a merged task takes exactly one positional argument, the dict "
                f"{{id: [payload, …]}}; {_where(self)} takes {self.signature}"
            )
        if self.options.recurring and fewest > 0:
            raise Misconfigured(
                f"task {self.name}: a recurring task is called without arguments; give those of {_where(self)} defaults"
            )
        if not self.options.merge:
            _check_template("id", self)
            _check_template("group", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _FOREIGN_VERBS:
                own = self.__dict__.get("name", "task")
                raise AttributeError(
                    f"task {own} has no {name}(); call schedule({own.rpartition('.')[2]}, …, delay=…), or its "
                    f"own schedule(…) for a job that is due now"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.options.queue}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the task, then its aliases."""
        return self.name, *self.options.aliases

    @cached_property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the arguments that can be given by position."""
        return tuple(name for name, one in self.signature.parameters.items() if one.kind in _BY_PLACE)

    def check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check that the function can be called with these arguments.

        Raises:
            TypeError: it cannot; the message names the task.
        """
        if kwargs or not self.arity[0] <= len(args) <= self.arity[1]:
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"task {self.name}: {error} (its arguments are {self.signature})") from None


def check_is_no_generator(func: Callable[..., Any]) -> None:
    """Refuse a generator function: calling it would succeed at once without running any of its code.

    Raises:
        Misconfigured: it is a generator function, async or not.
    """
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise Misconfigured(
            f"{func.__qualname__} is a generator, so a call would run nothing of it; take the `yield` out, or make a "
            f"task of a function that loops over it"
        )


def _plain_arity(signature: inspect.Signature) -> tuple[int, int]:
    """Return ``(fewest, most)`` plain positional arguments that fit, or ``(1, 0)`` if a full bind has to decide."""
    required = positional = 0
    for parameter in signature.parameters.values():
        if parameter.kind in _BY_PLACE:
            positional += 1
            required += parameter.default is parameter.empty
        elif parameter.kind is parameter.VAR_POSITIONAL:
            positional = _MANY
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            return 1, 0
    return required, positional


def _check_template(option: str, task: Task) -> None:
    """Check that the arguments of a task can fill a template; raise :class:`Misconfigured` if none can."""
    template: object = getattr(task.options, option)
    parameters = task.signature.parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    if not isinstance(template, str) or inspect.Parameter.VAR_KEYWORD in kinds:
        return
    by_place = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(task.argument_names)
    for name in _names_in(template):
        if not (int(name) < by_place if name.isdigit() else name in parameters):
            raise Misconfigured(
                f"the {option} {short(template)} names no argument {name!r} of {short(task.func)}; it takes "
                f"{', '.join(map(repr, parameters)) or 'none'}"
            )


def _names_in(template: str) -> Iterator[str]:
    """Yield the names and numbers of the arguments in a template, also of those inside formats."""
    numbers = count()
    try:
        for _, field, form, _ in Formatter().parse(template):
            if field is not None:
                yield re.split(r"[.\[]", field, maxsplit=1)[0] or str(next(numbers))
                yield from _names_in(form or "")
    except ValueError as error:
        raise Misconfigured(f"the id {short(template)} is no template ({error}); write it like order-{{pk}}") from None


class Registry:
    """Registry of tasks by name and by alias."""

    def __init__(self) -> None:
        #: name or alias → task
        self._by_name: dict[str, Task] = {}
        #: the same, of those with a limit; replaced whenever it changes
        self.limited: Mapping[str, Task] = {}

    @property
    def tasks(self) -> dict[str, Task]:
        """Mapping from registered name to task, without aliases."""
        return {name: task for name, task in list(self._by_name.items()) if name == task.name}

    def add(self, task: Task) -> None:
        """Register ``task`` under its name and its aliases. The same function replaces itself (re-import).

        Raises:
            Misconfigured: the name or an alias belongs to another function.
        """
        for name in task.names:
            other = self._by_name.get(name)
            if other is not None and not _same_function(other, task):
                raise Misconfigured(
                    f"task name {name!r} is taken by {_where(other)}; {_where(task)} needs a name of its own "
                    f'(@task(name="…"))'
                )
        replaced = self.tasks.get(task.name)
        self._by_name.update(dict.fromkeys(task.names, task))
        if replaced is not None and replaced is not task:
            self._forget(replaced)
        self._note_limited()

    def remove(self, task: Task) -> None:
        """Remove ``task``, if it is registered."""
        self._forget(task)
        self._note_limited()

    def _forget(self, task: Task) -> None:
        for name in task.names:
            if self._by_name.get(name) is task:
                del self._by_name[name]

    def _note_limited(self) -> None:
        # Until nothing changes: another thread may register a task meanwhile.
        while self.limited != (limited := self._read_limited()):
            self.limited = limited

    def _read_limited(self) -> dict[str, Task]:
        every = list(self._by_name.items())
        return {name: task for name, task in every if task.options.limits is not None}

    @property
    def names(self) -> list[str]:
        """All names under which a task can be found: registered ones and aliases."""
        return list(self._by_name)

    def get(self, name: str) -> Task | None:
        """Return the task of that name or alias, or None."""
        return self._by_name.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks.values())

    def __len__(self) -> int:
        return len(self.tasks)


def _same_function(one: Task, two: Task) -> bool:
    a, b = one.func, two.func
    if a is b:
        return True
    where = (getattr(a, "__module__", None), getattr(a, "__qualname__", None))
    return where == (getattr(b, "__module__", None), getattr(b, "__qualname__", None)) and None not in where


def _where(task: Task) -> str:
    return f"{getattr(task.func, '__module__', '?')}.{getattr(task.func, '__qualname__', '?')}"


#: registry of the process: ``@task`` adds to it, workers look jobs up in it
registry: Final = Registry()


# -- options of a schedule call, for a task -------------------------------------------------------------------------


def check_option_names(options: Mapping[str, Any], task: Task | None = None) -> None:
    """Check that all names are schedule options that ``task`` supports.

    Raises:
        TypeError: unknown option.
        InvalidJob: an option that a task of this kind does not have.
    """
    check_known(options, CALL_OPTIONS, "schedule option", TypeError)
    if task is not None:
        check_kind(task, options)


def check_kind(task: Task, options: Mapping[str, Any]) -> None:
    """Check that no option belongs to the other kind of tasks, plain or merged.

    Raises:
        InvalidJob: one does.
    """
    merge = task.options.merge
    for name, value in options.items():
        row = OPTIONS.get(name)
        if row is None or row.job is None:
            continue
        if merge and row.kind == "plain" and value is not None:
            raise InvalidJob(
                f"task {task.name}: {name} is for plain tasks; the payloads of a merged job come at different times. "
                f"Put the time into the payload and look at it in the task"
            )
        if not merge and row.kind == "merged":
            raise InvalidJob(
                f"task {task.name}: the option {name!r} is for merged tasks (@task(merge=True)). If it is an argument "
                f"of your function, pass it as kwargs={{{name!r}: …}}"
            )
        if not merge:
            row.refuse_merged_value(name, value)
