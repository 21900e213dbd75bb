"""What the subcommands share: options of Spark, its session, the settings as the pipeline wants them, the last line."""

from __future__ import annotations

import contextlib
import json
import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from django.conf import settings as django_settings

from ...history.records import Record, record
from ...pipeline.errors import PipelineError
from ...pipeline.progress import Progress, Screen
from ...pipeline.session import SessionOptions, opened
from ...settings.conf import Conf, conf
from . import address
from .stopping import Stopped, Stopping

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper
    from pyspark.sql import SparkSession

# exit codes, beside 0 (done), 1 (failed) and 2 (wrong use)
MISSING: Final = 3
STOPPED: Final = 4


class Desk(Protocol):
    """What a subcommand sees of the command: :class:`~django_delayq.management.commands.delayq_pipeline.Command`."""

    stdout: OutputWrapper
    stderr: OutputWrapper
    #: whether somebody wants an end
    stopping: Stopping


# -- the command line --------------------------------------------------------------------------------------------------


def add_spark(parser: ArgumentParser) -> None:
    """``--master`` and ``--conf``."""
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="where it runs (default: DELAYQ['PIPELINE']['master'], local)")
    group.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="an option of Spark, over those of DELAYQ['PIPELINE']['conf']; may be repeated",
    )


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ArgumentTypeError(f"{text!r} is no option of Spark; write it like spark.driver.memory=2g")
    return key.strip(), value.strip()


def day(text: str) -> date:
    """An argparse type: a day like 2026-11-21."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no day like 2026-11-21") from None


# -- the settings ------------------------------------------------------------------------------------------------------


def root(settings: Conf | None = None) -> str:
    """The folder of the history: a relative one lies in the project's ``BASE_DIR``, a URL stays as it is."""
    given = (settings or conf()).pipeline.root
    if "://" in given:
        return given
    base = getattr(django_settings, "BASE_DIR", None)
    return str(Path(base or ".").resolve() / Path(given).expanduser())


def format_options(settings: Conf | None = None) -> dict[str, str]:
    """The options with which the formats ``delayq`` and ``delayq.events`` find Redis, within :func:`session`."""
    return {"redisEnv": address.ENV, "prefix": (settings or conf()).prefix}


def session_options(options: Mapping[str, Any], app: str, settings: Conf | None = None) -> SessionOptions:
    """What the command line and the settings order of Spark.

    Raises:
        Misconfigured: Redis cannot be told to Spark's workers, or they cannot reach it.
    """
    settings = settings or conf()
    master = options.get("master") or settings.pipeline.master
    where = address.spoken(settings)
    address.check_reach(where, master)
    return SessionOptions(
        master=master,
        app=app,
        conf={**settings.pipeline.conf, **dict(options.get("conf") or ())},
        environ={address.ENV: where},
    )


# -- work --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(command: Desk, options: Mapping[str, Any], app: str, *, patient: bool = False) -> Iterator[SparkSession]:
    """Spark, with the formats registered and Redis known to it and to this process by :func:`format_options`.

    Args:
        app: what Spark calls the application.
        patient: leave Spark's jobs alone when somebody wants an end, because the block looks at ``command.stopping``
            itself. Otherwise they are cancelled, and the block has to expect an exception.

    Raises:
        SparkMissing: Spark or Java is not there.
        Stopped: an end was wanted before it began.
    """
    wanted = session_options(options, app)
    os.environ.update(wanted.environ)
    with opened(wanted) as spark:
        command.stopping.listen()
        command.stopping.check()
        with contextlib.nullcontext() if patient else command.stopping.cancelling(spark):
            yield spark


@contextlib.contextmanager
def recorded(command: Desk, kind: str, run_id: str, *, endless: bool = False, **about: Any) -> Iterator[Record]:
    """The run's row of :class:`~django_delayq.models.PipelineRun`, see :func:`~django_delayq.history.records.record`.

    A block that is through is ``finished``, whatever signals came; a block that sees itself cut short raises
    :class:`Stopped`.

    Args:
        endless: the block ends only when somebody wants an end: its row says ``stopped``.
        about: what else the row tells: queue, task, total, detail.

    Raises:
        Stopped: an end was wanted, and the block failed for it.
        PipelineError: Spark failed; the text is short.
    """
    with record(kind, run_id, **about) as kept:
        try:
            yield kept
        except Exception as error:
            if command.stopping():
                raise Stopped(command.stopping.sentence) from error
            if is_sparks(error):
                raise PipelineError(told(error)) from error
            raise
        if endless and command.stopping():
            kept.stop()


def progress(command: Desk, what: str, options: Mapping[str, Any]) -> Progress:
    """The bar on stderr; none with ``--verbosity 0``."""
    return Progress(what, stream=_plain(command), quiet=options.get("verbosity") == 0)


def say(command: Desk, text: str, options: Mapping[str, Any]) -> None:
    """A line for people, on stderr; none with ``--verbosity 0``."""
    if options.get("verbosity") != 0:
        screen = _plain(command)
        screen.write(f"{text}\n")
        screen.flush()


def _plain(command: Desk) -> Screen:
    """stderr as it is: Django writes everything there in red, and ends each piece with a line."""
    wrapper: Any = command.stderr
    screen: Screen = wrapper._out
    return screen


def finish(command: Desk, result: Mapping[str, Any]) -> None:
    """The last line of stdout: what came of it, as one line of JSON."""
    command.stdout.write(json.dumps(result, default=str, ensure_ascii=False))
    command.stdout.flush()


def is_sparks(error: BaseException) -> bool:
    """Whether it comes from Spark, whose texts are long."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def told(error: BaseException) -> str:
    """What an error says, without the stack of Java that Spark appends to it.

    Of an error in one of Spark's Python workers that is the worker's last line.
    """
    text = str(error).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    traces = [place for place, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    if traces:
        inside = lines[traces[-1] + 1 :]
        end = next((line for line in inside if not line.startswith((" ", "\t"))), "")
        return end or lines[0]
    kept = []
    for line in lines:
        if line.startswith(("JVM stacktrace", "\tat ", "    at ", "Driver stacktrace")):
            break
        kept.append(line)
    return "\n".join(kept[:8]) or type(error).__name__
