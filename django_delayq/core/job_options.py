"""Options of one job: their names, the kinds of tasks they apply to, their checks, and their encoding in the job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidJob
from .inputs import check_choice, check_flag, check_int, check_number, option_hint, short
from .job import PRIORITIES, NewJob
from .options import CONFLICTS, DUE_POLICIES, backoff_of, seconds_of
from .task import Task
from .times import span_ms_of, ttr_ms_of

if TYPE_CHECKING:
    from .builder import JobRules

#: options of one job
JOB_OPTIONS: Final = (
    "delay",
    "at",
    "id",
    "priority",
    "on_conflict",
    "due_policy",
    "reset_retries",
    "max_attempts",
    "retry_in",
    "timeout",
    "ttr",
    "expires",
    "context",
    "wait_for_room",
    "wait_for_confirmation",
)
#: options of merged tasks only
MERGED_OPTIONS: Final = ("payload", "score")
#: options of a schedule call
OPTIONS: Final = (*JOB_OPTIONS, *MERGED_OPTIONS, "queue", "durable", "using_db")
#: maximum bytes of one job's encoded options (the stored record has two bytes for their length)
MAX_OPTIONS_BYTES: Final = 65_535

#: longest wait for room in a full queue, s
LONGEST_WAIT: Final = 3600.0


def check_option_names(options: Mapping[str, Any], task: Task | None = None) -> None:
    """Check that all names are schedule options that ``task`` supports.

    Raises:
        TypeError: unknown option.
        InvalidJob: an option that a task of this kind does not have.
    """
    for name in options:
        if name not in OPTIONS:
            hint = option_hint(name, OPTIONS)
            raise TypeError(f"unknown schedule option {short(name)}.{hint} Known options: {', '.join(OPTIONS)}")
    if task is not None:
        check_kind(task, options)


def check_kind(task: Task, options: Mapping[str, Any]) -> None:
    """Check that no option belongs to the other kind of tasks, plain or merged.

    Raises:
        InvalidJob: one does.
    """
    if task.options.merge:
        if options.get("expires") is not None:
            raise InvalidJob(
                f"task {task.name}: expires is for plain tasks; the payloads of a merged job come at different times. "
                f"Put the time into the payload and look at it in the task"
            )
        return
    for name in MERGED_OPTIONS:
        if name in options:
            raise InvalidJob(
                f"task {task.name}: the option {name!r} is for merged tasks (@task(merge=True)). If it is an argument "
                f"of your function, pass it as kwargs={{{name!r}: …}}"
            )


class JobOptions:
    """Encoder of the less common options of one task's jobs.

    Values stored with the job for its worker: ``max_attempts``, ``retry_in``, ``timeout`` (seconds), ``expires_ms``
    (Unix ms), ``expires_in_ms`` (from the due time on) and ``context``; for holders without a heartbeat ``ttr_ms``.
    They are canonical JSON, whose last member is ``ttr_ms``: there ``lua/lib/reserve.lua`` finds it.

    Args:
        rules: rules of the deployment.
        context: values for the context of every job.
    """

    def __init__(self, task: Task, rules: JobRules, context: Mapping[str, Any]) -> None:
        self._task = task
        self._rules = rules
        self._linked = context
        self._base: dict[str, Any] = {}
        if task.options.expires is not None:
            self._base["expires_in_ms"] = span_ms_of("expires", task.options.expires)
        if self._linked:
            self._base["context"] = self._linked
        #: encoded options of a job that has none of its own
        self.bytes = _encoded(self._base)

    def apply(self, new: NewJob, options: Mapping[str, Any]) -> None:
        """Apply the less common options to ``new``.

        Raises:
            InvalidJob: a wrong value.
        """
        check_kind(self._task, options)
        get, merge = options.get, self._task.options.merge
        conflict, due_policy, priority = get("on_conflict"), get("due_policy"), get("priority")
        if conflict is not None:
            new.on_conflict = check_choice("on_conflict", conflict, CONFLICTS)
            if conflict == "merge" and not merge:
                raise InvalidJob('on_conflict="merge" is for merged tasks; use replace, ignore or error')
        if due_policy is not None:
            new.due_policy = check_choice("due_policy", due_policy, DUE_POLICIES)
            if due_policy == "inherit" and not merge:
                raise InvalidJob('due_policy="inherit" is for merged tasks; use keep, replace, earliest or latest')
        if priority is not None:
            new.priority = check_int("priority", priority, 0, PRIORITIES - 1)
        new.reset_retries = check_flag("reset_retries", get("reset_retries", True))
        wait = get("wait_for_room")
        if wait is not None:
            new.room_ms = round(check_number("wait_for_room", _plain_seconds(wait), 0, LONGEST_WAIT) * 1000)
        if get("wait_for_confirmation") is not None:
            new.confirmed = self._rules.confirmed(options["wait_for_confirmation"])
        if any(get(name) is not None for name in ("expires", *_READERS)):
            new.options = self._overrides(new, options)

    def of_tick(self, tick_ms: int) -> bytes:
        """Return the encoded options of a recurring task's tick.

        The expiry is absolute, because the due time may remain an older one.
        """
        expires_in_ms = self._base.get("expires_in_ms")
        expiry = {} if expires_in_ms is None else {"expires_ms": tick_ms + expires_in_ms}
        return _encoded({"tick_ms": tick_ms, **expiry})

    def _overrides(self, new: NewJob, options: Mapping[str, Any]) -> bytes:
        stored = dict(self._base)
        for name, (member, read) in _READERS.items():
            if options.get(name) is not None:
                stored[member] = read(options[name])
        expires = options.get("expires")
        if expires is not None:
            stored.pop("expires_in_ms", None)
            stored.update(_expiry(expires, new, self._rules))
        if self._linked and options.get("context") is not None:
            stored["context"] = {**self._linked, **stored["context"]}
        return _encoded(stored)


def _attempts(value: object) -> int:
    return check_int("max_attempts", value, 1, 1_000_000)


def _context(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidJob(f"context must be a dict, got {short(value)}")
    for name in value:
        if not isinstance(name, str):
            raise InvalidJob(f"a name in context is a text, not {short(name)}")
    return dict(value)


def _retry_in(value: object) -> object:
    """Return the JSON form of a back-off. A function is refused, because it can only be an option of the task."""
    if callable(value):
        raise InvalidJob(
            "retry_in of one job is stored with it, so it is seconds, a timedelta, a list of them or the name of a "
            "preset; a function goes to the task: @task(retry_in=…)"
        )
    backoff_of("retry_in", value)
    if isinstance(value, (list, tuple)):
        return [_plain_seconds(pause) for pause in value]
    return _plain_seconds(value)


def _plain_seconds(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value


def timeout_of(value: object) -> float:
    """Return a time limit as it is stored: 3 for 3.0 seconds."""
    seconds = seconds_of("timeout", value)
    return int(seconds) if float(seconds).is_integer() else seconds


#: options that are stored as they are read: the name of the stored member, and the check
_READERS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "max_attempts": ("max_attempts", _attempts),
    "retry_in": ("retry_in", _retry_in),
    "timeout": ("timeout", timeout_of),
    "ttr": ("ttr_ms", ttr_ms_of),
    "context": ("context", _context),
}


def _expiry(expires: object, new: NewJob, rules: JobRules) -> dict[str, int]:
    """Return the expiry as a moment, or as a time counted from the due time."""
    if not isinstance(expires, datetime):
        if not (isinstance(expires, (int, float, timedelta)) and not isinstance(expires, bool)):
            raise InvalidJob(f"expires must be a datetime, a timedelta or a number of seconds, not {short(expires)}")
        in_ms = span_ms_of("expires", expires, allow_far=rules.allow_far)
        if in_ms == 0:
            raise InvalidJob("expires is 0: the job would never run; give the time for which it is worth starting")
        return {"expires_in_ms": in_ms}
    if rules.zone is None and expires.utcoffset() is None:
        raise InvalidJob(
            f"expires={expires.isoformat()} has no time zone; use django.utils.timezone.now() or make_aware()"
        )
    try:
        moment, _ = rules.due(None, expires)
    except InvalidJob as error:
        raise InvalidJob(str(error).replace("at=", "expires=", 1)) from None
    if moment is None or moment <= new.due_ms_here:
        raise InvalidJob(f"expires={expires.isoformat()} is not after the due time, so the job would never run")
    return {"expires_ms": moment}


def _encoded(options: Mapping[str, Any]) -> bytes:
    """Return canonical JSON; empty bytes if there are no options."""
    if not options:
        return b""
    try:
        encoded = json.dumps(options, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"context may hold plain JSON values only: {error}") from None
    if len(encoded) > MAX_OPTIONS_BYTES:
        raise InvalidJob(
            f"context and the other options of the job take {len(encoded)} bytes, at most {MAX_OPTIONS_BYTES} fit"
        )
    return encoded
