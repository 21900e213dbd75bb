"""From a call's arguments and options to the records that the core stores, checked on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from .conf import conf
from .core import codec
from .core.errors import InvalidJob
from .core.job import PRIORITIES, NewJob, new_id
from .core.task import (
    CONFLICTS,
    DUE_POLICIES,
    Task,
    check_choice,
    check_id,
    check_int,
    check_queue_name,
    short,
    suggest,
)
from .core.times import delay_ms_of, due_of

#: options of one job
JOB_OPTIONS: Final = (
    "delay", "at", "id", "priority", "on_conflict", "due_policy", "reset_retries", "max_attempts", "context",
)  # fmt: skip
#: options of a schedule call
OPTIONS: Final = (*JOB_OPTIONS, "queue", "using_db")
#: reserved names whose machinery comes with a later release
LATER: Final = ("payload", "score", "durable", "expires", "retry_in")
#: what an entry of schedule_many may have
ENTRY_KEYS: Final = frozenset((*JOB_OPTIONS, "args", "kwargs"))
#: what most calls have; anything else is looked at apart
COMMON: Final = frozenset(("delay", "at", "id", "queue", "using_db", "args", "kwargs"))
#: bytes of one job's encoded options (the stored record has two bytes for their length)
MAX_OPTIONS_BYTES: Final = 65_535
_NONE: Final[Mapping[str, Any]] = {}


def check_option_names(options: Mapping[str, Any]) -> None:
    """Nothing, if all names are schedule options.

    Raises:
        TypeError: an unknown one. InvalidJob: one that this release has not.
    """
    no_later_options(options)
    for name in options:
        if name not in OPTIONS:
            raise TypeError(
                f"unknown schedule option {short(name)}.{suggest(str(name), OPTIONS)} "
                f"Known options: {', '.join(OPTIONS)}"
            )


def no_later_options(named: Mapping[str, Any]) -> None:
    """:class:`InvalidJob` if a reserved name is used that does nothing yet: never a silent promise."""
    for name in LATER:
        if name in named:
            raise InvalidJob(
                f"the option {name!r} is not available in this release. If it is an argument of your function, "
                f"pass it as kwargs={{{name!r}: …}}"
            )


def due(delay: float | timedelta | None, at: datetime | float | None) -> tuple[int | None, int | None]:
    """``(due_ms, delay_ms)``, of which one is None; :class:`InvalidJob` for a time that cannot be meant."""
    if at is None:
        return None, 0 if delay is None else delay_ms_of(delay, allow_far=conf().allow_far)
    use_tz = settings.USE_TZ
    return due_of(
        delay=delay,
        at=at,
        use_tz=use_tz,
        tz=None if use_tz else timezone.get_default_timezone(),
        allow_far=conf().allow_far,
    )


class NewJobs:
    """Makes the records of one task's jobs; ``options`` are common to all of them.

    Attributes:
        queue: the queue that they go to.
    """

    def __init__(self, task: Task, options: Mapping[str, Any]) -> None:
        self.task = task
        self.queue = task.options.queue
        if options.get("queue") is not None:
            self.queue = check_queue_name(options["queue"])
        self._options = options
        self._limit = conf().max_args_bytes

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> NewJob:
        """One record.

        Raises:
            TypeError: the function cannot be called so. InvalidJob: it cannot be stored.
        """
        task = self.task
        try:
            task.bind(args, kwargs)
        except TypeError as error:
            raise _with_hint(error, kwargs) from None
        try:
            encoded = codec.encode_args(args, kwargs, limit=self._limit)
        except InvalidJob as error:
            raise InvalidJob(f"task {task.name}: {error}") from None
        policy = task.options
        if not options:
            return NewJob(new_id(), task.name, encoded, priority=policy.priority, fresh=True)
        get = options.get
        delay, at, given_id = get("delay"), get("at"), get("id")
        due_ms, delay_ms = (None, 0) if delay is None and at is None else due(delay, at)
        new = NewJob(
            new_id() if given_id is None else check_id(given_id),
            task.name,
            encoded,
            due_ms,
            delay_ms,
            policy.priority,
            on_conflict=policy.on_conflict or "replace",
            due_policy=policy.due_policy or "replace",
            fresh=given_id is None,
        )
        if not options.keys() <= COMMON:
            _apply_rare(new, options)
        return new

    def make_many(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[NewJob]:
        """A record of each entry; what an entry says wins over the common options. Errors carry the entry's index."""
        common = {name: value for name, value in self._options.items() if name in JOB_OPTIONS}
        for index, entry in enumerate(entries):
            try:
                yield self._make_entry(entry, common)
            except InvalidJob as error:
                raise InvalidJob(f"entry {index}: {error}") from None
            except TypeError as error:
                raise TypeError(f"entry {index}: {error}") from None

    def _make_entry(self, entry: Mapping[str, Any], common: dict[str, Any]) -> NewJob:
        if type(entry) is not dict and not isinstance(entry, Mapping):
            raise InvalidJob(f"expected a dict with args, kwargs and options, got {short(entry)}")
        if not entry.keys() <= ENTRY_KEYS:
            no_later_options(entry)
            wrong = next(key for key in entry if key not in ENTRY_KEYS)
            raise InvalidJob(f"unknown key {short(wrong)}.{suggest(str(wrong), ENTRY_KEYS)}")
        args, kwargs = explicit(entry.get("args"), entry.get("kwargs"))
        if common:
            return self.make(args, kwargs, {**common, **entry})
        return self.make(args, kwargs, _NONE if len(entry) == 1 and "args" in entry else entry)


