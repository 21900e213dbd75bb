"""Rows against the queue: what is missing is found and put back, and what races is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
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

FAR = 3_600_000
MINUTE = timedelta(minutes=1)
SCHEMA = "pk LONG, name STRING, customer INT, day DATE, due TIMESTAMP, created TIMESTAMP"


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.queue("q", shards=2)


class Tickets:
    """Rows that need a job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.rows: list[dict[str, Any]] = []
        #: called before the rows are read, once
        self.act: Callable[[], object] = lambda: None

    def add(self, *, age: timedelta = 60 * MINUTE, **fields: Any) -> int:
        """Add a ticket; return its number."""
        now = datetime.now(UTC)
        usual = {"name": None, "customer": None, "day": None, "due": now + age, "created": now - age}
        self.rows.append({"pk": len(self.rows) + 1, **usual, **fields})
        return len(self.rows)

    def drop(self, pk: int) -> None:
        self.rows = [row for row in self.rows if row["pk"] != pk]

    def __call__(self, before: datetime) -> DataFrame:
        self.act()
        self.act = lambda: None
        names = [column.split()[0] for column in SCHEMA.split(", ")]
        rows = [tuple(row[name] for name in names) for row in self.rows if row["created"] < before]
        return self._spark.createDataFrame(rows, SCHEMA)


@pytest.fixture
def tickets(spark: SparkSession) -> Tickets:
    return Tickets(spark)


@pytest.fixture
def made(spark: SparkSession, redis_url: str, broker: Broker, tickets: Tickets, tmp_path: Path) -> Any:
    """``made(id="{name}")``: a comparison of the tickets with the queue."""

    def make(*, grace_ms: float = 600_000, include_morgue: bool = False, **other: Any) -> Reconciliation:
        jobs = {"id": "ticket-{pk}", "due": "due", "args": ("pk",), "queue": "q", "task": "close"}
        options = BulkOptions(**{**jobs, "redis": redis_url, "prefix": broker.prefix, **other})
        chosen = ReconcileOptions(
            jobs=options, grace_ms=grace_ms, include_morgue=include_morgue, scratch=str(tmp_path / "scratch")
        )
        return Reconciliation(spark, chosen, tickets)

    return make


def name(pk: int) -> str:
    return f"ticket-{pk}"


