"""Bulk loads that are killed or tried twice in mid-write duplicate and lose no job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.pipeline.bulk import BulkOptions, bulk
from django_delayq.pipeline.inputs import Files
from django_delayq.pipeline.write_options import WriteOptions
from django_delayq.pipeline.writer import open_run, send

from ..support.moments import in_days
from .test_writer import counts, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 30_000


def start(spawn: Callable[..., Any], what: str, said: dict[str, Any], **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.pipeline.bulk_program", what, json.dumps(said)]
    root = Path(__file__).resolve().parents[2]
    made: subprocess.Popen[str] = spawn(*command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return made


def write_rows(path: Path, keys: Sequence[int], later: datetime, is_due: Callable[[int], bool]) -> None:
    """Write a file of rows, some of which are due, so that their jobs can run between two tries."""
    due = [datetime(2020, 1, 1, tzinfo=UTC) if is_due(n) else later + timedelta(milliseconds=n) for n in keys]
    pq.write_table(pa.table({"pk": list(keys), "at": pa.array(due, pa.timestamp("us", "UTC"))}), path)


def load_of(broker: Broker, redis_url: str, **more: str) -> dict[str, Any]:
    """Return the options of a bulk load of these rows."""
    said = {"queue": "q", "task": "t", "id": "{pk}", "due": "at", "args": ("pk",), "run_id": "r"}
    return {**said, "redis": redis_url, "prefix": broker.prefix, "more": {"shards": "3", **more}}


def waiting(broker: Broker, queue: str) -> int:
    found = broker.inspector.counts(queue)
    return found.delayed + found.ready


def test_a_driver_that_is_killed_is_gone_on_with_in_another_zone_and_nothing_is_doubled(
    spark: SparkSession, broker: Broker, redis_url: str, spawn: Callable[..., Any], tmp_path: Path
) -> None:
    path, said = str(tmp_path / "rows.parquet"), load_of(broker, redis_url)
    write_rows(Path(path), range(ROWS), in_days(30), lambda n: n % 4 == 0)
    killed = start(spawn, "files", {**said, "path": path, "rate": 3_000}, TZ="Asia/Tokyo")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while sum(loads.progress(broker, run).values() if (run := loads.read_load(broker, "r")) else ()) < 3_000:
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    ran = len(take(broker, 1_000))
    assert ran > 500
    result = bulk(spark, Files((path,)), BulkOptions(**said))
    assert 3_000 <= result.before < ROWS
    assert (result.rows, result.created) == (ROWS, ROWS)
    assert waiting(broker, "q") == ROWS - ran


@pytest.mark.spark
def test_a_task_that_fails_when_everything_is_written_is_tried_again_and_doubles_nothing(
    broker: Broker, redis_url: str, spawn: Callable[..., Any]
) -> None:
    said = {"redis": redis_url, "prefix": broker.prefix, "queue": "q", "task": "t", "runId": "r"}
    process = start(spawn, "after", said)
    out, _ = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1]) == {"done": True}
    assert counts(broker, "r") == {"created": 5_000}
    assert waiting(broker, "q") == 5_000


def test_two_senders_of_one_part_double_nothing(broker: Broker) -> None:
    """Simulate speculative execution, which Spark does only with several hosts."""
    batches = [pa.RecordBatch.from_pydict({"id": [f"{n}" for n in range(at, at + 500)]}) for at in range(0, 4_000, 500)]
    wanted = WriteOptions(queue="q", task="t", shards=3)
    barrier = threading.Barrier(2)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            barrier.wait()
            send(broker, wanted, open_run(broker, "r", wanted, {}), batches)
        except BaseException as error:
            failed.append(error)

    senders = [threading.Thread(target=run) for _ in range(2)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert failed == []
    assert counts(broker, "r") == {"created": 4_000}
    assert len(take(broker, 5_000)) == 4_000


def send_in_pieces(broker: Broker, table: pa.Table, size: int) -> None:
    wanted = WriteOptions(queue="x", task="t", chunk=3)
    send(broker, wanted, open_run(broker, "a", wanted, {}), table.to_batches(max_chunksize=size))


def all_stored(broker: Broker) -> dict[bytes, dict[bytes, bytes]]:
    """All ledgers and jobs."""
    keys = [key for key in broker.client.scan_iter(f"{broker.prefix}:*") if b"}:load:" in key or key.endswith(b":body")]
    return {key: broker.client.hgetall(key) for key in sorted(keys)}


def test_the_same_rows_make_the_same_chunks_in_any_batches(broker: Broker) -> None:
    table = pa.table({"id": [f"i{n}" for n in range(3_000)]})
    send_in_pieces(broker, table, 3_000)
    once = all_stored(broker)
    for size in (7, 30, 1_700):
        send_in_pieces(broker, table, size)
        assert all_stored(broker) == once