def _apply_rare(new: NewJob, options: Mapping[str, Any]) -> None:
    """The options that few calls have."""
    conflict, due_policy, priority = options.get("on_conflict"), options.get("due_policy"), options.get("priority")
    if conflict is not None:
        if check_choice("on_conflict", conflict, CONFLICTS) == "merge":
            raise InvalidJob('on_conflict="merge" is for merged tasks; use replace, ignore or error')
        new.on_conflict = conflict
    if due_policy is not None:
        new.due_policy = check_choice("due_policy", due_policy, DUE_POLICIES)
    if priority is not None:
        new.priority = check_int("priority", priority, 0, PRIORITIES - 1)
    reset = options.get("reset_retries", True)
    if not isinstance(reset, bool):
        raise InvalidJob(f"reset_retries must be True or False, got {short(reset)}")
    new.reset_retries = reset
    new.options = _overrides(options.get("max_attempts"), options.get("context"))


def explicit(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments given as ``args=`` and ``kwargs=``; TypeError if they are not a list or tuple and a dict."""
    if args is not None and not isinstance(args, (list, tuple)):
        raise TypeError(f"args must be a list or tuple, got {short(args)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, got {short(kwargs)}")
    return tuple(args) if args else (), dict(kwargs) if kwargs else {}


def _overrides(max_attempts: object, context: object) -> bytes:
    """The stored per-job overrides, empty when there are none."""
    overrides: dict[str, Any] = {}
    if max_attempts is not None:
        overrides["max_attempts"] = check_int("max_attempts", max_attempts, 1, 1_000_000)
    if context is not None:
        if not isinstance(context, Mapping):
            raise InvalidJob(f"context must be a dict, got {short(context)}")
        overrides["context"] = dict(context)
    if not overrides:
        return b""
    try:
        encoded = json.dumps(overrides, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"context may hold plain JSON values only: {error}") from None
    if len(encoded) > MAX_OPTIONS_BYTES:
        raise InvalidJob(f"context is too large: {len(encoded)} bytes encoded, at most {MAX_OPTIONS_BYTES} are stored")
    return encoded


def _with_hint(error: TypeError, kwargs: Mapping[str, Any]) -> TypeError:
    """The same error, with the schedule option that a misspelled keyword may have meant."""
    for name in kwargs:
        hint = suggest(name, OPTIONS)
        if hint and f"'{name}'" in str(error):
            return TypeError(f"{error}; as a schedule option:{hint}")
    return error
