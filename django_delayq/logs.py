"""Logs that know their job, and those of the worker commands. A project's own ``LOGGING`` wins.

In ``LOGGING``, so that every line of a handler carries the job that it was written in::

    "filters": {"job": {"()": "django_delayq.logs.JobFilter"}},
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s [%(job_id)s] %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["job"], "formatter": "line"}},
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final

from .core.inputs import CONTROL
from .settings.conf import mask
from .worker.current import current_job

PACKAGE: Final = "django_delayq"
PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

#: what json.dumps leaves as it is, and what ends a line or moves a cursor all the same; only texts of a line hold such
_CONTROL: Final = re.compile(CONTROL)
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


#: what a record is told of the job in whose handler it was made
FIELDS: Final = ("job_id", "queue", "task", "attempt")
_MOST_IDS: Final = 10


def job_fields() -> dict[str, Any]:
    """Return ``job_id``, ``queue``, ``task``, ``attempt`` and ``context_<name>`` of the running job, if there is one.

    The ``job_id`` of a batch is that of its first ten jobs, with commas between; the rest is the first job's. Values of
    the context are masked.
    """
    job = current_job()
    if job is None:
        return {}
    ids = [one.id for one in job.jobs[: _MOST_IDS + 1]] or [job.id]
    found: dict[str, Any] = {
        "job_id": ",".join(ids[:_MOST_IDS]) + (",…" if len(ids) > _MOST_IDS else ""),
        "queue": job.queue,
        "task": job.task,
        "attempt": job.attempt,
    }
    if job.context:
        found.update((f"context_{name}", value) for name, value in mask().value(job.context).items())
    return found


class JobFilter(logging.Filter):
    """Lets every record pass, and gives it the fields of :func:`job_fields`. Fields that it has are left alone.

    Arguments:
        missing: what :data:`FIELDS` are outside of a job, so that a format may always name them; None = leave them out.
    """

    def __init__(self, missing: str | None = "-") -> None:
        super().__init__()
        self._outside = {} if missing is None else dict.fromkeys(FIELDS, missing)

    def filter(self, record: logging.LogRecord) -> bool:
        """True."""
        known = vars(record)
        for name, value in (job_fields() or self._outside).items():
            known.setdefault(name, value)
        return True


class JobAdapter(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry the running job's fields, as :class:`JobFilter` would give them.

    The message stays as it is, so that what groups lines by their text still can.
    """

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The message, and the arguments with the fields in ``extra``."""
        found = job_fields()
        if found:
            kwargs["extra"] = {**found, **(kwargs.get("extra") or {})}
        return msg, kwargs


def get_logger(name: str) -> JobAdapter:
    """A logger for task modules: ``logger = get_logger(__name__)``. It needs no settings, and works outside of jobs."""
    return JobAdapter(logging.getLogger(name), {})


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
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, default=str, ensure_ascii=False))


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
    if style == "json":
        handler.addFilter(JobFilter(missing=None))
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter(PLAIN))
    package.addHandler(handler)
    if package.level == logging.NOTSET:
        package.setLevel(logging.WARNING if verbosity < 1 else logging.INFO if verbosity == 1 else logging.DEBUG)
    return True
