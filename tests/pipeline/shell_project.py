"""A project for commands from the shell: settings in a file, a database in a file, a root for the history."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_delayq.pipeline.history import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = """
from tests.pipeline.few_rows import CONF
from tests.settings import *
DELAYQ = {{**DELAYQ, "PIPELINE": {{"root": {root!r}, "master": "local[2]", "conf": CONF}}}}
TIME_ZONE = "America/Chicago"
"""
#: of the table of figures, what can be added up
SUMMED = ("runs", "succeeded", "failed", "buried", "released", "lateness_sum_ms")


@dataclass(frozen=True, slots=True)
class ShellProject:
    """Project in which commands run: their environment and the files they write."""

    env: dict[str, str]
    root: Path
    database: Path

    def figures(self) -> list[tuple[object, ...]]:
        """The table of figures, by queue and task."""
        sums = ", ".join(f"sum({name})" for name in SUMMED)
        return self._read(f"SELECT queue, task, {sums} FROM django_delayq_hourlystat GROUP BY 1, 2 ORDER BY 1, 2")

    def runs(self) -> list[tuple[object, ...]]:
        """State and rows of each run, the first one first."""
        return self._read("SELECT state, rows FROM django_delayq_pipelinerun ORDER BY id")

    def _read(self, sql: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.database)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


def summed(rows: Iterable[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """Return the expected result of :meth:`ShellProject.figures` for these metrics."""
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        found.update({(row["queue"], row["task"], name): row[name] for name in SUMMED})
    return [(*group, *(found[*group, name] for name in SUMMED)) for group in sorted({key[:2] for key in found})]


def lake(spark: SparkSession, root: Path) -> list[dict[str, Any]]:
    """All events of a history, in one order."""
    return sorted((row.asDict() for row in read(spark, f"{root}/events").collect()), key=repr)


def make(folder: Path, manage_env: dict[str, str]) -> ShellProject:
    """Makes one, with its tables."""
    (folder / "shell_settings.py").write_text(_SETTINGS.format(root=str(folder / "history")))
    env = {
        **os.environ,
        **manage_env,
        "DJANGO_SETTINGS_MODULE": "shell_settings",
        "DELAYQ_TEST_DB": f"sqlite:///{folder / 'shell.sqlite3'}",
    }
    env["PYTHONPATH"] = os.pathsep.join([str(folder), env["PYTHONPATH"]])
    subprocess.run([sys.executable, "-m", "django", "migrate", "--verbosity", "0"], env=env, check=True, timeout=120)
    return ShellProject(env, folder / "history", folder / "shell.sqlite3")
