"""Logging with the fields of the running job, and logging of the worker commands. A project's own ``LOGGING`` wins.

Put this in ``LOGGING`` to add the running job to every log line of a handler::

    "filters": {"job": {"()": "django_delayq.logs.JobFilter"}},
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s [%(job_id)s] %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["job"], "formatter": "line"}},
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from typing import Any, Final

from .core.times import iso_of
from .settings.conf import conf_or_defaults, mask
from .worker.attempt import current_job

PACKAGE: Final = "django_delayq"
PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


#: fields that a record gets from the job whose handler created it
FIELDS: Final = ("job_id", "queue", "task", "attempt")
_MOST_IDS: Final = 10
_logger: Final = logging.getLogger("django_delayq.management")
#: beginning of what Django writes of an exception that ends a command
_ERROR: Final = re.compile(r"\w*Error: ")


def job_fields() -> dict[str, Any]:
    """Return ``job_id``, ``queue``, ``task``, ``attempt`` and ``context_<name>`` of the running job, if there is one.

    For a batch, ``job_id`` lists the first ten ids, separated by commas; the other fields are those of the first job.
    Values of the context are masked.
    """
    job = current_job()
    if job is None:
        return {}
    ids = [one.id for one in job.jobs[: _MOST_IDS + 1]] or [job.id]
    fields: dict[str, Any] = {
        "job_id": ",".join(ids[:_MOST_IDS]) + (",…" if len(ids) > _MOST_IDS else ""),
        "queue": job.queue,
        "task": job.task,
        "attempt": job.attempt,
    }
    if job.context:
        fields.update((f"context_{name}", value) for name, value in mask().value(job.context).items())
    return fields


class JobFilter(logging.Filter):
    """Filter that passes every record and adds the fields of :func:`job_fields`. Existing fields are kept.

    Args:
        missing: value of fields that a record would not have, outside of a job for instance, so that a format may
            always name :data:`FIELDS` and ``context_<name>`` of the setting ``CONTEXT``; None omits them.
    """

    def __init__(self, missing: str | None = "-") -> None:
        super().__init__()
        self._missing = missing

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True after adding the fields to ``record``."""
        found = job_fields()
        if self._missing is not None:
            context = [f"context_{name}" for name in conf_or_defaults().context]
            found = dict.fromkeys((*FIELDS, *context), self._missing) | found
        fields = vars(record)
        for name, value in found.items():
            fields.setdefault(name, value)
        return True


_job_filter: Final = JobFilter(missing=None)


def get_logger(name: str) -> logging.Logger:
    """Return a logger for task modules, whose records have the fields of the running job: ``get_logger(__name__)``.

    It needs no settings and also works outside of jobs.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_job_filter)
    return logger


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, the ``extra`` fields, and error with traceback.

    It can also be used in a project's own ``LOGGING``: ``{"()": "django_delayq.logs.JsonFormatter"}``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, Any] = {
            "time": iso_of(record.created * 1000),
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
        elif record.exc_text:
            line["traceback"] = record.exc_text
        return json.dumps(line, default=str)


def configure(style: str = "plain", verbosity: int = 1) -> bool:
    """Set up the logging of a worker command. A handler or a level of the project's ``LOGGING`` stays as it is.

    Args:
        style: "plain" or "json": then every log line of the process, those of its tasks and of other libraries too,
            warnings and uncaught exceptions.
        verbosity: Django's ``--verbosity``: 0 = warnings and failed attempts, 1 = also what a worker does, 2 = also
            each success and all tracebacks (level ``DEBUG``), 3 = also the records of other libraries.

    Returns:
        True if a handler on stderr was added.
    """
    package = logging.getLogger(PACKAGE)
    is_configured = package.hasHandlers()
    if package.level == logging.NOTSET and (verbosity != 1 or not is_configured):
        package.setLevel(logging.WARNING if verbosity < 1 else logging.INFO if verbosity == 1 else logging.DEBUG)
    if is_configured:
        return False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(PLAIN))
    if style == "json":
        handler.addFilter(_job_filter)
        _log_everything()
    if verbosity >= 3:
        logging.root.setLevel(logging.DEBUG)
    (logging.root if style == "json" or verbosity >= 3 else package).addHandler(handler)
    return True


def _log_everything() -> None:
    """Pass all that the process logs, warns of or does not catch to the root logger."""
    for own in [one for one in logging.getLogger("django").handlers if isinstance(one, logging.StreamHandler)]:
        logging.getLogger("django").removeHandler(own)  # Django's default; its records arrive at the root, too
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _logger.critical("uncaught exception", exc_info=error)
    sys.unraisablehook = lambda found: _log_uncaught("an exception was ignored", found.exc_value)
    threading.excepthook = lambda found: _log_uncaught(f"uncaught exception in {found.thread}", found.exc_value)


def _log_uncaught(text: str, error: BaseException | None) -> None:
    _logger.error(text, exc_info=error)


class LogOutput(io.TextIOBase):
    """Output of a management command that logs what the command writes."""

    style_func = None

    def __init__(self, level: int) -> None:
        self._level = level

    def write(self, msg: str = "", style_func: object = None, ending: str | None = None) -> int:
        """Log a text; that of an error (``CommandError: …``) at level ERROR."""
        if text := msg.strip():
            _logger.log(logging.ERROR if _ERROR.match(text) else self._level, "%s", text)
        return len(msg)
