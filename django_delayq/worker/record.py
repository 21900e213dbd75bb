"""Stored form of an error: small and valid for any exception."""

from __future__ import annotations

import json
import linecache
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from traceback import walk_tb
from types import FrameType
from typing import Any, Final, TypeAlias

logger: Final = logging.getLogger(__name__)

ERROR_BYTES: Final = 4096
_MESSAGE_CHARS: Final = 1000
_FRAMES: Final = 20
#: beginning of a stored traceback whose exception followed another one
_AFTER: Final = "after "

#: a user's own form of an error: str = the message, dict = additional or replaced fields, bytes = the whole record
Formatter: TypeAlias = Callable[[BaseException], "str | dict[str, object] | bytes"]


def class_of(error: BaseException) -> str:
    """Return the qualified class name, e.g. ``shop.errors.GatewayDown``; builtins without their module."""
    return name_of(type(error))


def name_of(kind: type) -> str:
    """Return the qualified name of a class, in the same form as :func:`class_of`."""
    return (kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")[:200]


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that Python would print before this one; None if there is none, or it is hidden."""
    return error.__cause__ if error.__suppress_context__ else error.__context__


def error_record(error: BaseException, formatter: Formatter | None = None) -> bytes:
    """Return JSON of class, message and the end of the traceback, at most 4 KiB.

    Args:
        error: the exception.
        formatter: the user's own form. If it raises or returns something that cannot be stored, that is logged, and the
            default form is stored.
    """
    if formatter is not None:
        try:
            return _apply_format(error, formatter(error))
        except BaseException:
            # Any exception: it is called while a job ends, and must not prevent the end.
            logger.exception("format_error failed for %s; the default record is stored", class_of(error))
    return record_of(class_of(error), text_of(error), _traceback_of(error))


def record_of(name: str, message: str, trace: str = "") -> bytes:
    """Return the record made of its parts. JSON escapes control characters."""
    end = _cut_beginning(trace, len(trace) - ERROR_BYTES)
    return _fit({"class": name[:200], "message": message[:_MESSAGE_CHARS], "traceback": end})


def _fit(record: dict[str, Any]) -> bytes:
    """Return the encoded record, with its traceback and message cut to the space available."""
    encoded = _encode(record)
    while len(encoded) > ERROR_BYTES:  # the traceback first, from its beginning: the end shows where the error occurred
        over = len(encoded) - ERROR_BYTES
        key = "traceback" if record["traceback"] else "message"
        if not isinstance(record[key], str) or not record[key]:
            break
        # One character takes one to six bytes here, so this ends after a few rounds without cutting far too much.
        cut = max(1, over // 6)
        record[key] = _cut_beginning(record[key], cut) if key == "traceback" else record[key][:-cut]
        encoded = _encode(record)
    return encoded


def _cut_beginning(trace: str, cut: int) -> str:
    """Return the text from the first line that begins after ``cut``, so that no secret is separated from its name."""
    if cut <= 0:
        return trace
    _, newline, rest = trace[cut:].partition("\n")
    return rest if newline else trace[cut:]


def printed_traceback(trace: str, summary: str) -> str:
    """Return a stored traceback as Python prints it; the exception before it, if there was one, is the last line.

    Args:
        trace: the traceback of a record, or "".
        summary: class and message of the error.
    """
    if not trace:
        return summary
    cause, frames, begin = "", trace.rstrip("\n"), trace.find('  File "')
    if trace.startswith(_AFTER) and begin > 0:
        cause, frames = trace[:begin].rstrip("\n"), frames[begin:]
    return "\n".join(filter(None, ("Traceback (most recent call last):", frames, summary, cause)))


def text_of(error: BaseException) -> str:
    """Return the error's message, at most 1,000 characters. Never raises."""
    try:
        return str(error)[:_MESSAGE_CHARS]
    except Exception as broken:
        return f"(its message cannot be read: {type(broken).__name__})"


def _apply_format(error: BaseException, form: object) -> bytes:
    if isinstance(form, str):
        return record_of(class_of(error), form)
    if isinstance(form, dict):
        form = _fit({"class": class_of(error), "message": text_of(error), "traceback": _traceback_of(error), **form})
    if not isinstance(form, bytes):
        raise TypeError(f"format_error must give a str, a dict or bytes, not {type(form).__name__}")
    if len(form) > ERROR_BYTES:
        raise ValueError(f"format_error gave {len(form)} bytes; {ERROR_BYTES} are stored at most, so shorten it")
    return form


def _encode(record: object) -> bytes:
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode("ascii")


@lru_cache(maxsize=1024)
def _text_of_frame(file: str, line: int, function: str) -> str:
    """Return a frame as Python prints it.

    Cached, because the traceback module reads the file system for each frame again, and in a mass failure the same few
    frames occur thousands of times a second.
    """
    source = linecache.getline(file, line).strip()
    return f'  File "{file}", line {line}, in {function}\n' + (f"    {source}\n" if source else "")


def stack_text(frames: Sequence[FrameType]) -> str:
    """Return the end of a stack in the form of a stored traceback."""
    parts = [_text_of_frame(one.f_code.co_filename, one.f_lineno, one.f_code.co_name) for one in frames[-_FRAMES:]]
    return "".join(parts)


def _traceback_of(error: BaseException) -> str:
    try:
        frames = deque(walk_tb(error.__traceback__), maxlen=_FRAMES)
        parts = [_text_of_frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
        cause = cause_of(error)
        if cause is not None:
            parts.insert(0, f"{_AFTER}{class_of(cause)}: {text_of(cause)[:300]}\n")
        return "".join(parts)
    except Exception as broken:
        return f"(its traceback cannot be read: {type(broken).__name__})"
