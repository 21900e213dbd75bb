"""Tasks: registered callables with a name and a policy. The registry is where a worker looks a name up."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from .errors import InvalidJob, Misconfigured
from .job import DEFAULT_PRIORITY, MAX_ID_BYTES, MAX_TASK_BYTES, PRIORITIES
from .retry import default_backoff

CONFLICTS: Final = ("merge", "replace", "ignore", "error")
DUE_POLICIES: Final = ("keep", "replace", "earliest", "latest")
MAX_SHARDS: Final = 1024

_QUEUE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def suggest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the known word nearest to ``word``, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def short(value: object, limit: int = 60) -> str:
    """``repr(value)`` cut to ``limit`` characters, so that an error message never carries 10 kB of input."""
    if isinstance(value, (str, bytes)):
        text = repr(value[: limit * 2])
    elif type(value) is int and value.bit_length() > 1000:
        text = f"an int of {value.bit_length()} bits"  # repr() of a huge int is an error of its own
    else:
        text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def check_queue_name(name: object) -> str:
    """``name`` if it can name a queue.

    Raises:
        InvalidJob: it cannot; the message gives the rule.
    """
    if isinstance(name, str) and _QUEUE_NAME.fullmatch(name):
        return name
    raise InvalidJob(
        f"queue name {short(name)} is not usable: use 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter"
    )


def check_id(value: object) -> str:
    """A job id as text. Accepts ``str`` and ``int``.

    Raises:
        InvalidJob: another type, empty, longer than 255 bytes in UTF-8, or with control characters in it.
    """
    if type(value) is int and value.bit_length() < 800:
        value = str(value)
    if not isinstance(value, str):
        raise InvalidJob(f"id must be a str or an int of reasonable size, not {short(value)} ({type(value).__name__})")
    return _check_text(value, "id", MAX_ID_BYTES)


def check_task_name(value: object) -> str:
    """A task name: text of 1 to 255 bytes without control characters; otherwise :class:`InvalidJob`."""
    if not isinstance(value, str):
        raise InvalidJob(f"a task name must be a str, not {type(value).__name__}: {short(value)}")
    return _check_text(value, "task name", MAX_TASK_BYTES)


def _check_text(value: str, what: str, limit: int) -> str:
    try:
        # a character is never less than one byte, so a huge text is not encoded just to be refused
        size = len(value) if len(value) > limit else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJob(f"{what} {short(value)} is not valid Unicode (lone surrogate)") from None
    if not 0 < size <= limit:
        raise InvalidJob(f"{what} must be 1 to {limit} bytes of UTF-8, got {size}: {short(value)}")
    if _CONTROL.search(value):
        raise InvalidJob(f"{what} {short(value)} has control characters in it")
    return value


def check_int(name: str, value: object, low: int, high: int) -> int:
    """``value`` if it is an int (no bool) in ``low..high``; otherwise :class:`InvalidJob`."""
    if type(value) is not int:
        raise InvalidJob(f"{name} must be an int, not {type(value).__name__}: {short(value)}")
    if not low <= value <= high:
        raise InvalidJob(f"{name} must be {low} to {high}, got {short(value)}")
    return value


def check_seconds(name: str, value: object) -> float:
    """``value`` as seconds if it is a positive finite number (no bool); otherwise :class:`InvalidJob`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidJob(f"{name} must be seconds (int or float), not {type(value).__name__}: {short(value)}")
    if not (value > 0 and math.isfinite(value)):
        raise InvalidJob(f"{name} must be more than 0 seconds, got {short(value)}")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """``value`` if it is one of ``choices``; otherwise :class:`InvalidJob` with a suggestion."""
    if isinstance(value, str) and value in choices:
        return value
    hint = suggest(value, choices) if isinstance(value, str) else ""
    raise InvalidJob(f"{name} must be one of {', '.join(choices)}; got {short(value)}.{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The policy of a task. Every option may also be a default in ``DELAYQ["TASK_DEFAULTS"]`` except ``aliases``."""

    #: the queue that its jobs go to
    queue: str = "default"
    #: exact number of counted attempts (a start followed by failure, timeout or crash) before the morgue
    max_attempts: int = 26
    #: limit of one run in seconds; None = no limit
    timeout: float | None = None
    #: seconds to wait before the next attempt; called with the number of failures before this one (0 at first)
    retry_in: Callable[[int], float] = default_backoff
    #: 0 (first) … 7 (last)
    priority: int = DEFAULT_PRIORITY
    #: what happens when the id is live already: replace, ignore or error; None = replace
    on_conflict: str | None = None
    #: the due time of a job whose id was waiting already: keep, replace, earliest or latest; None = by on_conflict
    due_policy: str | None = None
    #: crashes (process died under the job) before the morgue with the reason ``poison``
    crash_limit: int = 3
    #: longest time in seconds that the heartbeat keeps one run's lease alive; None = as long as the process lives
    max_lease: float | None = None
    #: number of shards that the queue is created with; None = the queue's own setting
    shards: int | None = None
    #: former names; jobs stored under them still find the task
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_queue_name(self.queue)
        check_int("max_attempts", self.max_attempts, 1, 1_000_000)
        check_int("priority", self.priority, 0, PRIORITIES - 1)
        check_int("crash_limit", self.crash_limit, 1, 1_000_000)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.max_lease is not None:
            check_seconds("max_lease", self.max_lease)
        if self.on_conflict is not None:
            check_choice("on_conflict", self.on_conflict, CONFLICTS)
        if self.due_policy is not None:
            check_choice("due_policy", self.due_policy, DUE_POLICIES)
        if self.shards is not None:
            check_int("shards", self.shards, 1, MAX_SHARDS)
        if not callable(self.retry_in):
            raise InvalidJob(
                f"retry_in must be a function of the number of earlier failures, returning seconds; got "
                f"{short(self.retry_in)}. django_delayq.core.retry has presets: fixed(60), steps(10, 60, 600), …"
            )
        aliases: object = self.aliases
        if not isinstance(aliases, (tuple, list)):
            raise InvalidJob(f"aliases must be a tuple of former task names, got {short(aliases)}")
        object.__setattr__(self, "aliases", tuple(check_task_name(alias) for alias in aliases))

    @classmethod
    def build(cls, options: Mapping[str, Any], *, what: str = "the task") -> TaskOptions:
        """Options from a mapping, checked.

        Raises:
            Misconfigured: an unknown or a wrong option; the message begins with ``what`` and suggests the right name.
        """
        for name in options:
            if name not in OPTION_NAMES:
                raise Misconfigured(
                    f"{what}: unknown option {short(name)}.{suggest(str(name), OPTION_NAMES)} "
                    f"Known options: {', '.join(OPTION_NAMES)}."
                )
        try:
            return cls(**options)
        except InvalidJob as error:
            raise Misconfigured(f"{what}: {error}") from None


OPTION_NAMES: Final = tuple(field.name for field in fields(TaskOptions))


class Task:
    """A registered callable. Calling it runs the function here and now.

    Attributes:
        name: what is stored in a job; never an import path that the worker would follow.
        func: the function itself.
        options: its policy.
        is_async: whether ``func`` is an ``async def``.
    """

    def __init__(self, func: Callable[..., Any], *, name: str, options: TaskOptions | None = None) -> None:
        if not callable(func):
            raise Misconfigured(f"task {short(name)}: {short(func)} is not callable")
        try:
            self.name = check_task_name(name)
        except InvalidJob as error:
            raise Misconfigured(str(error)) from None
        self.func = func
        self.options = options if options is not None else TaskOptions()
        self.is_async = inspect.iscoroutinefunction(func)
        self._signature: inspect.Signature | None = None
        self._required, self._positional = _plain_arity(func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.options.queue}>"

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
            positional = 1 << 30
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
