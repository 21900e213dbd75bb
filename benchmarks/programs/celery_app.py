"""Celery program: Redis broker, results off, and the prefetch that drained fastest when several were tried."""

from __future__ import annotations

import json
import os
import sys

import stamp
from celery import Celery

app = Celery("celery_app", broker=f"redis+socket://{os.environ['BENCH_SOCKET']}")
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "64")),
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="blank")
def blank(number: str) -> None:
    stamp.blank()


if __name__ == "__main__":
    verb, jobs = sys.argv[1], int(sys.argv[2])
    if verb == "fill":
        with app.producer_pool.acquire() as producer:
            for at in range(jobs):
                blank.apply_async((str(at),), producer=producer)
        print(json.dumps({"jobs": jobs}))
    else:
        stamp.measured(jobs, lambda at: blank.delay(str(at)))
