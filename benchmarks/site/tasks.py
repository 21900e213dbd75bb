"""The tasks that are measured."""

from __future__ import annotations

import json
import os
import threading
import time

from benchmarks.programs import stamp
from django_delayq import task
from django_delayq.core.retry import quadratic

_starts: list[tuple[int, float]] = []


@task(name="blank")
def blank(number: str) -> None:
    """Nothing, apart from the stamp that every contender's blank job makes."""
    stamp.blank()


@task(name="punctual")
def punctual(due_ms: int) -> None:
    """Keep when it ran; the last one writes all of them down."""
    _starts.append((due_ms, time.time() * 1000))
    if len(_starts) == int(os.environ["BENCH_JOBS"]):
        path = os.environ["BENCH_STAMP"]
        with open(path + ".new", "w") as file:
            json.dump(_starts, file)
        os.replace(path + ".new", path)


@task(name="doze")
def doze(seconds: float) -> None:
    """Wait for something else than the processor."""
    time.sleep(seconds)


if "BENCH_BATCH" in os.environ:  # only where it is measured: a worker looks at the shards of every queue that it knows

    @task(name="merged", merge=True, shards=5, batch_size=int(os.environ["BENCH_BATCH"]))
    def merged(payloads_by_id: dict[str, list[str]]) -> None:
        """Nothing for each id of the batch."""
        for _ in payloads_by_id:
            stamp.blank()


FAILING_SLOTS = int(os.environ.get("BENCH_FAILING", "0"))


@task(name="unsteady", max_attempts=3, retry_in=quadratic(float(os.environ.get("BENCH_DELAY", "0.1"))))
def unsteady(number: str) -> None:
    """Succeeds in some threads of the worker, always raises in the others."""
    if int(threading.current_thread().name.rpartition("-")[2]) < FAILING_SLOTS:
        raise ConnectionError("refused")
