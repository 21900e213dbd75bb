"""The pipeline of docs/declarative_pipeline.py under ``spark-pipelines``, with the specification that the docs show."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from django_delayq.core.broker import Broker

from .test_command import work

Spawn = Callable[..., "subprocess.Popen[str]"]

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
SPARK: Final = Path(pyspark.__file__).parent
#: what Spark 4.3.0 says in the end of a run that is complete, and ends with 1 (SPARK-59135)
HARMLESS: Final = "[UNKNOWN_RESPONSE] Unknown response: Plan observed(__python_accumulator__="


def _absent() -> list[str]:
    """Return the packages of the extra ``pyspark[pipelines]`` that are not installed."""
    names = {
        "grpc": "grpcio",
        "grpc_status": "grpcio-status",
        "google.rpc": "googleapis-common-protos",
        "zstandard": "zstandard",
        "yaml": "pyyaml",
    }
    found = []
    for module, package in names.items():
        try:
            importlib.import_module(module)
        except ImportError:
            found.append(package)
    return found


pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif(bool(_absent()), reason=f"pip install 'pyspark[pipelines]': {', '.join(_absent())} missing"),
]


@pytest.fixture
def pipeline(tmp_path: Path, redis_url: str, prefix: str, spawn: Spawn) -> Callable[[str], tuple[int, str]]:
    """``pipeline("run")``: exit code and output of the documented pipeline, in a folder of its own."""
    (spec,) = re.findall(r"^```yaml\n(name: .*?)^```$", (DOCS / "pipeline.md").read_text(), re.DOTALL | re.MULTILINE)
    changes = {
        "file:///srv/pipeline/storage": f"file://{tmp_path}/storage",
        "redis://localhost:6379/0": f"{redis_url}\n  spark.delayq.prefix: {prefix}",
    }
    for shown, here in changes.items():
        assert shown in spec
        spec = spec.replace(shown, here)
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    (tmp_path / "transformations").mkdir()
    shutil.copy(DOCS / "declarative_pipeline.py", tmp_path / "transformations")
    env = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(DOCS.parent), os.environ.get("PYTHONPATH", "")])),
    }
    command = [
        SPARK / "bin" / "spark-pipelines",
        "--remote",
        "local[2]",
        "--conf",
        "spark.sql.catalogImplementation=hive",
    ]

    def run(word: str) -> tuple[int, str]:
        log = tmp_path / f"{word}.log"
        with log.open("w") as output:
            process = spawn(*command, word, env=env, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
            return process.wait(240), log.read_text()

    return run


def rows(tmp_path: Path, table: str) -> list[dict[str, Any]]:
    """A table, read by somebody who is not Spark."""
    files = sorted((tmp_path / "spark-warehouse" / table).rglob("*.parquet"))
    found: list[dict[str, Any]] = pa.concat_tables(map(pq.read_table, files)).to_pylist() if files else []
    return found


def test_the_documented_pipeline_keeps_the_history(
    pipeline: Callable[[str], tuple[int, str]], broker: Broker, tmp_path: Path
) -> None:
    work(broker, 37, failing=3)
    code, said = pipeline("dry-run")
    assert code == 0, said
    assert "Run is COMPLETED" in said
    assert rows(tmp_path, "events") == []

    first, second = ("orders", 40, 37, 3), ("mails", 7, 6, 1)
    run_through(pipeline)
    assert figures(tmp_path) == [first]
    work(broker, 6, failing=1, queue="mails")
    run_through(pipeline)
    assert figures(tmp_path) == [second, first]
    found = rows(tmp_path, "events")
    assert len(found) == len({(row["queue"], row["shard"], row["stream_id"]) for row in found}) == 47
    assert len(rows(tmp_path, "attempts")) == 47


def run_through(pipeline: Callable[[str], tuple[int, str]]) -> None:
    code, said = pipeline("run")
    assert "Run is COMPLETED" in said, said
    assert code == 0 or HARMLESS in said, said


def figures(tmp_path: Path) -> list[tuple[Any, ...]]:
    """Queue, runs, successes and failures, whatever the hours."""
    hours = rows(tmp_path, "hours")
    names = ("runs", "succeeded", "failed")
    return [
        (queue, *(sum(row[name] for row in hours if row["queue"] == queue) for name in names))
        for queue in sorted({row["queue"] for row in hours})
    ]
