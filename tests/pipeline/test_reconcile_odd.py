"""Reconciling where something is odd: rows that are no jobs, durable jobs that are dead, rows that come back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from pyspark.sql import SparkSession

from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.queue import Queue
from django_delayq.models import OutboxJob
from django_delayq.pipeline.reconcile import DEAD

from .stock.models import Ticket
from .stocked import Stock
from .test_reconcile import Setup, jobs, made, name, options, put, queue, tickets  # noqa: F401 (fixtures)

AGO = timedelta(hours=1)


@pytest.fixture
def outbox(stock: Stock) -> Any:
    """``outbox(pk, state)``: a durable job of a ticket."""
    with connections[stock.alias].schema_editor() as editor:
        editor.create_model(OutboxJob)

    def make(pk: int, state: str) -> None:
        OutboxJob(
            key=f"00000000-0000-4000-8000-{pk:012d}",
            queue="q",
            job_id=name(pk),
            task="close",
            due_ms=1,
            record=b"",
            created_at=datetime.now(UTC),
            state=state,
        ).save(using=stock.alias)

    yield make
    with connections[stock.alias].schema_editor() as editor:
        editor.delete_model(OutboxJob)


def test_durable_jobs_that_are_buried_or_refused_lie_in_the_morgue(
    spark: SparkSession,
    stock: Stock,
    broker: Broker,
    queue: Queue,  # noqa: F811
    options: Callable[..., Setup],  # noqa: F811
    outbox: Any,
) -> None:
    assert {*DEAD} == {OutboxJob.State.BURIED, OutboxJob.State.REFUSED}
    alive, buried, refused, again = tickets(stock, 4)
    outbox(alive, OutboxJob.State.SENT)
    outbox(refused, OutboxJob.State.REFUSED)
    for pk in (buried, again):
        outbox(pk, OutboxJob.State.BURIED)
    put(queue, again)
    found = made(spark, options(outbox=(stock.alias,))).look()
    assert (found.rows, found.missing, found.buried) == (4, 0, 2)
    comparison = made(spark, options(outbox=(stock.alias,), include_morgue=True))
    found = comparison.look()
    assert (found.missing, {*found.first}) == (2, {name(buried), name(refused)})
    assert comparison.put_back(found) == {"created": 2}


def test_rows_that_are_no_jobs_do_not_keep_the_others_out(
    spark: SparkSession,
    stock: Stock,
    broker: Broker,
    queue: Queue,  # noqa: F811
    options: Callable[..., Setup],  # noqa: F811
) -> None:
    now = datetime.now(UTC)
    rows = {
        "fine": now,
        "bell\x07": now,
        "old": datetime(1969, 1, 1, tzinfo=UTC),
        "x" * 70: now,
        "far": now + timedelta(days=365 * 20),
    }
    for text, due in rows.items():
        tickets(stock, 1, name=text)
        stock.rows(Ticket).filter(name=text).update(due=due)
    comparison = made(spark, options(id="{name}", args=("name",), more={"maxArgsBytes": "60"}))
    found = comparison.look()
    assert (found.rows, found.missing, found.bad) == (5, 2, 3)
    reasons = dict(found.first_bad)
    assert "control characters" in reasons["bell\x07"]
    assert "1970" in reasons["old"]
    assert "ten years" in reasons["far"]
    assert comparison.put_back(found, run_id="r") == {"created": 1, "refused": 1}
    ((ident, reason),) = comparison.refused
    assert ident == "x" * 70
    assert "60" in reason
    assert {*jobs(broker, queue)} == {"fine"}
    run = loads.read_load(broker, "r")
    assert run is not None
    assert run.closed
    assert "rows" not in dict(run.source), "nobody goes on with it"


def test_due_times_that_are_far_away_may_be_meant(
    spark: SparkSession,
    stock: Stock,
    broker: Broker,
    queue: Queue,  # noqa: F811
    options: Callable[..., Setup],  # noqa: F811
) -> None:
    (pk,) = tickets(stock, 1)
    stock.rows(Ticket).update(due=datetime.now(UTC) + timedelta(days=365 * 20))
    comparison = made(spark, options(more={"allowFar": "true"}))
    assert comparison.put_back(comparison.look()) == {"created": 1}
    assert {*jobs(broker, queue)} == {name(pk)}


def test_a_row_that_comes_back_keeps_its_job(
    spark: SparkSession,
    stock: Stock,
    broker: Broker,
    queue: Queue,  # noqa: F811
    options: Callable[..., Setup],  # noqa: F811
) -> None:
    closed, reopened = tickets(stock, 2, state="closed")
    put(queue, closed, reopened)
    comparison = made(spark, options())
    orphans = comparison.orphans()
    assert orphans.total == 2
    stock.rows(Ticket).filter(pk=reopened).update(state="open")
    assert comparison.cancel_orphans(orphans) == {"cancelled": 1, "needed": 1}
    assert {*jobs(broker, queue)} == {name(reopened)}


class Replicated:
    """A router of a project that reads elsewhere than it writes."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_read(self, model: object, **hints: object) -> str:
        return self.alias

    def db_for_write(self, model: object, **hints: object) -> str:
        return "primary"


def test_orphans_are_judged_by_the_database_that_is_written_to(
    spark: SparkSession,
    stock: Stock,
    queue: Queue,  # noqa: F811
    options: Callable[..., Setup],  # noqa: F811
    settings: Any,
) -> None:
    tickets(stock, 1)
    settings.DATABASE_ROUTERS = [Replicated(stock.alias)]
    comparison = made(spark, options(using=None))
    assert comparison.look().missing == 1
    put(queue, 10_001)
    with pytest.raises(ConnectionDoesNotExist, match="'primary' doesn't exist"):
        comparison.orphans()
    assert made(spark, options()).orphans().total == 1, "a database that is named is read"
