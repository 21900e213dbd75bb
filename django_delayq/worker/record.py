"""Record of how an attempt ended: the stored form of its error, small and valid for any exception, and its log line.

A log line shows the message and the traceback that are stored with the job, masked. A traceback, or the stack of an
attempt that ignores its time limit, begins with the project's own code, without the worker's frames above it.
"""

from __future__ import annotations

import json
import linecache
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..core.inputs import one_line
from ..core.outcomes import AttemptOutcome
from ..core.verdicts import Verdict

if TYPE_CHECKING:
    from ..core.job import Job
    from ..core.outcomes import Settlement
    from .attempt import Attempt

#: records of the ends of attempts; projects filter them by this name
logger: Final = logging.getLogger("django_delayq.worker.notifier")

ERROR_BYTES: Final = 4096
_MESSAGE_CHARS: Final = 1000
_LOGGED_CHARS: Final = 500
_FRAMES: Final = 20
#: packages whose frames are above the project's: the worker itself, and what its threads and its event loop run in
_ABOVE: Final = frozenset((__name__.partition(".")[0], "threading", "asyncio", "concurrent"))

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
    while len(encoded := json.dumps(record, separators=(",", ":")).encode("ascii")) > ERROR_BYTES:
        # the traceback first, from its beginning: the end shows where the error occurred
        key = "traceback" if record["traceback"] else "message"
        text = record[key]
        if not isinstance(text, str) or not text:
            break
        # One character takes one to six bytes here, so this ends after a few rounds without cutting far too much.
        cut = max(1, (len(encoded) - ERROR_BYTES) // 6)
        record[key] = _cut_beginning(text, cut) if key == "traceback" else text[:-cut]
    return encoded


def _cut_beginning(trace: str, cut: int) -> str:
    """Return the text from the first line that begins after ``cut``, so that no secret is separated from its name."""
    if cut <= 0:
        return trace
    _, newline, rest = trace[cut:].partition("\n")
    return rest if newline else trace[cut:]


def printed_traceback(trace: str, summary: str) -> str:
    """Return a stored traceback as Python prints it.

    Args:
        trace: the traceback of a record, or "".
        summary: class and message of the error.
    """
    return f"Traceback (most recent call last):\n{trace.rstrip()}\n{summary}" if trace else summary


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


@lru_cache(maxsize=1024)
def _text_of_frame(file: str, line: int, function: str) -> str:
    """Return a frame as Python prints it.

    Cached, because the traceback module reads the file system for each frame again, and in a mass failure the same few
    frames occur thousands of times a second.
    """
    source = linecache.getline(file, line).strip()
    return f'  File "{file}", line {line}, in {function}\n' + (f"    {source}\n" if source else "")


def _text_of_frames(frames: Iterable[tuple[FrameType, int]]) -> str:
    last = deque(frames, maxlen=_FRAMES)
    return "".join([_text_of_frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in last])


def _traceback_of(error: BaseException) -> str:
    try:
        cause, frames = cause_of(error), _text_of_frames(walk_tb(error.__traceback__))
        return frames if cause is None else f"{frames}after {class_of(cause)}: {text_of(cause)[:300]}\n"
    except Exception as broken:
        return f"(its traceback cannot be read: {type(broken).__name__})"


# -- frames of the project ---------------------------------------------------------------------------------------------


def project_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of the project's code on; all of it if it has none."""
    begin = trace
    while begin is not None and _is_above(begin.tb_frame):
        begin = begin.tb_next
    return begin or trace


def frames_of_thread(ident: int) -> list[FrameType]:
    """Return what a thread runs now, the innermost frame last, from the first frame of the project's code on."""
    innermost = sys._current_frames().get(ident)
    frames = [] if innermost is None else [frame for frame, _ in walk_stack(innermost)][::-1]
    return list(dropwhile(_is_above, frames)) or frames


def _is_above(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _ABOVE


def stack_text(frames: Iterable[FrameType]) -> str:
    """Return the end of a stack in the form of a stored traceback."""
    return _text_of_frames((frame, frame.f_lineno) for frame in frames)


# -- log lines ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLog:
    """Writer of one log line for the end of an attempt."""

    #: hides secrets in a message
    mask_text: Callable[[str], str] = str
    #: hides secrets in a traceback
    mask_traceback: Callable[[str], str] = str

    def succeeded(self, attempt: Attempt) -> None:
        """Log a success at level ``DEBUG``."""
        if logger.isEnabledFor(logging.DEBUG):
            job, seconds = attempt.job, attempt.ended - attempt.started
            logger.debug("%s: attempt %d of task %s succeeded in %.3f s", job.id, job.failures + 1, job.task, seconds)

    def failed(self, settlement: Settlement, error: BaseException) -> None:
        """Log an attempt that did not succeed: ``ERROR`` if the job is given up, ``WARNING`` if it is tried again.

        The traceback follows once the job is given up, and always at level ``DEBUG``.
        """
        job, verb, outcome = settlement.job, settlement.verb, settlement.outcome
        if verb == "release":
            level = logging.WARNING if outcome == AttemptOutcome.LOST else logging.INFO
            values: tuple[object, ...] = (job.id, job.task, self._plain(settlement.reason) or "-")
            self._handle(level, "%s: task %s: the job went back uncounted: %s", values, job)
            return
        level = logging.WARNING if verb == "fail" else logging.ERROR
        if not logger.isEnabledFor(level):
            return
        number = job.failures + 1
        how = "failed" if outcome == AttemptOutcome.FAILED else f"failed ({outcome})"
        if verb == "bury":
            text = "%s: task %s went to the morgue (%s) after attempt %d: %s"
            values = (job.id, job.task, self._plain(settlement.reason), number)
        elif verb == "record":
            text = "%s: task %s %s; it was acked before it began, so it is not tried again: %s"
            values = (job.id, job.task, how)
        else:
            text = "%s: attempt %d of task %s %s, the next one in %.1f s: %s"
            values = (job.id, number, job.task, how, (settlement.delay_ms or 0) / 1000)
        stored = _stored(settlement.error)
        kind, message = settlement.error_class or "-", self._plain(str(stored.get("message") or ""))
        summary, trace = f"{kind}: {message}" if message else kind, None
        is_on_purpose = isinstance(error, Verdict) and cause_of(error) is None
        if not is_on_purpose and (level == logging.ERROR or logger.isEnabledFor(logging.DEBUG)):
            trace = self._traceback(str(stored.get("traceback") or ""), summary)
        self._handle(level, text, (*values, summary), job, trace, error=kind)

    def hangs(self, attempt: Attempt, what: str) -> None:
        """Log an attempt that ignores its time limit, with what it ran at that moment."""
        job, trace = attempt.job, self._traceback(attempt.stack, "JobTimeout")
        self._handle(logging.ERROR, "%s: task %s ignores its time limit; %s", (job.id, job.task, what), job, trace)

    def _handle(
        self, level: int, text: str, values: tuple[object, ...], job: Job, trace: str | None = None, **more: str
    ) -> None:
        """Handle a record with the fields that :class:`~..logs.JobFilter` adds to those of a running job."""
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, __file__, 0, text, values, None, extra=more)
            fields = {"job_id": job.id, "queue": job.queue, "task": job.task, "attempt": job.failures + 1}
            for name, value in fields.items():
                vars(record).setdefault(name, value)
            # `exc_text` instead of `exc_info`: handlers would format the exception itself, with all secrets.
            record.exc_text = trace
            logger.handle(record)

    def _traceback(self, frames: str, summary: str) -> str | None:
        """Return the traceback as Python prints it; None if none is stored."""
        lines = [one_line(line) for line in self.mask_traceback(frames).splitlines()]
        return printed_traceback("\n".join(lines), summary) if lines else None

    def _plain(self, text: str) -> str:
        """Return a text without secrets, as one line of limited length."""
        text = one_line(self.mask_text(text))
        return text if len(text) <= _LOGGED_CHARS else f"{text[:_LOGGED_CHARS]}…"


def _stored(error: bytes) -> dict[str, Any]:
    """Return the fields of a stored error; none if the project's ``format_error`` returned a form of its own."""
    try:
        fields = json.loads(error)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
