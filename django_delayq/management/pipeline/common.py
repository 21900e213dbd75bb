"""Shared parts of the subcommands: Spark's options and session, the pipeline's settings, signals, the output."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings as django_settings

from ...connections import check_cache, embedded_url
from ...core.errors import Misconfigured
from ...history.records import Record, record
from ...pipeline.errors import plain_errors
from ...pipeline.options import config_of
from ...pipeline.session import SessionOptions, opened
from ...settings.conf import SETTING, Conf, conf
from ..base import DelayQCommand, add_options
from ..progress import RawOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# exit codes, in addition to 0 (done), 1 (failed) and 2 (wrong use)
MISSING: Final = 3
STOPPED: Final = 4
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: environment variable that passes the address of Redis to Spark's workers, which have no settings and no Django
REDIS_ENV: Final = "DELAYQ_PIPELINE_REDIS"


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
    #: returns the exit code; None = 0
    run: Callable[[PipelineCommand, Mapping[str, Any]], int | None]
    #: tables of its options by the titles of their groups, see :func:`.add_options`
    options: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    #: what has to be installed: java (and the packages of the extra), packages or nothing
    needs: str = "java"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add its options, and those of Spark if it starts Spark."""
        for title, table in {**self.options, **({"Spark": SPARK} if self.needs == "java" else {})}.items():
            add_options(parser.add_argument_group(title), table)


SPARK: Final = """
    --master URL       master of Spark (default: DELAYQ['PIPELINE']['master'], which is local)
    --conf KEY=VALUE…  option of Spark, which overrides DELAYQ['PIPELINE']['conf']; may be repeated
"""


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
    return {"redisEnv": REDIS_ENV, "prefix": (settings or conf()).prefix}


def redis_address(settings: Conf, master: str) -> str:
    """Return the value of ``DELAYQ["REDIS"]`` as text for Spark's workers; the embedded Redis is started if necessary.

    Raises:
        Misconfigured: the settings name a cache whose location is no URL; or the executors of ``master`` cannot reach
            a socket of this machine.
    """
    redis: Any = embedded_url(settings) if settings.is_embedded else settings.redis
    if isinstance(redis, str) and "://" not in redis:
        check_cache(redis)
        cache: Any = django_settings.CACHES[redis]
        options = {name.upper(): value for name, value in cache.get("OPTIONS", {}).items()}
        redis = {"URL": cache["LOCATION"], **({"PASSWORD": options["PASSWORD"]} if "PASSWORD" in options else {})}
    text = redis if isinstance(redis, str) else json.dumps(dict(redis), default=str)
    config = config_of({"redis": text})
    if config.path and not master.startswith("local"):
        raise Misconfigured(
            f"the executors of {master} cannot reach Redis at {config.display_url}, a socket of this machine: set "
            f"{SETTING}['REDIS'] to a URL that every machine can use, like 'redis://redis.example.com:6379/0'"
        )
    return text


def session_options(options: Mapping[str, Any], app: str) -> SessionOptions:
    """Return the options of Spark from the command line and the settings.

    Raises:
        Misconfigured: the address of Redis cannot be passed to Spark's workers, or they cannot reach it.
    """
    settings = conf()
    master = options.get("master") or settings.pipeline.master
    return SessionOptions(
        master=master,
        app=app,
        conf={**settings.pipeline.conf, **dict(options.get("conf") or ())},
        environ={REDIS_ENV: redis_address(settings, master)},
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
