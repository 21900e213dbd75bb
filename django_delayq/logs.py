"""Logs of the worker commands. A project's own ``LOGGING`` wins; this fills in when it says nothing."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

PACKAGE: Final = "django_delayq"
PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, the ``extra`` fields, and error with traceback.

    Also for a project's own ``LOGGING``: ``{"()": "django_delayq.logs.JsonFormatter"}``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            "thread": record.threadName,
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(style: str = "plain", verbosity: int = 1) -> bool:
    """Give the package's logger a handler on stderr, unless the project's ``LOGGING`` gave it one.

    Arguments:
        style: "plain" or "json".
        verbosity: Django's ``--verbosity``: 0 warnings, 1 what happens, 2 and more everything.

    Returns:
        Whether a handler was added.
    """
    package = logging.getLogger(PACKAGE)
    if package.hasHandlers():
        return False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(PLAIN))
    package.addHandler(handler)
    if package.level == logging.NOTSET:
        package.setLevel(logging.WARNING if verbosity < 1 else logging.INFO if verbosity == 1 else logging.DEBUG)
    return True
