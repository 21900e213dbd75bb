"""Program of django_delayq, through the public interface."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import django
from django.core.management import call_command

from benchmarks.programs import stamp

BULK_DELAY_SECONDS = 3600
#: jobs per schedule_many() call of the merged workload
MERGED_CALL = 10_000


def entries(jobs: int, **options: Any) -> Iterator[dict[str, Any]]:
    """Return jobs 0 … ``jobs - 1``, each with an id and one string as its argument."""
    return ({"id": str(number), "args": [str(number)], **options} for number in range(jobs))


def produced(jobs: int, threads: int, call: Callable[[int], object]) -> dict[str, float]:
    """Make ``jobs`` calls, divided among threads; return when they started and how long they took."""

    def produce(first: int) -> None:
        for number in range(first, jobs, threads):
            call(number)

    team = [threading.Thread(target=produce, args=(first,)) for first in range(threads)]
    call(0)  # connect before the clock starts; this job is not counted
    began, started = time.time(), time.perf_counter()
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return {"jobs": jobs, "began": began, "seconds": time.perf_counter() - started}


def main(verb: str, jobs: int) -> None:
    """Fill the queue, or time one of the ways of scheduling."""
    django.setup()
    from benchmarks.site.tasks import blank, doze, punctual, unsteady
    from django_delayq import schedule, schedule_many

    if verb == "fill":
        print(json.dumps({"jobs": jobs, "outcomes": schedule_many(blank, entries(jobs))}))
    elif verb in ("fill_grouped", "fill_paced"):
        name = verb.removeprefix("fill_")
        print(json.dumps({"jobs": jobs, "outcomes": schedule_many(name, entries(jobs))}))
    elif verb == "fill_merged":
        started = time.perf_counter()
        for first in range(0, jobs, MERGED_CALL):
            schedule_many(
                "merged", ({"id": n, "payload": str(n)} for n in range(first, min(first + MERGED_CALL, jobs)))
            )
        print(json.dumps({"jobs": jobs, "seconds": time.perf_counter() - started}))
    elif verb == "produce":
        threads, delay = int(sys.argv[3]), float(sys.argv[4])
        print(json.dumps(produced(jobs, threads, lambda number: schedule(unsteady, str(number), delay=delay))))
    elif verb == "enqueue":
        stamp.measured(jobs, lambda number: schedule(blank, str(number)))
    elif verb == "enqueue_durable":
        call_command("migrate", verbosity=0)
        stamp.measured(jobs, lambda number: schedule(blank, str(number), durable=True))
    elif verb == "bulk":
        schedule_many(blank, [{"args": ["warm"], "delay": BULK_DELAY_SECONDS}])
        started = time.perf_counter()
        outcomes = schedule_many(blank, entries(jobs, delay=BULK_DELAY_SECONDS))
        print(json.dumps({"jobs": jobs, "seconds": time.perf_counter() - started, "outcomes": outcomes}))
    elif verb == "doze":
        seconds, rate = float(sys.argv[3]), float(sys.argv[4])
        first = time.time()
        dozes = ({"args": [seconds], "at": first + number / rate} for number in range(jobs))
        print(json.dumps({"jobs": jobs, "outcomes": schedule_many(doze, dozes)}))
    elif verb == "punctual":
        first, spread = float(sys.argv[3]), float(sys.argv[4])
        dues = [int((first + spread * number / jobs) * 1000) for number in range(jobs)]
        outcomes = schedule_many(punctual, ({"args": [due], "at": due / 1000} for due in dues))
        print(json.dumps({"jobs": jobs, "outcomes": outcomes}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
