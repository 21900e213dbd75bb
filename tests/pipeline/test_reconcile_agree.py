"""``delayq_reconcile --model`` and Spark compare one table with one queue: both find and restore the same."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.core.management import call_command
from django.utils import timezone
from pyspark.sql import DataFrame, SparkSession

from django_delayq import schedule
from django_delayq.connections import DjangoBroker
from django_delayq.core.outcomes import bury
from django_delayq.management.pipeline.model_rows import write_rows
from django_delayq.pipeline.bulk import BulkOptions
from django_delayq.pipeline.reconcile import ReconcileOptions, Reconciliation
from django_delayq.repair.row_comparison import RowJobs
from shop.models import Customer, Order
from shop.tasks import remind_customer

HOUR = timedelta(hours=1)
#: the same rows and jobs for both
COMPARED = ("--model", "shop.Order", "--filter", '{"status": "placed"}', "--created", "created_at")
COMPARED += ("--task", remind_customer.name, "--id", "order-{pk}", "--args", "pk", "--due", "expires_at")


def place(n: int, **fields: Any) -> list[int]:
    """Orders that were placed an hour ago; their numbers."""
    customer, _ = Customer.objects.get_or_create(name="Ada", email="ada@example.com")
    now = timezone.now()
    usual = {"customer": customer, "created_at": now - HOUR, "expires_at": now + HOUR}
    return [Order.objects.create(**{**usual, **fields}).pk for _ in range(n)]


def remind(*pks: int) -> None:
    for pk in pks:
        schedule(remind_customer, pk, id=f"order-{pk}", delay=3600)


def here(*more: str) -> dict[str, Any]:
    """Findings of the command."""
    out = StringIO()
    call_command("delayq_reconcile", *COMPARED, *more, "--json", stdout=out, stderr=StringIO(), no_color=True)
    found = json.loads(out.getvalue())
    return {name: found[name] for name in ("rows", "known", "missing", "buried", "bad", "first", "outcomes")}


def test_both_find_the_same_and_what_one_restores_the_other_knows(
    spark: SparkSession, transactional_db: None, delayq: DjangoBroker, redis_url: str, tmp_path: Path
) -> None:
    made = {"id": "order-{pk}", "due": "expires_at", "args": ("pk",), "queue": remind_customer.options.queue}
    filters = [{"status": "placed"}]
    rows = RowJobs(model=Order, task=remind_customer, created="created_at", filters=filters, **made)
    wanted = BulkOptions(**made, task=remind_customer.name, redis=redis_url, prefix=delayq.prefix)

    def read(before: datetime) -> DataFrame:
        path = str(tmp_path / f"{uuid4()}.parquet")
        write_rows(rows.rows(before), rows.columns, path)
        return spark.read.parquet(path)

    def on_spark(*, restore: bool, **more: Any) -> dict[str, Any]:
        comparison = Reconciliation(spark, ReconcileOptions(jobs=wanted, **more), read)
        counts = comparison.look()
        outcomes = comparison.put_back(counts) if restore else {}
        found = json.loads(json.dumps({**counts.values(), "outcomes": outcomes}))
        del found["first_bad"]
        return found

    queue = delayq.queue(remind_customer.options.queue, shards=2)
    kept, reserved, gated, buried, *missing = place(9)
    place(2, status="paid")
    place(2, created_at=timezone.now())  # younger than the grace
    place(1, expires_at=timezone.now() + timedelta(days=365 * 20))  # no job can be due then
    remind(kept, reserved, gated, buried)
    for pk in (reserved, gated, buried):
        (job,) = queue.reserve_id(f"order-{pk}", worker="w", early=True).jobs
        if pk == buried:
            assert queue.settle([bury(job, 1, 2, reason="why")]) == [True]
    remind(gated)
    found = here("--dry-run")
    assert found == on_spark(restore=False)
    assert found["first"] == sorted(f"order-{pk}" for pk in missing)
    assert (found["rows"], found["missing"], found["buried"], found["bad"]) == (10, 5, 1, 1)
    assert here()["outcomes"] == {"created": 5}
    last = on_spark(restore=True, include_morgue=True)
    assert (last["first"], last["outcomes"]) == ([f"order-{buried}"], {"created": 1})
    assert here("--include-morgue")["missing"] == 0
    there = {view.id: (view.arguments, view.job.due_ms) for view in delayq.inspector.page(queue.name, "waiting").jobs}
    for order in Order.objects.filter(pk__in=[*missing, buried]):
        due_ms = -(-round(order.expires_at.timestamp() * 1_000_000) // 1000)
        assert there[f"order-{order.pk}"] == (([order.pk], {}), due_ms)
