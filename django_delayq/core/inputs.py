"""Checks of caller input. Each returns the value or raises :class:`InvalidJob`, whose message names a valid form."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from .errors import InvalidJob
from .job import MAX_ID_BYTES, MAX_TASK_BYTES, PRIORITIES

_QUEUE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
#: characters that end a line, move a cursor or change the writing direction (the pattern is valid for Java, too)
CONTROL: Final = r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
_CONTROL: Final = re.compile(CONTROL)
_NOT_PLAIN: Final = re.compile(f"{CONTROL}|[\ud800-\udfff]")
_MOST_HOLDER_BYTES: Final = 255
_SCORE_CHARS: Final = 255
_EXACT: Final = 1 << 53
_U32_BITS: Final = 32
#: what other systems call options, and what they are called here
_FOREIGN: Final = {
    **dict.fromkeys(("eta", "run_at"), "at="),
    **dict.fromkeys(("task_id", "job_id"), "id="),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout="),
    **dict.fromkeys(("max_retries", "retries"), "max_attempts= (the first attempt counts)"),
    "countdown": "delay=",
    "run_after": "delay= or at=",
    "retry_backoff": 'retry_in="exponential"',
    "default_retry_delay": "retry_in=",
    "autoretry_for": "retry_for= (by default all exceptions)",
    "dont_autoretry_for": "give_up_on=",
    "acks_late": 'the default; the opposite is ack="early"',
    "bind": "current_job(), which a handler calls",
    "queue_name": "queue=",
    "rate_limit": "rate=",
}


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known word nearest to ``word``, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def option_hint(name: object, options: Iterable[str]) -> str:
    """Return " Did you mean …?" for a name that is no option, or the option of that meaning; "" if there is none."""
    ours = _FOREIGN.get(str(name))
    return suggest(str(name), options) if ours is None else f" Here that is {ours}."


def short(value: object, limit: int = 60) -> str:
    """Return ``repr(value)`` cut to ``limit`` characters, so that an error message never carries 10 kB of input."""
    if isinstance(value, (str, bytes)):
        text = repr(value[: limit * 2])
    elif isinstance(value, int) and value.bit_length() > 1000:
        text = f"an int of {value.bit_length()} bits"  # repr() of a huge int raises an error of its own
    else:
        text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def one_line(text: str) -> str:
    """Return a text from outside with :data:`CONTROL` characters and surrogates escaped, safe for a log line."""
    return _NOT_PLAIN.sub(lambda found: repr(found[0])[1:-1], text)


def encodable(text: str) -> str:
    """Return a text without lone surrogates, which JSON can express and UTF-8 cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def check_queue_name(name: object) -> str:
    """Return ``name`` if it is a valid queue name.

    Raises:
        InvalidJob: it is not; the message states the rule.
    """
    if isinstance(name, str) and _QUEUE_NAME.fullmatch(name):
        return name
    raise InvalidJob(
        f"queue name {short(name)} is not usable: use 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter"
    )


def check_id(value: object) -> str:
    """Return a job id as text. Accepts ``str``, ``int`` and ``UUID``.

    Raises:
        InvalidJob: another type, empty, longer than 255 bytes in UTF-8, or with control characters in it.
    """
    if isinstance(value, str):
        return _check_text(str.__str__(value), "id", MAX_ID_BYTES)  # also of a subclass, like a member of an enum
    if isinstance(value, UUID) or (type(value) is int and value.bit_length() < 800):
        return str(value)
    raise InvalidJob(
        f"id must be a UUID, a str or an int of reasonable size, not {short(value)} ({type(value).__name__})"
    )


def check_task_name(value: object) -> str:
    """Return a valid task name: text of 1 to 255 bytes without control characters.

    Raises:
        InvalidJob: it is not; the message states the rule.
    """
    return _check_text(value, "a task name", MAX_TASK_BYTES)


def check_holder(value: object) -> str:
    """Return ``value`` if it is a valid name of a holder: text of 1 to 255 bytes without control characters.

    Raises:
        InvalidJob: it is not; the message states the rule.
    """
    return _check_text(value, "the name of a holder", _MOST_HOLDER_BYTES)


