"""The history of real jobs in a real Redis: nothing lost, nothing doubled, and a loss that is told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.job import Job, NewJob
from django_delayq.core.outcomes import Settlement, ack, bury, fail, release
from django_delayq.pipeline import event_plan
from django_delayq.pipeline.errors import EventsLost
from django_delayq.pipeline.history import History, HistoryOptions
from django_delayq.pipeline.options import open_broker

from ..support.event_entries import last_position
from .history_stage import Database, stepping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def make(spark: SparkSession, redis_url: str, broker: Broker, tmp_path: Path) -> Callable[..., History]:
    """``make(database, step)``: the history of the test's Redis."""

    def make(
        database: Database | None = None, step: Callable[[str], None] = lambda name: None, **options: object
    ) -> History:
        given = HistoryOptions(str(tmp_path / "root"), redis=redis_url, prefix=broker.prefix, **options)  # type: ignore[arg-type]
        return stepping(History(spark, given, database), step)

    return make


def work(broker: Broker, dice: random.Random, jobs: int) -> None:
    """Schedules jobs in two queues and lets each end somehow."""
    for name, shards in (("orders", 2), ("mails", 1)):
        queue = broker.queue(name, shards=shards)
        queue.schedule_many(NewJob(f"{dice.random()}", f"shop.{name}") for _ in range(jobs))
        for number in queue.numbers:
            while held := queue.reserve(number, 3, worker="w:1").jobs:
                assert all(queue.settle([ended(job, dice.randrange(4), int(broker.now_ms())) for job in held]))


def ended(job: Job, how: int, now_ms: int) -> Settlement:
    if how == 0:
        return ack(job, now_ms, 12)
    if how == 1:
        return fail(job, now_ms, 5, delay_ms=3_600_000, error_class="ValueError")
    return bury(job, now_ms, 1, reason="why") if how == 2 else release(job, delay_ms=3_600_000, event=True)


def outcomes(database: Database) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for row in database.rows.values():
        for name in ("succeeded", "failed", "buried", "released"):
            found[row["queue"], name] += row[name]
        assert row["runs"] == sum(row[name] for name in ("succeeded", "failed", "buried", "released"))
    return found


def counted(broker: Broker) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for counts in broker.inspector.all_counts():
        for name, counter in (
            ("succeeded", "acked"),
            ("failed", "failed"),
            ("buried", "buried"),
            ("released", "released"),
        ):
            found[counts.queue, name] += counts.counters.get(counter, 0)
    return found


def test_the_history_has_what_the_queue_itself_has_counted(broker: Broker, make: Callable[..., History]) -> None:
    dice, database = random.Random(1), Database()

    def die(name: str) -> None:
        if name == "batch landed":
            raise ConnectionResetError("died")

    work(broker, dice, 60)
    first = make(database, max_rows=100).run()
    work(broker, dice, 40)
    with pytest.raises(ConnectionResetError, match="died"):
        make(database, die).run()
    work(broker, dice, 20)
    make(database).run()

    assert first.batches > 1
    assert outcomes(database) == counted(broker)
    assert sum(outcomes(database).values()) == 2 * (60 + 40 + 20)
    table = make().table
    places = [("orders", 0), ("orders", 1), ("mails", 0)]
    assert table.positions(table.latest()) == {place: last_position(broker, *place) for place in places}


def test_the_lag_says_how_far_behind_each_shard_is(broker: Broker, make: Callable[..., History]) -> None:
    work(broker, random.Random(2), 10)
    kept = make()
    kept.run()
    assert sum(each.events for each in kept.lag(broker)) == 0
    work(broker, random.Random(3), 5)

    found = kept.lag(broker)

    assert {(each.queue, each.shard) for each in found} == {("orders", 0), ("orders", 1), ("mails", 0)}
    assert sum(each.events for each in found) >= 2 * 5


def test_events_that_were_taken_off_before_they_were_read_end_the_run(
    broker: Broker, make: Callable[..., History]
) -> None:
    dice, database = random.Random(4), Database()
    work(broker, dice, 10)
    make(database).run()
    work(broker, dice, 10)
    key = broker.shard("mails", 0).names["event"]
    broker.client.xtrim(key, maxlen=1, approximate=False)

    with pytest.raises(EventsLost, match="'mails'"):
        make(database).run()

    assert make(database, fail_on_loss=False).run().rows > 0


def succeed(broker: Broker, name: str, jobs: int) -> None:
    """Lets so many new jobs of a queue succeed, two by a call."""
    queue = broker.queue(name)
    queue.schedule_many(NewJob(f"{number} of {jobs}", f"shop.{name}") for number in range(jobs))
    for number in queue.numbers:
        while held := queue.reserve(number, 2, worker="w:1").jobs:
            assert all(queue.settle([ack(job, int(broker.now_ms()), 12) for job in held]))


