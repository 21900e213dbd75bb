"""Comparison of orders with reminders, in a process of the example shop: the two reads alone, and the comparison.

Arguments: number of orders, number of missing reminders, number of rounds. Settings and servers come from the
environment. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command

from django_delayq.connections import broker
from django_delayq.core.job import NewJob
from django_delayq.pipeline.bulk import BulkOptions
from django_delayq.pipeline.reconcile import ReconcileOptions, Reconciliation
from django_delayq.pipeline.session import SessionOptions, opened

QUEUE = "notifications"
SHARDS = 4
FOLDER = tempfile.mkdtemp(prefix="delayq-bench-")
LONG_AGO = datetime.now(UTC) - timedelta(days=1)


def main() -> None:
    django.setup()
    orders, missing, rounds = map(int, sys.argv[1:])
    fill(orders, missing)
    reading, comparing, found = [], [], []
    with opened(SessionOptions(master="local[2]", app="benchmark")) as spark:
        for turn in range(rounds + 1):
            reads = [timed(read_queue, comparison_of(spark)), timed(read_table, comparison_of(spark))]
            took = timed(lambda comparison: found.append(comparison.look()), comparison_of(spark))
            if turn:
                reading.append(reads)
                comparing.append(took)
        started = time.perf_counter()
        outcomes = comparison_of(spark).put_back(found[-1])
        again = comparison_of(spark).look()
        put_back = time.perf_counter() - started
    exact = all(one.rows == orders and one.missing == missing and one.known == orders - missing for one in found)
    exact = exact and outcomes == {"created": missing} and again.missing == 0 and found[-1].first == first(missing)
    print(json.dumps({"reads": reading, "compared": comparing, "exact": exact, "put_back": put_back}))


def timed(act: Callable[[Reconciliation], object], comparison: Reconciliation) -> float:
    started = time.perf_counter()
    act(comparison)
    return time.perf_counter() - started


def comparison_of(spark: Any) -> Reconciliation:
    from django_delayq.management.pipeline.model_rows import write_rows
    from django_delayq.repair.row_comparison import RowJobs
    from shop.models import Order
    from shop.tasks import remind_customer

    jobs = BulkOptions(
        queue=QUEUE,
        task="shop.remind_customer",
        id="remind-{pk}",
        due="expires_at",
        args=("pk",),
        redis=os.environ["SHOP_REDIS_URL"],
        prefix=settings.DELAYQ["PREFIX"],
    )
    rows = RowJobs(
        model=Order,
        task=remind_customer,
        queue=QUEUE,
        id=jobs.id,
        due=jobs.due,
        args=jobs.args,
        created="created_at",
        filters=[{"status": "placed"}],
    )

    def read(before: datetime) -> Any:
        path = f"{FOLDER}/{time.monotonic_ns()}.parquet"
        write_rows(rows.rows(before), rows.columns, path)
        return spark.read.parquet(path)

    return Reconciliation(spark, ReconcileOptions(jobs=jobs), read)


def read_queue(comparison: Reconciliation) -> None:
    """Read what the comparison reads of the queue, and discard it."""
    comparison.read_queue().write.format("noop").mode("overwrite").save()


def read_table(comparison: Reconciliation) -> None:
    """Read what the comparison reads of the table, and discard it."""
    comparison._read_rows(datetime.now(UTC)).write.format("noop").mode("overwrite").save()


# -- test data --------------------------------------------------------------------------------------------------------


def first(missing: int) -> tuple[str, ...]:
    return tuple(sorted(f"remind-{number}" for number in range(1, missing + 1))[:10])


def fill(orders: int, missing: int) -> None:
    call_command("migrate", verbosity=0)
    with sqlite3.connect(str(settings.DATABASES["default"]["NAME"])) as database:
        database.execute("INSERT INTO shop_customer (id, name, email) VALUES (1, 'Ada', 'ada@example.com')")
        database.executemany(
            "INSERT INTO shop_order (id, customer_id, status, version, created_at, expires_at) "
            "VALUES (?, 1, 'placed', 1, ?, ?)",
            ((number, stamp(LONG_AGO), stamp(LONG_AGO + timedelta(days=2))) for number in range(1, orders + 1)),
        )
    told = broker().queue(QUEUE, shards=SHARDS).count_many(reminders(orders, missing))
    assert told == {"created": orders - missing}


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


def reminders(orders: int, missing: int) -> Iterator[NewJob]:
    due_ms = round((LONG_AGO + timedelta(days=2)).timestamp() * 1000)
    for number in range(missing + 1, orders + 1):
        yield NewJob(f"remind-{number}", "shop.remind_customer", b"[%d]" % number, due_ms, None, fresh=False)


if __name__ == "__main__":
    main()
