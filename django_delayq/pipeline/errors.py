"""Errors raised by the pipeline in addition to those of the core, and the short form of Spark's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..core.errors import DelayQError, InvalidJob, Misconfigured, QueueUnavailable
from ..core.loads import BulkLoadDiffers

_USER: Final = re.compile(r"(?<=://)[^/\s]*@")
#: the last line of a Python worker's stack trace
_TRACE: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(.*)$", re.MULTILINE)


class PipelineError(DelayQError):
    """Error for a request that the pipeline cannot fulfil; the message names an alternative."""


class SparkMissing(PipelineError):
    """Error for a missing installation of Spark or of a package that it needs."""


class EventsLost(PipelineError):
    """Error for events that were trimmed before they were read, or lost by Redis."""


_OURS: Final = (PipelineError, BulkLoadDiffers, EventsLost, Misconfigured, InvalidJob, QueueUnavailable)
_KINDS: Final = {kind.__name__: kind for kind in _OURS}
#: an error of a Python worker, as Spark quotes it
_QUOTED: Final = re.compile(rf"(?:^|: )(?:[\w.]*\.)?({'|'.join(_KINDS)}): (.*)$", re.MULTILINE)


@contextmanager
def plain_errors(note: str = "") -> Iterator[None]:
    """Raise errors of Spark as errors of this package, in one line without stack traces and credentials.

    Args:
        note: what to do, added to errors that are not ours.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise plain_error(str(error), note) from error


def plain_error(text: str, note: str = "") -> DelayQError:
    """Return the error of this package that a text of Spark quotes, else Spark's own cause in one line."""
    text = without_user(text)
    ours = _QUOTED.search(text)
    if ours is not None:
        return _KINDS[ours[1]](ours[2])
    causes = _TRACE.findall(text) or _CAUSE.findall(text)
    message = causes[-1] if causes else text.strip().partition("\n")[0]
    return PipelineError(message[:1000] + note)


def without_user(text: str) -> str:
    """Return the text without the user names and passwords of the URLs in it."""
    return _USER.sub("", text)
