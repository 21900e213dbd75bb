"""Shared parts of the subcommands: Spark's options and session, the pipeline's settings, the output."""

from __future__ import annotations

import contextlib
import json
import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings as django_settings

from ...history.records import Record, record
from ...pipeline.errors import PipelineError
from ...pipeline.session import SessionOptions, opened
from ...settings.conf import Conf, conf
from ..base import DelayQCommand
from ..terminal import RawOutput
from . import address
from .stopping import Stopped, StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# exit codes, in addition to 0 (done), 1 (failed) and 2 (wrong use)
MISSING: Final = 3
STOPPED: Final = 4


class PipelineCommand(DelayQCommand):
    """Base of the command ``delayq_pipeline``, as its subcommands use it."""

    stop_request: StopRequest

    def print_note(self, text: str) -> None:
        """Print a line on stderr; none with ``--verbosity 0``."""
        if not self.quiet:
            out = RawOutput(self.stderr)
            out.write(f"{text}\n")
            out.flush()

    def print_result(self, result: Mapping[str, Any]) -> None:
        """Print the result as the last line of stdout, as one line of JSON."""
        self.stdout.write(json.dumps(result, default=str, ensure_ascii=False))
        self.stdout.flush()


# -- the command line --------------------------------------------------------------------------------------------------


def add_spark(parser: ArgumentParser) -> None:
    """Add ``--master`` and ``--conf``."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master", metavar="URL", help="master of Spark (default: DELAYQ['PIPELINE']['master'], which is local)"
    )
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="option of Spark, which overrides DELAYQ['PIPELINE']['conf']; may be repeated",
    )


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ArgumentTypeError(f"{text!r} is not an option of Spark; write it like spark.driver.memory=2g")
    return key.strip(), value.strip()


def day(text: str) -> date:
    """Return a day like 2026-11-21, as an argparse type."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day; write it like 2026-11-21") from None


# -- the settings ------------------------------------------------------------------------------------------------------


def root(settings: Conf | None = None) -> str:
    """Return the folder of the history. A relative one is below the project's ``BASE_DIR``, a URL is not changed."""
    folder = (settings or conf()).pipeline.root
    if "://" in folder:
        return folder
    base = getattr(django_settings, "BASE_DIR", None)
    return str(Path(base or ".").resolve() / Path(folder).expanduser())


def format_options(settings: Conf | None = None) -> dict[str, str]:
    """Return the options by which the formats ``delayq`` and ``delayq.events`` find Redis, within :func:`session`."""
    return {"redisEnv": address.ENV, "prefix": (settings or conf()).prefix}


def session_options(options: Mapping[str, Any], app: str) -> SessionOptions:
    """Return the options of Spark from the command line and the settings.

    Raises:
        Misconfigured: the address of Redis cannot be passed to Spark's workers, or they cannot reach it.
    """
    settings = conf()
    master = options.get("master") or settings.pipeline.master
    redis = address.redis_address(settings)
    address.check_reach(redis, master)
    return SessionOptions(
        master=master,
        app=app,
        conf={**settings.pipeline.conf, **dict(options.get("conf") or ())},
        environ={address.ENV: redis},
    )


# -- work --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(
    command: PipelineCommand, options: Mapping[str, Any], app: str, *, patient: bool = False
) -> Iterator[SparkSession]:
    """Open a Spark session with the formats registered and the address of Redis set for :func:`format_options`.

    Args:
        app: Spark's name for the application.
        patient: do not cancel Spark's jobs after a stop request, because the block checks ``command.stop_request``
            itself. Otherwise they are cancelled, and the block has to expect an exception.

    Raises:
        SparkMissing: Spark or Java is not installed.
        Stopped: a stop was requested before it began.
    """
    session = session_options(options, app)
    os.environ.update(session.environ)
    with opened(session) as spark:
        command.stop_request.listen()
        command.stop_request.check()
        with contextlib.nullcontext() if patient else command.stop_request.cancelling(spark):
            yield spark


@contextlib.contextmanager
def record_run(
    command: PipelineCommand, kind: str, run_id: str, *, endless: bool = False, **about: Any
) -> Iterator[Record]:
    """Create and update the run's :class:`~django_delayq.models.PipelineRun`.

    See :func:`~django_delayq.history.records.record`. A block that completes is ``finished``, even after a signal. A
    block that detects that it was cut short raises :class:`Stopped`.

    Args:
        endless: the block ends only after a stop request: its row becomes ``stopped``.
        about: further values of the row: queue, task, total, detail.

    Raises:
        Stopped: a stop was requested, and the block failed because of it.
        PipelineError: Spark failed; the text is short.
    """
    with record(kind, run_id, **about) as run:
        try:
            yield run
        except Exception as error:
            if command.stop_request():
                raise Stopped(command.stop_request.message) from error
            if is_spark_error(error):
                raise PipelineError(spark_message(error)) from error
            raise
        if endless and command.stop_request():
            run.stop()


def is_spark_error(error: BaseException) -> bool:
    """Return True if the error comes from Spark; its message is long."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def spark_message(error: BaseException) -> str:
    """Return the message of an error without the Java stack that Spark appends to it.

    For an error in one of Spark's Python workers this is the worker's last line.
    """
    text = str(error).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    traces = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if traces:
        trace = lines[traces[-1] + 1 :]
        last = next((line for line in trace if not line.startswith((" ", "\t"))), "")
        return last or lines[0]
    message = []
    for line in lines:
        if line.startswith(("JVM stacktrace", "\tat ", "    at ", "Driver stacktrace")):
            break
        message.append(line)
    return "\n".join(message[:8]) or type(error).__name__
