"""Shared parts of the subcommands: Spark's options and session, the pipeline's settings, signals, the output."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import threading
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings as django_settings

from ...history.records import Record, record
from ...pipeline.errors import plain_errors
from ...pipeline.session import SessionOptions, opened
from ...settings.conf import Conf, conf
from ..base import DelayQCommand
from ..progress import RawOutput
from . import address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# exit codes, in addition to 0 (done), 1 (failed) and 2 (wrong use)
MISSING: Final = 3
STOPPED: Final = 4
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class PipelineCommand(DelayQCommand):
    """Base of the command ``delayq_pipeline``, as its subcommands use it."""

    #: row of the run in progress
    record: Record | None = None
    #: what to do after a signal
    resume_hint = "the same command resumes from here"
    #: result of a subcommand that runs until a signal ends it
    endless_result: Callable[[], Mapping[str, Any]] | None = None

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

    def listen(self) -> None:
        """Let SIGTERM and Ctrl-C end the process. Spark installs a handler of its own, so call this when it is up.

        Every step may be interrupted, because the next run completes what a killed one has left. Only the run's row is
        updated, by a thread: an exception in the main one could break into the middle of its exchange with Java.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle_signal)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals as :meth:`listen` does during the block."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:  # the second signal ends the process at once
            signal.signal(each, signal.SIG_DFL)
        threading.Thread(target=self._end, args=(signal.Signals(number).name,), name="delayq-stopping").start()

    def _end(self, signal_name: str) -> None:
        """End the process. Spark's Java detects it by its pipe."""
        code = STOPPED
        try:
            if self.record is not None:
                self.record.end(KeyboardInterrupt(f"stopped by {signal_name}"))
            if self.endless_result is not None:
                code = 0
                self.print_result(self.endless_result())
            else:
                self.stderr.write(f"CommandError: stopped by {signal_name}; {self.resume_hint}")
                self.stderr.flush()
        finally:
            os._exit(code)


@dataclass(frozen=True, slots=True)
class Subcommand:
    """Subcommand of ``delayq_pipeline``. It imports Spark only when it runs, so that ``--help`` works without it."""

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    #: returns the exit code; None = 0
    run: Callable[[PipelineCommand, Mapping[str, Any]], int | None]
    examples: tuple[str, ...] = ()
    #: what has to be installed: java (and the packages of the extra), packages or nothing
    needs: str = "java"


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


def new_run_id(kind: str) -> str:
    """Return a generated id for a pipeline run."""
    return f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def session(command: PipelineCommand, options: Mapping[str, Any], app: str) -> Iterator[SparkSession]:
    """Open a Spark session with the formats registered and the address of Redis set for :func:`format_options`.

    Args:
        app: Spark's name for the application.

    Raises:
        SparkMissing: Spark or Java is not installed.
    """
    chosen = session_options(options, app)
    os.environ.update(chosen.environ)
    with opened(chosen) as spark:
        command.listen()
        yield spark


@contextlib.contextmanager
def record_run(command: PipelineCommand, kind: str, run_id: str, **about: Any) -> Iterator[Record]:
    """Create and update the run's :class:`~django_delayq.models.PipelineRun`; one that a signal ends is ``stopped``.

    Args:
        about: further values of the row: queue, task, total, detail.

    Raises:
        PipelineError: Spark failed; the text is short.
    """
    with record(kind, run_id, **about) as run, plain_errors("\n--traceback shows Spark's full error."):
        command.record = run
        yield run
        command.record = None
