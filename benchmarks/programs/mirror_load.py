"""Load of the mirror: jobs fail at a steady rate in one thread, the mirror copies them in another.

Arguments: failures a minute, seconds, bytes of a traceback. Redis and the database come from the environment. Prints
one JSON line: statements, seconds of CPU (the mirror's thread, its session of PostgreSQL), rows, bytes of the table and
of WAL.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.models import Avg, ExpressionWrapper, F, Max, fields

from tests.support.postgres_box import PostgresDatabase

QUEUE = "load"
SHARDS = 4
TICK = 0.25
ARGS = {"order": 12345, "password": "hunter2", "lines": ["x" * 60] * 15}
FRAME = '  File "/srv/shop/orders/payment.py", line {n}, in pay\n    return gateway.pay(order, token=token, n={n})\n'


def main() -> None:
    rate, seconds, size = map(int, sys.argv[1:])
    settings.configure(
        INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django_delayq"],
        DATABASES={"default": PostgresDatabase.from_url(os.environ["BENCH_DB"]).django},
        DELAYQ={"REDIS": os.environ["BENCH_REDIS"]},
        USE_TZ=True,
        SECRET_KEY="-",
    )
    django.setup()
    call_command("migrate", verbosity=0)
    print(json.dumps(measured(rate, seconds, size)))


def measured(rate: int, seconds: int, size: int) -> dict[str, Any]:
    from django_delayq.connections import broker
    from django_delayq.mirror import Mirror
    from django_delayq.models import FailedJob
    from django_delayq.worker.loop import Changes

    changes = Changes()
    queue = broker().queue(QUEUE, shards=SHARDS)
    mirror = Mirror(broker(), changes, lambda: [queue])
    mirror.run()
    failing = threading.Thread(target=fail_steadily, args=(queue, changes, rate, seconds, error_of(size)))
    statements = [0]

    def count(execute: Any, *args: Any) -> Any:
        statements[0] += 1
        return execute(*args)

    with connection.execute_wrapper(count):
        before = (database_figures(), time.thread_time(), statements[0])
        started = time.perf_counter()
        failing.start()
        ended = 0.0
        while True:
            time.sleep(min(mirror.run(), TICK))
            if failing.is_alive():
                ended = time.perf_counter()
            elif all(index.due_at == float("inf") for index in mirror._mirrors.values()):
                break
        caught_up = time.perf_counter()
        cpu, made = time.thread_time() - before[1], statements[0] - before[2]
    after = database_figures()
    age = ExpressionWrapper(F("seen_at") - F("failed_at"), output_field=fields.DurationField())
    late = FailedJob.objects.aggregate(mean=Avg(age), longest=Max(age))
    return {
        "failures": rate * seconds // 60,
        "seconds": ended - started,
        "behind": caught_up - ended,
        "statements": made,
        "cpu": cpu,
        "postgres_cpu": after["cpu"] - before[0]["cpu"],
        "wal": after["wal"] - before[0]["wal"],
        "size": after["size"],
        "rows": FailedJob.objects.count(),
        "late": late["mean"].total_seconds(),
        "latest": late["longest"].total_seconds(),
    }


def fail_steadily(queue: Any, changes: Any, rate: int, seconds: int, error: bytes) -> None:
    """Let jobs fail in each tick: new ones, and those of the tick before a second time, so that rows are changed."""
    from django_delayq.core.codec import encode_args
    from django_delayq.core.job import NewJob, new_key
    from django_delayq.core.outcomes import fail

    args = encode_args((), ARGS)
    each, number, again = round(rate / 60 * TICK / 2), 0, []
    started = time.perf_counter()
    for tick in range(int(seconds / TICK)):
        names = [f"job-{number + n}" for n in range(each)]
        number += each
        queue.schedule_many([NewJob(name, "shop.pay", args, key=new_key()) for name in names])
        for name in again:
            queue.run_now(name)
        again = names
        for shard in queue.numbers:
            jobs = queue.reserve(shard, 250, worker="bench").jobs
            if jobs:
                settled = [fail(job, 1, 2, delay_ms=600_000, error=error, error_class="shop.Down") for job in jobs]
                queue.settle(settled)
                changes.note(QUEUE, shard, "failed")
        time.sleep(max(0.0, started + (tick + 1) * TICK - time.perf_counter()))


def error_of(size: int) -> bytes:
    """Return an error record with a traceback of so many bytes."""
    frames = "".join(FRAME.format(n=n) for n in range(size // len(FRAME) + 1))[:size]
    return json.dumps(
        {"class": "shop.Down", "message": "refused: password=hunter2", "traceback": f"Traceback:\n{frames}"}
    ).encode()


def database_figures() -> dict[str, float]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), pg_backend_pid()")
        wal, pid = cursor.fetchone()
        cursor.execute("SELECT pg_total_relation_size('django_delayq_failedjob')")
        (size,) = cursor.fetchone()
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {"wal": float(wal), "size": float(size), "cpu": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")}


if __name__ == "__main__":
    main()
