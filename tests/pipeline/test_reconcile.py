"""A table against the queue: what is missing is found and put back, and what races is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from django_delayq.core import loads
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured, QueueUnavailable
from django_delayq.core.job import Job, NewJob, Payload, new_key
from django_delayq.core.outcomes import ack, bury
from django_delayq.core.queue import Queue
from django_delayq.core.snapshot import Part, read_jobs
from django_delayq.pipeline.bulk import BulkOptions
from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.reconcile import ReconcileOptions, Reconciliation
from django_delayq.repair.row_comparison import RowJobs
from django_delayq.repair.rows import names_in, pattern_of
from shop.tasks import remind_customer

from .reconcile_tables import Tables
from .stock.models import Ticket
from .stocked import Stock

FAR = 3_600_000
MINUTE = timedelta(minutes=1)
FIXED = datetime(2030, 12, 31, 23, tzinfo=UTC).timestamp() * 1000


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.queue("q", shards=2)


@dataclass(frozen=True)
class Setup:
    """A comparison: its options, and the tables that it reads."""

    options: ReconcileOptions
    jobs: RowJobs
    folder: str
    outboxes: tuple[str, ...]


def made(spark: SparkSession, setup: Setup, kind: type[Reconciliation] = Reconciliation, **more: Any) -> Any:
    """The comparison."""
    tables = Tables(spark, setup.jobs, setup.folder, setup.outboxes)
    return kind(spark, setup.options, tables.rows, outbox=tables.outbox if setup.outboxes else None, **more)


@pytest.fixture
def options(request: pytest.FixtureRequest, redis_url: str, broker: Broker, tmp_path: Path) -> Callable[..., Setup]:
    """``options(created="day")``: of a comparison of open tickets with the queue."""
    names = [name for name in ("any_stock", "stock") if name in request.fixturenames]
    alias = request.getfixturevalue(names[0]).alias if names else "default"

    def make(
        *, grace_ms: float = 600_000, include_morgue: bool = False, outbox: tuple[str, ...] = (), **other: Any
    ) -> Setup:
        of_rows = {"model": Ticket, "created": "created", "filters": [{"state": "open"}], "using": alias}
        of_rows |= {name: other.pop(name) for name in list(other) if name in of_rows}
        of_jobs = {"id": "ticket-{pk}", "due": "due", "args": ("pk",)}
        of_jobs |= {
            name: other.pop(name) for name in list(other) if name in RowJobs.__dataclass_fields__ and name != "task"
        }
        rest = {"queue": "q", "task": "close", "redis": redis_url, "prefix": broker.prefix, **other}
        chosen = ReconcileOptions(jobs=BulkOptions(**of_jobs, **rest), grace_ms=grace_ms, include_morgue=include_morgue)
        jobs = RowJobs(**of_rows, **of_jobs, task=remind_customer, queue="q", grace_ms=grace_ms)
        return Setup(chosen, jobs, str(tmp_path / "tables"), outbox)

    return make


def tickets(stock: Stock, n: int, *, age: timedelta = 60 * MINUTE, **fields: Any) -> list[int]:
    """Open tickets; their numbers."""
    now = datetime.now(UTC)
    made = [stock.rows(Ticket).create(created=now - age, due=now + age, **fields) for _ in range(n)]
    return [ticket.pk for ticket in made]


def name(pk: int) -> str:
    return f"ticket-{pk}"


def put(queue: Queue, *pks: int, **options: Any) -> None:
    queue.schedule_many(NewJob(name(pk), "close", delay_ms=FAR, **options) for pk in pks)


def take(queue: Queue, pk: int) -> Job:
    (job,) = queue.reserve_id(name(pk), worker="w", early=True).jobs
    return job


def jobs(broker: Broker, queue: Queue) -> dict[str, dict[str, Any]]:
    """Return the waiting jobs by id."""
    found = {}
    for number in queue.numbers:
        for columns in read_jobs(broker, Part(queue.name, number, "waiting")):
            rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
            found |= {row["id"]: row for row in rows}
    return found


def test_what_is_missing_is_found_exactly_and_put_back_once(
    spark: SparkSession, any_stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    pks = tickets(any_stock, 12)
    closed = tickets(any_stock, 2, state="closed")
    waiting, reserved, gated, buried, missing = pks[:3], pks[3:5], pks[5:6], pks[6:7], pks[7:]
    put(queue, *waiting, *reserved, *gated, *buried)
    for pk in (*reserved, *gated):
        take(queue, pk)
    put(queue, *gated)
    assert queue.settle([bury(take(queue, pk), 1, 2, reason="why") for pk in buried]) == [True]
    put(broker.queue("other"), *missing)
    comparison = made(spark, options())
    found = comparison.look()
    assert (found.rows, found.missing, found.buried, found.bad) == (12, 5, 1, 0)
    assert sorted(found.first) == sorted(map(name, missing))
    assert not {*map(name, missing)} & {*jobs(broker, queue)}, "looking changes nothing"
    assert comparison.put_back(found, run_id="r1") == {"created": 5}
    there = jobs(broker, queue)
    assert {*there} == {*map(name, [*waiting, *missing])}
    assert not {*map(name, closed)} & {*there}
    one = there[name(missing[0])]
    due = any_stock.rows(Ticket).get(pk=missing[0]).due
    assert (one["task"], json.loads(one["args"])) == ("close", [missing[0]])
    assert one["due"] == -(-round(due.timestamp() * 1_000_000) // 1000)
    run = loads.read_load(broker, "r1")
    assert run is not None
    assert run.closed

    second = made(spark, options())
    assert second.look().missing == 0
    assert second.put_back(second.look()) == {}


class Racing(Reconciliation):
    """Reconciliation with an action between the read of the queue and that of the table."""

    act: Callable[[], object]

    @property
    def queued(self) -> DataFrame:  # type: ignore[override]
        known = super().queued
        self.act()
        self.act = lambda: None
        return known


def test_what_happens_between_the_two_reads_is_left_alone(
    spark: SparkSession, any_stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    """A job that ends, with and without its row; one that comes with its row; and one that is put back by another."""
    done, forgetful, missing, rescued = tickets(any_stock, 4)
    put(queue, done, forgetful)
    young: list[int] = []

    def act() -> None:
        for pk in (done, forgetful):
            assert queue.settle([ack(take(queue, pk), 1, 2)]) == [True]
        any_stock.rows(Ticket).filter(pk=done).update(state="closed")
        young.extend(tickets(any_stock, 2, age=timedelta()))
        put(queue, young[0], rescued)

    comparison = made(spark, options(), Racing)
    comparison.act = act
    found = comparison.look()
    assert sorted(found.first) == sorted([name(missing), name(rescued)])
    before = jobs(broker, queue)[name(rescued)]["key"]
    assert comparison.put_back(found) == {"created": 1, "ignored": 1}
    there = jobs(broker, queue)
    assert {*there} == {name(missing), name(rescued), name(young[0])}
    assert there[name(rescued)]["key"] == before


def test_rows_younger_than_the_grace_are_left_alone(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    (old,) = tickets(stock, 1, age=11 * MINUTE)
    (young,) = tickets(stock, 1, age=9 * MINUTE)
    assert made(spark, options()).look().first == (name(old),)
    assert made(spark, options(grace_ms=0)).look().missing == 2
    behind = made(spark, options(grace_ms=0), now_ms=lambda: broker.now_ms() - 10 * 60_000)
    assert behind.look().first == (name(old),), "of two clocks the earlier one counts"
    assert behind.began_ms < broker.now_ms() - 9 * 60_000
    assert young


def test_a_field_of_days_counts_whole_days(
    spark: SparkSession, stock: Stock, queue: Queue, options: Callable[..., Setup]
) -> None:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=n) for n in range(4)]
    pks = [tickets(stock, 1, day=day)[0] for day in days]
    found = made(spark, options(created="day", grace_ms=0)).look()
    assert {*found.first} <= {name(pk) for pk in pks[2:]}
    assert name(pks[3]) in found.first


def test_durable_jobs_of_the_outbox_are_known(
    spark: SparkSession, stock: Stock, queue: Queue, options: Callable[..., Setup]
) -> None:
    from django.db import connections

    from django_delayq.models import OutboxJob

    unsent, lost = tickets(stock, 2)
    with connections[stock.alias].schema_editor() as editor:
        editor.create_model(OutboxJob)
    try:
        for place, (pk, queue_name) in enumerate([(unsent, "q"), (lost, "other")]):
            OutboxJob(
                key=f"00000000-0000-4000-8000-00000000000{place}",
                queue=queue_name,
                job_id=name(pk),
                task="close",
                due_ms=1,
                record=b"",
                created_at=datetime.now(UTC),
            ).save(using=stock.alias)
        found = made(spark, options(outbox=(stock.alias,))).look()
        assert found.first == (name(lost),)
        assert made(spark, options()).look().missing == 2
    finally:
        with connections[stock.alias].schema_editor() as editor:
            editor.delete_model(OutboxJob)


def test_jobs_of_the_morgue_are_made_anew_only_on_demand(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    grave, both = tickets(stock, 2)
    put(queue, grave, both)
    assert all(queue.settle([bury(take(queue, pk), 1, 2, reason="why") for pk in (grave, both)]))
    put(queue, both)
    found = made(spark, options()).look()
    assert (found.missing, found.buried) == (0, 1)
    wanted = made(spark, options(include_morgue=True))
    found = wanted.look()
    assert (found.missing, found.buried, found.first) == (1, 1, (name(grave),))
    assert wanted.put_back(found) == {"created": 1}
    assert {*jobs(broker, queue)} == {name(grave), name(both)}


def test_ids_are_made_of_several_columns_and_never_of_nulls(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    day = date(2026, 3, 8)
    tickets(stock, 1, name="Ünï", customer=7, day=day)
    tickets(stock, 1, name=None, customer=7, day=day)
    tickets(stock, 1, name="x" * 80, customer=7, day=None)
    tickets(stock, 2, name="twin", customer=8, day=day)
    comparison = made(spark, options(id="{{t}}:{name}/{customer}@{day}"))
    found = comparison.look()
    assert (found.rows, found.missing, found.bad) == (5, 2, 2)
    assert found.first == ("{t}:twin/8@2026-03-08", "{t}:Ünï/7@2026-03-08")
    assert comparison.put_back(found) == {"created": 2}
    assert {*jobs(broker, queue)} == {*found.first}


def test_an_id_that_is_too_long_and_a_row_without_a_due_time_are_counted(
    spark: SparkSession, stock: Stock, queue: Queue, options: Callable[..., Setup]
) -> None:
    tickets(stock, 1, name="é" * 80)
    fine = tickets(stock, 1, name="fine")
    stock.rows(Ticket).create(name="no due", created=datetime.now(UTC) - 60 * MINUTE)
    long = "".join(f"{{name}}{n}" for n in range(3))
    found = made(spark, options(id=long, due="due")).look()
    assert (found.missing, found.bad) == (1, 2)
    assert found.first == ("fine0fine1fine2",)
    assert fine


def test_due_times_are_columns_delays_or_both(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    (pk,) = tickets(stock, 1)
    created = stock.rows(Ticket).get(pk=pk).created
    for text, expected in (
        ("created", created.timestamp() * 1000),
        ("+2h30m", None),
        ("2031-01-01T00:00:00+01:00", FIXED),
    ):
        comparison = made(spark, options(due=text))
        assert comparison.put_back(comparison.look()) == {"created": 1}
        due = jobs(broker, queue)[name(pk)]["due"]
        wanted = comparison.began_ms + 9_000_000 if expected is None else expected
        assert 0 <= due - wanted <= (60_000 if expected is None else 1)
        queue.cancel(name(pk))


def test_several_rows_share_a_merged_job(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    tickets(stock, 1, customer=1, name="b")
    tickets(stock, 1, customer=1, name="a")
    tickets(stock, 1, customer=2, name="c")
    new = NewJob("2", "sync", payload=Payload(b'{"n":1}', "1", new_key()), on_conflict="merge", delay_ms=FAR)
    assert queue.schedule(new) == "created"
    comparison = made(
        spark,
        options(
            id="{customer}",
            task="sync",
            args=(),
            payload="name",
            score="pk",
        ),
    )
    found = comparison.look()
    assert (found.missing, found.first) == (2, ("1",))
    assert comparison.put_back(found) == {"created": 1, "merged": 1}
    payloads = [json.loads(payload.data) for payload in broker.inspector.payloads("q", "1")]
    assert payloads == ["b", "a"]


def test_arguments_may_have_names(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    (pk,) = tickets(stock, 1, customer=5)
    comparison = made(spark, options(kwargs=("customer",)))
    assert comparison.put_back(comparison.look()) == {"created": 1}
    assert json.loads(jobs(broker, queue)[name(pk)]["args"]) == {"a": [pk], "k": {"customer": 5}}


def test_nothing_against_nothing_is_nothing(
    spark: SparkSession, stock: Stock, broker: Broker, options: Callable[..., Setup]
) -> None:
    """Not even the queue is there, and it is not made by looking."""
    comparison = made(spark, options())
    found = comparison.look()
    assert (found.rows, found.known, found.missing, found.first) == (0, 0, 0, ())
    assert comparison.put_back(found) == {}
    assert broker.queue_names() == []
    assert comparison.orphans().total == 0


def test_jobs_without_a_row_are_found_and_cancelled_if_they_are_still_the_same(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    (open_,) = tickets(stock, 1)
    (closed,) = tickets(stock, 1, state="closed")
    (young,) = tickets(stock, 1, age=timedelta())
    put(queue, open_, closed, young, 10_001, 10_002, 10_003)
    take(queue, 10_003)
    queue.schedule(NewJob("ticket-10004", "remind", delay_ms=FAR))
    queue.schedule(NewJob("order-1", "close", delay_ms=FAR))
    comparison = made(spark, options())
    orphans = comparison.orphans()
    assert {row["id"] for row in orphans.examples} == {*map(name, (10_001, 10_002, 10_003, closed))}
    assert orphans.total == 4
    put(queue, 10_002)
    assert comparison.cancel_orphans(orphans) == {"cancelled": 2, "gone": 1, "stopping": 1}
    assert {*jobs(broker, queue)} == {name(open_), name(young), name(10_002), "ticket-10004", "order-1"}


def test_redis_that_is_away_is_told_before_anything_is_read(
    spark: SparkSession, stock: Stock, options: Callable[..., Setup]
) -> None:
    with pytest.raises(QueueUnavailable):
        made(spark, options(redis="redis://127.0.0.1:1/0")).look()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"id": "{due}"}, "due is timestamp, whose text form may vary"),
        ({"id": "{state"}, "is no template"),
        ({"id": "all"}, "names no column"),
        ({"id": "{nobody}"}, "Cannot resolve keyword 'nobody'"),
        ({"due": "day"}, "--due day is date"),
        ({"created": "state"}, "state is no date and no time; name a field with the moment, or the day"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    spark: SparkSession,
    stock: Stock,
    queue: Queue,
    options: Callable[..., Setup],
    other: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises((PipelineError, Misconfigured, PySparkException), match=text):
        made(spark, options(**other)).look()


@pytest.mark.parametrize("other", [{"task": None}, {"grace_ms": -1}])
def test_what_cannot_be_is_refused(options: Callable[..., Setup], other: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        options(**other)


def test_what_could_not_be_put_back_is_found_again(
    spark: SparkSession, stock: Stock, broker: Broker, queue: Queue, options: Callable[..., Setup]
) -> None:
    tickets(stock, 3)
    broker.pause("q", "in")
    comparison = made(spark, options(more={"patience": "0"}))
    found = comparison.look()
    with pytest.raises(
        PipelineError,
        match=r"paused for new jobs.*Jobs that are scheduled already stay; repeat the call for the others$",
    ):
        comparison.put_back(found, run_id="r")
    broker.resume("q", "in")
    again = made(spark, options())
    assert again.put_back(again.look()) == {"created": 3}


# -- templates ---------------------------------------------------------------------------------------------------------


def test_the_columns_of_a_template_are_known_without_rows() -> None:
    assert names_in("a{pk}-{{x}}{customer__name}{pk}") == ["pk", "customer__name"]
    with pytest.raises(Misconfigured, match="is no template"):
        names_in("{pk")


def test_what_a_template_makes_is_told_from_what_it_does_not(spark: SparkSession) -> None:
    pattern = pattern_of(r"a.b\E[{pk}]{{x}}", {})
    frame = spark.createDataFrame(
        [(r"a.b\E[1]{x}",), (r"a.b\E[]{x}",), (r"aXb\E[1]{x}",), ("a.b\\E[1\n2]{x}",)], "id string"
    )
    assert frame.where(frame["id"].rlike(rf"\A{pattern}\z")).count() == 2