def test_a_run_of_some_queues_neither_doubles_nor_loses_events_of_the_others(
    broker: Broker, make: Callable[..., History]
) -> None:
    database = Database()
    for jobs in (30, 5):
        succeed(broker, "mails", jobs)
        succeed(broker, "orders", jobs)
        make(database, queues=("orders",) if jobs == 5 else ()).run()
    assert outcomes(database)["orders", "succeeded"] == 35

    make(database).run()

    assert {name: outcomes(database)[name, "succeeded"] for name in ("mails", "orders")} == {"mails": 35, "orders": 35}


def test_a_first_run_of_some_queues_leaves_the_others_to_the_next(broker: Broker, make: Callable[..., History]) -> None:
    database = Database()
    for name in ("mails", "orders"):
        succeed(broker, name, 10)
    broker.client.xtrim(broker.shard("mails", 0).names["event"], maxlen=4, approximate=False)  # before anybody read
    make(database, queues=("orders",)).run()
    assert {key[1] for key in database.rows} == {"orders"}

    make(database).run()

    assert (outcomes(database)["orders", "succeeded"], outcomes(database)["mails", "succeeded"]) == (10, 8)


def die_and_lose(broker: Broker, make: Callable[..., History], database: Database, step: str = "batch landed") -> None:
    """A run dies, when its batch is landed unless told otherwise, and some of its events are taken off."""

    def die(name: str) -> None:
        if name == step:
            raise ConnectionResetError("died")

    with pytest.raises(ConnectionResetError, match="died"):
        make(database, die).run()
    broker.client.xtrim(broker.shard("mails", 0).names["event"], maxlen=1, approximate=False)


@pytest.mark.parametrize("earlier", [0, 5])
def test_a_batch_that_was_landed_is_complete_though_its_events_are_gone(
    broker: Broker, make: Callable[..., History], earlier: int
) -> None:
    database = Database()
    if earlier:
        work(broker, random.Random(6), earlier)
        make(database).run()
    work(broker, random.Random(5), 10)
    die_and_lose(broker, make, database)

    make(database).run()  # nothing is lost, because the batch is not read again

    assert outcomes(database) == counted(broker)


def test_a_batch_that_was_not_landed_and_whose_events_are_gone_ends_the_run(
    broker: Broker, make: Callable[..., History]
) -> None:
    database = Database()
    work(broker, random.Random(6), 5)
    make(database).run()
    work(broker, random.Random(5), 10)
    die_and_lose(broker, make, database, "files written")

    with pytest.raises(EventsLost, match="'mails'") as raised:
        make(database).run()
    assert "\n" not in str(raised.value)
    assert make(database, fail_on_loss=False).run().rows > 0

    lost = counted(broker) - outcomes(database)
    assert {queue for queue, _ in lost} == {"mails"}


def test_events_that_go_while_a_batch_is_read_end_the_run_in_one_line(
    broker: Broker, make: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> None:
    work(broker, random.Random(6), 5)
    planned = event_plan.to_offsets

    def lose(positions: Mapping[tuple[str, int], str]) -> event_plan.Offsets:
        broker.client.xtrim(broker.shard("mails", 0).names["event"], maxlen=1, approximate=False)
        return planned(positions)

    monkeypatch.setattr(event_plan, "to_offsets", lose)
    with pytest.raises(EventsLost, match="'mails'") as raised:  # a task says so
        make().run()
    assert "\n" not in str(raised.value)


def test_a_queue_that_was_deleted_unread_is_a_loss_and_a_read_one_is_not(
    broker: Broker, make: Callable[..., History]
) -> None:
    database = Database()
    for name in ("mails", "orders", "read"):
        succeed(broker, name, 10)
    make(database).run()
    succeed(broker, "mails", 3)
    for name in ("mails", "read"):
        broker.delete_queue(name, force=True)

    with pytest.raises(EventsLost, match="'mails'") as raised:
        make(database).run()
    assert "'read'" not in str(raised.value)
    assert make(database, fail_on_loss=False).run().rows == 0
    succeed(broker, "orders", 2)
    assert make(database).run().rows >= 2, "a loss is accepted once"


def test_a_stream_that_began_anew_is_read_from_its_beginning(
    broker: Broker, redis_url: str, make: Callable[..., History]
) -> None:
    database = Database()
    succeed(broker, "mails", 30)
    make(database).run()
    broker.client.flushdb()
    with open_broker({"redis": redis_url, "prefix": broker.prefix}) as other:
        succeed(other, "mails", 4)

    with pytest.raises(EventsLost, match="'mails'"):
        make(database).run()
    assert make(database, fail_on_loss=False).run().rows == 4 + 1  # and the chunk that scheduled them
    assert outcomes(database)["mails", "succeeded"] == 34
    assert make(database).run().rows == 0


def test_a_redis_that_is_away_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    nowhere = HistoryOptions(str(tmp_path / "root"), redis="redis://127.0.0.1:1/0")
    with pytest.raises(QueueUnavailable) as raised:
        History(spark, nowhere).run()
    assert "127.0.0.1:1" in str(raised.value)
    assert "\n" not in str(raised.value)
