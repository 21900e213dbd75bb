"""Subcommand ``delayq_pipeline doctor``: check the requirements of the pipeline, with advice for missing ones.

It works even if nothing is installed, and changes nothing. The database and the settings of Redis are checked by
`migrate --check` and `delayq_check`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from redis.exceptions import RedisError

from ... import connections as ours
from ...core.errors import DelayQError
from ...pipeline.errors import SparkMissing
from ...pipeline.session import PACKAGES, check, check_java
from ...settings.conf import SETTING, Conf, conf
from ...status import Finding
from . import common

#: free space at the root below which a warning is printed
LITTLE_SPACE: Final = 1 << 30
#: part of a stream's cap above which unread events cause a warning
NEARLY_FULL: Final = 0.7


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> int | None:
    """Run the checks and print the findings. Return the exit code for missing requirements."""
    results = command.print_findings(findings(conf()))
    missing = [finding.check for finding in results if finding.level == "ERROR"]
    if options["json"]:
        values = [finding.values() for finding in results]
        command.print_result({"ok": not missing, "missing": missing, "findings": values})
    elif not missing:
        command.stdout.write("All requirements are met.")
    return common.MISSING if missing else None


def findings(settings: Conf) -> Iterator[Finding]:
    """Yield all findings, in order."""
    yield Finding("OK", "python", f"{sys.version.split()[0]}, {sys.executable}; Spark's workers use the same one")
    try:
        check()
    except SparkMissing as error:
        yield Finding("ERROR", "pyspark", str(error))
    else:
        yield from (Finding("OK", name, version(name)) for name in PACKAGES)
        yield _events(settings)
    try:
        yield Finding("OK", "java", check_java())
    except SparkMissing as error:
        yield Finding("ERROR", "java", str(error))
    yield _root(common.root(settings))


def _events(settings: Conf) -> Finding:
    """Check that the history keeps up with the events."""
    from .history import make_history

    cap = settings.events.cap
    if not cap:
        return Finding("ERROR", "events", f"{SETTING}['EVENTS']['cap'] is 0, so no events are stored: remove it")
    try:
        common.redis_address(settings, settings.pipeline.master)
        history = make_history(None, {})
        started, lag = history.table.latest() is not None, history.lag(ours.broker())
    except (DelayQError, RedisError, OSError) as error:
        return Finding("ERROR", "events", f"{error}. Is Redis running, and is {SETTING}['REDIS'] right?")
    text = f"{sum(shard.events for shard in lag)} events are unread; a shard keeps its latest {cap}"
    if any(shard.events >= NEARLY_FULL * cap for shard in lag):
        return Finding("WARN", "events", f"{text}: run delayq_pipeline run now, and more often")
    if not started:
        return Finding("WARN", "events", f"{text}. Start delayq_pipeline run by cron, or keep delayq_pipeline stream")
    return Finding("OK", "events", text)


def _root(root: str) -> Finding:
    if "://" in root:
        return Finding("OK", "root", f"{root}; only Spark can test whether it is writable")
    present = next(path for path in (Path(root), *Path(root).parents) if path.exists())
    if not present.is_dir() or not os.access(present, os.W_OK):
        text = f"{root} cannot be written: set {SETTING}['PIPELINE']['root'] to a writable folder"
        return Finding("ERROR", "root", text)
    free = shutil.disk_usage(present).free
    space = f"{root}, {free / (1 << 30):.1f} GiB free"
    if free < LITTLE_SPACE:
        return Finding("WARN", "root", f"{space}: delayq_pipeline purge deletes old days")
    return Finding("OK", "root", space)


SUBCOMMAND: Final = common.Subcommand(
    "check what the pipeline needs, and print how to get what is missing (exit code 3 if anything is)",
    _run,
    {"output": "--json  print one line of JSON"},
    needs="nothing",
)
