"""The tasks that are measured."""

from __future__ import annotations

import json
import os
import time

from benchmarks.programs import stamp
from django_delayq import task

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
