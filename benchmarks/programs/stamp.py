"""Blank job, the same for every contender: it counts, and records when the first and the last one ran.

Standard library only, because it runs inside the peers' environments as well.
"""

from __future__ import annotations

import itertools
import json
import os
import time

_count = itertools.count(1)
_total = int(os.environ.get("BENCH_JOBS", "0"))
_path = os.environ.get("BENCH_STAMP", "")
_first = 0.0


def blank() -> None:
    """Count; takes about 0.1 µs, except for the first and the last job."""
    global _first
    number = next(_count)
    if number == 1:
        _first = time.time()
    elif number == _total:
        text = json.dumps({"first": _first, "last": time.time()})
        with open(_path + ".new", "w") as file:
            file.write(text)
        os.replace(_path + ".new", _path)


def measured(jobs: int, call: object, warm_up: int = 200) -> None:
    """Time ``jobs`` calls of ``call(number)`` after a warm-up and print the result as JSON."""
    for number in range(warm_up):
        call(number)  # type: ignore[operator]
    started, cpu = time.perf_counter(), time.process_time()
    for number in range(warm_up, warm_up + jobs):
        call(number)  # type: ignore[operator]
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"jobs": jobs, "seconds": seconds, "cpu_seconds": cpu_seconds}))
