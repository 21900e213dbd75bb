"""Concurrent closing, forgetting and opening of one bulk load, in every order of the calls to Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, RedisConfig, connect
from tests.support.core_stored import bulk_loads_key

from .bulk_loads_stage import (
    BulkLoad,
    BulkLoadClosed,
    BulkLoadWriter,
    close_load,
    counted,
    forget_load,
    forget_old_loads,
    ledgers,
    list_loads,
    live,
    open_ledgers,
    open_load,
    read_load,
    rows,
    write,
    write_all,
)
from .epochs_stage import forget_queues, other
from .turns import Actor, orders, play

ROWS = 3
RANK = {state: rank for rank, state in enumerate(("open", "closing", "closed", "forgetting"))}


class Scene:
    """Bulk load with a few rows, opened earlier, and actors with separate connections."""

    def __init__(self, broker: Broker, connections: list[Any]) -> None:
        self.broker = broker
        self._connections = connections
        broker.client.flushdb()
        forget_queues(broker)
        broker.queue("q")
        opened = open_load(broker, "a", "q")
        stored = json.loads(broker.client.hget(bulk_loads_key(broker.prefix), "a"))
        broker.client.hset(
            bulk_loads_key(broker.prefix), "a", json.dumps({**stored, "opened_ms": opened.opened_ms - 1000})
        )
        self.load: BulkLoad = read_load(broker, "a")  # type: ignore[assignment]
        write(broker, self.load, rows(ROWS))
        self._seen = (self.load.opened_ms, 0)
        self._gone: set[int] = set()

    def actors(self, *acts: Callable[[Broker], Any]) -> list[Actor]:
        brokers = [Broker(connection, prefix=self.broker.prefix) for connection in self._connections]
        return [Actor(broker, act, lambda key: b"load" in key) for broker, act in zip(brokers, acts, strict=True)]

    def look(self) -> None:
        """Assert that the record did not return to an earlier state or to a forgotten load."""
        record = read_load(self.broker, "a")
        if record is None:
            self._gone.add(self._seen[0])
            return
        now = record.opened_ms, RANK[record.state]
        assert record.opened_ms not in self._gone, "a bulk load that was forgotten is back"
        assert now >= self._seen, f"the record went from {self._seen} back to {now}"
        if now[0] != self._seen[0]:
            self._gone.add(self._seen[0])
        self._seen = now

    def goes_on(self, load: BulkLoad) -> None:
        """Assert that a re-opened load equals its record and accepts rows."""
        assert load.state == "open"
        assert load.opened_ms > self.load.opened_ms
        assert read_load(self.broker, "a") == load
        assert write(self.broker, load, rows(ROWS + 2)).counts == {"created": 2, "ignored": ROWS}
        assert counted(self.broker, load) == {"created": 2, "ignored": ROWS}
        assert len(open_ledgers(self.broker)) == 1
        assert close_load(self.broker, self.load).closed, "who still has the old one closes nothing"
        assert read_load(self.broker, "a") == load


@pytest.fixture
def connections(redis_setting: Any) -> Iterator[list[Any]]:
    made = [connect(RedisConfig.parse(redis_setting)) for _ in range(2)]
    yield made
    for one in made:
        one.close()


@pytest.fixture
def scene(broker: Broker, connections: list[Any]) -> Callable[[], Scene]:
    def make() -> Scene:
        for connection in connections:  # an actor before this one watches them
            connection.client.__dict__.pop("execute_command", None)
        return Scene(broker, connections)

    return make


def close(broker: Broker) -> BulkLoad:
    load = read_load(broker, "a")
    assert load is not None
    return close_load(broker, load)


def closer_of(load: BulkLoad) -> Callable[[Broker], BulkLoad]:
    return lambda broker: close_load(broker, load)


def forget(broker: Broker) -> bool:
    return forget_load(broker, "a")


def forget_and_open(broker: Broker) -> BulkLoad:
    forget_load(broker, "a")
    return open_load(broker, "a", "q")


def go_on(broker: Broker) -> BulkLoad:
    return open_load(broker, "a", "q")


def test_two_who_close_a_run_at_once_are_told_the_same_and_it_stays_closed(scene: Callable[[], Scene]) -> None:
    for order in orders(4, 4):
        here = scene()
        first, second = play(order, *here.actors(*[closer_of(here.load)] * 2), here.look)
        assert first == second == read_load(here.broker, "a")
        assert first.closed and first.counts == (("created", ROWS),)
        assert open_ledgers(here.broker) == []


def test_who_closes_a_run_does_not_bring_it_back_when_it_is_forgotten(scene: Callable[[], Scene]) -> None:
    for order in orders(4, 4):
        here = scene()
        closed, forgotten = play(order, *here.actors(closer_of(here.load), forget), here.look)
        here.look()
        assert closed.closed and forgotten
        assert list_loads(here.broker) == []
        assert open_ledgers(here.broker) == []


def test_who_closes_a_run_leaves_the_one_alone_that_has_its_id_now(scene: Callable[[], Scene]) -> None:
    for order in orders(4, 5):
        here = scene()
        closed, opened = play(order, *here.actors(closer_of(here.load), forget_and_open), here.look)
        here.look()
        assert closed.closed
        here.goes_on(opened)


def test_who_forgets_a_run_leaves_the_one_alone_that_has_its_id_now(scene: Callable[[], Scene]) -> None:
    for order in orders(4, 5):
        here = scene()
        old, opened = play(
            order, *here.actors(lambda broker: forget_old_loads(broker, 500), forget_and_open), here.look
        )
        here.look()
        assert old in ([], ["a"])
        here.goes_on(opened)


def test_who_goes_on_with_a_run_that_is_forgotten_is_never_told_that_everything_is_in(
    scene: Callable[[], Scene],
) -> None:
    for order in orders(4, 3):
        here = scene()
        _, found = play(order, *here.actors(forget, go_on), here.look)
        here.look()
        assert found.state == "open"
        if found.opened_ms == here.load.opened_ms:
            assert list_loads(here.broker) == []
            with pytest.raises(BulkLoadClosed):
                write(here.broker, found, rows(ROWS + 2))
        else:
            here.goes_on(found)


def test_who_goes_on_with_a_run_that_is_closed_is_told_so_or_turned_away(scene: Callable[[], Scene]) -> None:
    for order in orders(4, 4):
        here = scene()
        closed, found = play(order, *here.actors(closer_of(here.load), go_on), here.look)
        assert closed == read_load(here.broker, "a")
        if found.state == "open":
            with pytest.raises(BulkLoadClosed):
                write(here.broker, found, rows(ROWS + 2))
        else:
            assert found == closed
        assert live(here.broker) == ROWS


@pytest.mark.parametrize(
    "end",
    [close_load, lambda broker, load: forget_load(broker, load.id)],
    ids=["closed", "forgotten"],
)
@pytest.mark.parametrize("calls", range(8))
def test_an_epoch_that_comes_while_a_run_ends_gets_no_ledger_that_stays(
    scene: Callable[[], Scene], end: Callable[[Broker, BulkLoad], Any], calls: int
) -> None:
    """Between any two of its calls the queue is resharded, and a sender writes to the new shards."""
    here = scene()
    broker, load = here.broker, here.load
    writer = BulkLoadWriter(other(broker), load)
    (ending, resting) = here.actors(lambda mine: end(mine, load), lambda _: None)
    for _ in range(calls):
        ending.step()
    record = read_load(broker, "a")
    began = record is None or record.state != "open"
    other(broker).reshard("q", 2)
    turned_away = False
    try:
        assert sum(write_all(writer, rows(ROWS + 40)).counts.values()) == ROWS + 40
    except BulkLoadClosed:
        turned_away = True
    ending.finish()
    resting.finish()
    assert turned_away == began
    broker.queue("q").reload()
    assert live(broker) == (ROWS if turned_away else ROWS + 40)
    assert open_ledgers(broker) == []
    assert all(broker.client.hexists(key, "\0closed") for key in ledgers(broker))


def test_who_works_on_a_forgotten_run_is_turned_away_although_another_run_has_its_id(
    scene: Callable[[], Scene],
) -> None:
    """A day later the ledgers that would have refused it have expired."""
    here = scene()
    broker, load = here.broker, here.load
    writer = BulkLoadWriter(other(broker), load)
    other(broker).reshard("q", 3)
    forget_load(broker, "a")
    open_load(broker, "a", "q")
    broker.client.delete(*ledgers(broker))
    with pytest.raises(BulkLoadClosed):
        write_all(writer, rows(ROWS + 40))
    broker.queue("q").reload()
    assert live(broker) == ROWS