def _check_text(value: object, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise InvalidJob(f"{what} must be a str, not {type(value).__name__}: {short(value)}")
    if value.isascii() and value.isprintable() and 0 < len(value) <= limit:
        return value
    try:
        # A character takes at least one byte, so a huge text is refused without encoding it.
        size = len(value) if len(value) > limit else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidJob(f"{what} {short(value)} is not valid Unicode (lone surrogate)") from None
    if not 0 < size <= limit:
        raise InvalidJob(f"{what} must be 1 to {limit} bytes of UTF-8, got {size}: {short(value)}")
    if _CONTROL.search(value):
        raise InvalidJob(f"{what} {short(value)} has control characters in it")
    return value


def check_int(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return ``value`` if it is an int (no bool) from ``low`` to ``high`` (None = no limit).

    Raises:
        InvalidJob: it is not; the message names the range.
    """
    if type(value) is not int:
        raise InvalidJob(f"{name} must be an int, not {type(value).__name__}: {short(value)}")
    if value < low or (high is not None and value > high):
        raise InvalidJob(f"{name} must be {_range(low, high)}, got {short(value)}")
    return value


def check_number(name: str, value: object, low: float, high: float | None = None, *, unit: str = "seconds") -> float:
    """Return ``value`` if it is a finite number (no bool) from ``low`` to ``high`` (None = no limit).

    Args:
        unit: of the number, for the message; "" = none.

    Raises:
        InvalidJob: it is not; the message names the range.
    """
    of = f" {unit}" if unit else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = f"a number of{of}" if unit else "a number"
        raise InvalidJob(f"{name} must be {kind}, not {type(value).__name__}: {short(value)}")
    if not (low <= value < math.inf) or (high is not None and value > high):
        raise InvalidJob(f"{name} must be {_range(low, high)}{of}, got {short(value)}")
    return float(value)


def _range(low: float, high: float | None) -> str:
    return f"{low:g} or more" if high is None else f"{low:g} to {high:.10g}"


def plain_seconds(value: object) -> Any:
    """Return a ``timedelta`` as seconds, and every other value unchanged."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def check_seconds(name: str, value: object) -> float:
    """Return a ``timedelta`` or number (no bool) above 0 as seconds; otherwise raise :class:`InvalidJob`."""
    value = plain_seconds(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidJob(f"{name} must be seconds (int or float), not {type(value).__name__}: {short(value)}")
    if not (value > 0 and math.isfinite(value)):
        raise InvalidJob(f"{name} must be more than 0 seconds, got {short(value)}")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``; otherwise raise :class:`InvalidJob` with a suggestion."""
    if isinstance(value, str) and value in choices:
        return value
    hint = suggest(value, choices) if isinstance(value, str) else ""
    raise InvalidJob(f"{name} must be one of {', '.join(choices)}; got {short(value)}.{hint}")


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; otherwise raise :class:`InvalidJob`."""
    if isinstance(value, bool):
        return value
    raise InvalidJob(f"{name} must be True or False, got {short(value)}")


def score_text(score: object) -> str:
    """Return the text of a number that orders the payloads of an id.

    Args:
        score: int, float, Decimal, or the text of a number. It is kept as given and compared as a double, so
            neighbouring ints beyond 2^53 may count as equal.

    Raises:
        InvalidJob: ``score`` is not a number, or not finite.
    """
    if type(score) is int and -_EXACT < score < _EXACT:
        return str(score)
    if isinstance(score, int) and not isinstance(score, bool):
        text = int.__repr__(score) if score.bit_length() < 1000 else ""
    elif isinstance(score, float):
        text = float.__repr__(score)
    elif isinstance(score, Decimal):
        text = Decimal.__str__(score)
    elif isinstance(score, str):
        text = str.__str__(score)
    else:
        raise InvalidJob(f"score must be a number (int, float, Decimal or the text of one), not {short(score)}")
    if not _is_number(text):
        raise InvalidJob(f"score must be a finite number of at most {_SCORE_CHARS} characters, got {short(score)}")
    return text


def _is_number(text: str) -> bool:
    # float() also accepts underscores, surrounding blanks, and the digits of every alphabet.
    if len(text) > _SCORE_CHARS or not text.isascii() or "_" in text or text != text.strip():
        return False
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def priority_of_u32(priority: int) -> int:
    """Return the class of a beanstalkd priority, 0 (most urgent) to 4,294,967,295.

    The scale is logarithmic, because clients use the low end of the range: 0 becomes class 0, and 65,536, the default
    of many clients, becomes 4, the default here. A more urgent job never gets a later class. Jobs whose priorities are
    close share one, and run in the order of their due times: 1 … 15 are class 1, 16 … 511 class 2, up to 8,191 class 3,
    up to 262,143 class 4, up to 4,194,303 class 5, up to 134,217,727 class 6.

    Raises:
        InvalidJob: it is not such a number.
    """
    bits = check_int("priority", priority, 0, (1 << _U32_BITS) - 1).bit_length()
    return -(-bits * (PRIORITIES - 1) // _U32_BITS)


def check_known(
    names: Iterable[object], known: Iterable[str], what: str = "key", error: type[Exception] = InvalidJob
) -> None:
    """Check that every name is known.

    Raises:
        InvalidJob: one is not, or this ``error``; the message suggests the nearest one and lists all.
    """
    allowed = list(known)
    for name in names:
        if name not in allowed:
            word = str(name)
            first = option_hint if what.endswith("option") else suggest
            near = first(word, allowed) or suggest(word.upper(), allowed) or suggest(word.lower(), allowed)
            raise error(f"unknown {what} {short(name)}.{near} Known {what}s: {', '.join(allowed)}.")


def unknown_queue(name: str, known: Iterable[str]) -> InvalidJob:
    """Return the error for a queue that the deployment does not have.

    Args:
        known: names of the existing queues; the most similar one is suggested.
    """
    names = sorted(known)
    known_text = ", ".join(names) or "none yet"
    return InvalidJob(f"there is no queue {short(name)}.{suggest(name, names)} Known queues: {known_text}")


def exception_classes(name: str, value: object) -> tuple[type[BaseException], ...]:
    """Return one or several exception classes as a tuple; otherwise raise :class:`InvalidJob`."""
    classes = tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidJob(f"{name} takes exception classes, like {name}=(ConnectionError,); got {short(one)}")
    return classes
