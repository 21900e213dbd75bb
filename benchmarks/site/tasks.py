"""Tasks of the benchmarks."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from benchmarks.programs import stamp
from django_delayq import current_job, task
from django_delayq.core.limits import Answer, Limiter
from django_delayq.core.retry import quadratic

_starts: list[tuple[int, float]] = []


@task(name="blank")
def blank(number: str) -> None:
    """Do nothing but the stamp that every contender's blank job makes."""
    stamp.blank()


@task(name="punctual")
def punctual(due_ms: int) -> None:
    """Record the start time; the last job writes all of them to a file."""
    _starts.append((due_ms, time.time() * 1000))
    if len(_starts) == int(os.environ["BENCH_JOBS"]):
        path = os.environ["BENCH_STAMP"]
        with open(path + ".new", "w") as file:
            json.dump(_starts, file)
        os.replace(path + ".new", path)


@task(name="doze")
def doze(seconds: float) -> None:
    """Wait without using the processor."""
    time.sleep(seconds)


if "BENCH_BATCH" in os.environ:  # only if it is measured, because a worker polls the shards of every known queue

    @task(name="merged", merge=True, shards=5, batch_size=int(os.environ["BENCH_BATCH"]))
    def merged(payloads_by_id: dict[str, list[str]]) -> None:
        """Do nothing for each id of the batch but the stamp."""
        for _ in payloads_by_id:
            stamp.blank()


if "BENCH_GROUPS" in os.environ:
    GROUPS = int(os.environ["BENCH_GROUPS"])

    @task(name="grouped", group=lambda number: str(int(number) % GROUPS), group_concurrency=5, group_rate="10000/s")
    def grouped(number: str) -> None:
        """Do the same as a blank job, within the limits of its group."""
        stamp.blank()


if "BENCH_RATE" in os.environ:
    RATE, BURST = os.environ["BENCH_RATE"].split()

    #: permit -> when it was granted, µs on Redis's clock
    granted: dict[bytes, float] = {}
    ask_limiter = Limiter.call

    def note_grants(limiter: Limiter, *asks: Any, **options: Any) -> Answer:
        """Ask the limiter, and note what it grants."""
        answer = ask_limiter(limiter, *asks, **options)
        for grant in filter(None, answer.grants):
            granted.update(dict.fromkeys(grant.permits, grant.at_us))
        return answer

    Limiter.call = note_grants  # type: ignore[method-assign]

    @task(name="paced", rate=RATE, burst=int(BURST))
    def paced(number: str) -> None:
        """Add the moments of its grant and its start to the file of its process."""
        job = current_job()
        assert job is not None
        with open(f"{os.environ['BENCH_STARTS']}/{os.getpid()}", "a") as file:
            file.write(f"[{granted.pop(job._job.permit) / 1e6}, {time.time()}]\n")


FAILING_SLOTS = int(os.environ.get("BENCH_FAILING", "0"))


@task(name="unsteady", max_attempts=3, retry_in=quadratic(float(os.environ.get("BENCH_DELAY", "0.1"))))
def unsteady(number: str) -> None:
    """Succeed in some threads of the worker, and always raise in the others."""
    if int(threading.current_thread().name.rpartition("-")[2]) < FAILING_SLOTS:
        raise ConnectionError("refused")