def put(queue: Queue, *pks: int) -> None:
    queue.schedule_many(NewJob(name(pk), "close", delay_ms=FAR) for pk in pks)


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
    tickets: Tickets, broker: Broker, queue: Queue, made: Any, tmp_path: Path
) -> None:
    pks = [tickets.add() for _ in range(12)]
    waiting, reserved, gated, buried, missing = pks[:3], pks[3:5], pks[5:6], pks[6:7], pks[7:]
    put(queue, *waiting, *reserved, *gated, *buried)
    for pk in (*reserved, *gated):
        take(queue, pk)
    put(queue, *gated)
    assert queue.settle([bury(take(queue, pk), 1, 2, reason="why") for pk in buried]) == [True]
    put(broker.queue("other"), *missing)
    found = made().look()
    assert (found.rows, found.known, found.missing, found.buried, found.bad) == (12, 8, 5, 1, 0)
    assert sorted(found.first) == sorted(map(name, missing))
    assert not {*map(name, missing)} & {*jobs(broker, queue)}, "looking changes nothing"
    assert made().put_back(found, run_id="r1") == {"created": 5}
    there = jobs(broker, queue)
    assert {*there} == {*map(name, [*waiting, *missing])}
    one = there[name(missing[0])]
    due = tickets.rows[missing[0] - 1]["due"]
    assert (one["task"], json.loads(one["args"])) == ("close", [missing[0]])
    assert one["due"] == -(-round(due.timestamp() * 1_000_000) // 1000)
    run = loads.read_load(broker, "r1")
    assert run is not None
    assert run.closed
    assert list((tmp_path / "scratch").iterdir()) == []
    assert made().look().missing == 0
    assert made().put_back(made().look()) == {}


def test_what_happens_between_the_two_reads_is_left_alone(
    tickets: Tickets, broker: Broker, queue: Queue, made: Any
) -> None:
    """A job that ends, with and without its row; one that comes with its row; and one that is put back by another."""
    done, forgetful, missing, rescued = (tickets.add() for _ in range(4))
    put(queue, done, forgetful)

    def act() -> None:
        for pk in (done, forgetful):
            assert queue.settle([ack(take(queue, pk), 1, 2)]) == [True]
        tickets.drop(done)
        tickets.rows.append({**tickets.rows[0], "pk": 10, "created": datetime.now(UTC)})
        put(queue, 10, rescued)

    tickets.act = act
    comparison = made()
    found = comparison.look()
    assert sorted(found.first) == sorted([name(missing), name(rescued)])
    before = jobs(broker, queue)[name(rescued)]["key"]
    assert comparison.put_back(found) == {"created": 1, "ignored": 1}
    there = jobs(broker, queue)
    assert {*there} == {name(missing), name(rescued), name(10)}
    assert there[name(rescued)]["key"] == before


def test_rows_younger_than_the_grace_are_left_alone(tickets: Tickets, queue: Queue, made: Any) -> None:
    old, _young = tickets.add(age=11 * MINUTE), tickets.add(age=9 * MINUTE)
    assert made().look().first == (name(old),)
    assert made(grace_ms=0).look().missing == 2


def test_jobs_of_the_morgue_are_made_anew_only_on_demand(
    tickets: Tickets, broker: Broker, queue: Queue, made: Any
) -> None:
    grave, both = tickets.add(), tickets.add()
    put(queue, grave, both)
    assert all(queue.settle([bury(take(queue, pk), 1, 2, reason="why") for pk in (grave, both)]))
    put(queue, both)
    found = made().look()
    assert (found.missing, found.buried) == (0, 1)
    wanted = made(include_morgue=True)
    found = wanted.look()
    assert (found.missing, found.buried, found.first) == (1, 1, (name(grave),))
    assert wanted.put_back(found) == {"created": 1}
    assert {*jobs(broker, queue)} == {name(grave), name(both)}


def test_ids_are_made_of_several_columns_and_never_of_nulls(
    tickets: Tickets, broker: Broker, queue: Queue, made: Any
) -> None:
    day = datetime(2026, 3, 8, tzinfo=UTC).date()
    for fields in ({"name": "Ünï"}, {"name": None}, {"name": "x", "day": None}, {"name": "twin"}, {"name": "twin"}):
        tickets.add(**{"customer": 7, "day": day, **fields})
    comparison = made(id="{{t}}:{name}/{customer}@{day}")
    found = comparison.look()
    assert (found.rows, found.missing, found.bad) == (5, 2, 2)
    assert found.first == ("{t}:twin/7@2026-03-08", "{t}:Ünï/7@2026-03-08")
    assert comparison.put_back(found) == {"created": 2}
    assert {*jobs(broker, queue)} == {*found.first}


def test_rows_that_are_no_jobs_do_not_keep_the_others_out(
    tickets: Tickets, broker: Broker, queue: Queue, made: Any
) -> None:
    now = datetime.now(UTC)
    far = now + timedelta(days=365 * 20)
    rows = {
        "fine": now,
        "bell\x07": now,
        "old": datetime(1969, 1, 1, tzinfo=UTC),
        "x" * 70: now,
        "é" * 128: now,
        "far": far,
        "none": None,
    }
    for text, due in rows.items():
        tickets.add(name=text, due=due)
    comparison = made(id="{name}", args=("name",), more={"maxArgsBytes": "60"})
    found = comparison.look()
    assert (found.rows, found.missing, found.bad) == (7, 2, 5)
    reasons = dict(found.first_bad)
    for ident, words in {
        "bell\x07": "control characters",
        "old": "1970",
        "far": "ten years",
        "é" * 128: "255 bytes",
        "none": "due is null",
    }.items():
        assert words in reasons[ident]
    assert comparison.put_back(found, run_id="r") == {"created": 1, "refused": 1}
    ((ident, reason),) = comparison.refused
    assert ident == "x" * 70
    assert "60" in reason
    assert {*jobs(broker, queue)} == {"fine"}
    distant = made(id="{name}", more={"allowFar": "true"}).look()
    assert "far" in distant.first, "far due times may be meant"


def test_delays_begin_with_the_comparison(tickets: Tickets, broker: Broker, queue: Queue, made: Any) -> None:
    pk, before = tickets.add(), broker.now_ms()
    comparison = made(due="+2h30m")
    assert comparison.put_back(comparison.look()) == {"created": 1}
    assert 9_000_000 <= jobs(broker, queue)[name(pk)]["due"] - before <= 9_060_000


def test_several_rows_share_a_merged_job(tickets: Tickets, broker: Broker, queue: Queue, made: Any) -> None:
    for customer, text in ((1, "b"), (1, "a"), (2, "c")):
        tickets.add(customer=customer, name=text)
    new = NewJob("2", "sync", payload=Payload(b'{"n":1}', "1", new_key()), on_conflict="merge", delay_ms=FAR)
    assert queue.schedule(new) == "created"
    comparison = made(id="{customer}", task="sync", args=(), payload="name", score="pk")
    found = comparison.look()
    assert (found.missing, found.first) == (2, ("1",))
    assert comparison.put_back(found) == {"created": 1, "merged": 1}
    assert [json.loads(payload.data) for payload in broker.inspector.payloads("q", "1")] == ["b", "a"]


def test_nothing_against_nothing_is_nothing(broker: Broker, made: Any) -> None:
    """Not even the queue is there, and it is not made by looking."""
    found = made().look()
    assert (found.rows, found.known, found.missing, found.first) == (0, 0, 0, ())
    assert made().put_back(found) == {}
    assert broker.queue_names() == []


def test_redis_that_is_away_is_told_before_anything_is_read(tickets: Tickets, made: Any) -> None:
    tickets.act = lambda: pytest.fail("the rows are read")
    with pytest.raises(QueueUnavailable):
        made(redis="redis://127.0.0.1:1/0").look()


def test_what_cannot_be_is_refused(tickets: Tickets, queue: Queue, made: Any) -> None:
    tickets.add()
    with pytest.raises(PipelineError, match="which task"):
        made(task=None).put_back(made().look())
    with pytest.raises(Misconfigured, match="no column 'nobody'"):
        made(id="{nobody}").look()


def test_what_could_not_be_put_back_is_found_again(tickets: Tickets, broker: Broker, queue: Queue, made: Any) -> None:
    for _ in range(3):
        tickets.add()
    broker.pause("q", "in")
    comparison = made(more={"patience": "0"})
    found = comparison.look()
    with pytest.raises(
        PipelineError,
        match=r"paused for new jobs.*Jobs that are scheduled already stay; repeat the call for the others$",
    ):
        comparison.put_back(found, run_id="r")
    broker.resume("q", "in")
    assert made().put_back(made().look()) == {"created": 3}
