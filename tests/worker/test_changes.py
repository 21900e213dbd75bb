"""News for those who keep books of the queues outside Redis: who notes what, and who is called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import Broker, Bury, Connection, Tick, ack, bury, fail
from django_delayq.worker.loop import ChangeReader, Changes
from tests.support.duty_stage import TickingQueue, check_now, poller_of
from tests.support.worker_stage import (
    DEADLINE,
    config,
    eventually,
    new_key,
    put,
    put_payload,
    registry_of,
    working,
)

HERE = {("default", 0)}


def heard(reader: ChangeReader) -> dict[str, set[tuple[str, int]]]:
    """Return all changes noted since the last call, without the empty ones."""
    taken = {what: reader.take(what) for what in reader.noted}
    return {what: places for what, places in taken.items() if places}


def read_all(changes: Changes) -> ChangeReader:
    return changes.reader("marks", "failed", "morgue", "lost")


# -- the mailbox -----------------------------------------------------------------------------------------------------


def test_news_are_there_until_they_are_taken_and_ring_once() -> None:
    changes, rings = Changes(), []
    reader, other = read_all(changes), changes.reader("failed")
    changes.note("a", 1, "failed")
    reader.ring, other.ring = lambda: rings.append("first"), lambda: rings.append("second")
    changes.note("a", 1, "failed")
    assert rings == [], "that was known before"
    changes.note("a", 2, "failed")
    changes.note("a", 1, "lost")
    assert rings == ["first", "second", "first"]
    assert reader.take("failed") == {("a", 1), ("a", 2)}
    assert reader.take("failed") == set()
    changes.note("a", 1, "failed")
    assert heard(reader) == {"failed": {("a", 1)}, "lost": {("a", 1)}}
    assert rings == ["first", "second", "first", "first"]
    assert other.take("failed") == {("a", 1), ("a", 2)}


class Clerk:
    """A duty that rests for ever, unless something is noted."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes.reader("marks")
        self.turns: list[set[tuple[str, int]]] = []
        self.worked = threading.Semaphore(0)

    def attach(self, ring: Callable[[], None]) -> None:
        self.changes.ring = ring

    def run(self) -> float:
        self.turns.append(self.changes.take("marks"))
        self.worked.release()
        return 3600.0


# -- who notes -------------------------------------------------------------------------------------------------------


def test_a_worker_notes_how_durable_jobs_ended_and_what_failed(broker: Broker) -> None:
    changes = Changes()
    reader = read_all(changes)

    def work(how: str) -> None:
        if how == "fail":
            raise ValueError
        if how == "bury":
            raise Bury("why")

    def news_of(how: str, *, durable: bool) -> dict[str, set[tuple[str, int]]]:
        put(broker, "work", how, key=new_key(durable=durable))
        with working(
            broker, registry_of(work, retry_in=60), config(dispatcher=False, burst=True), changes=changes
        ) as worker:
            assert worker.done.wait(DEADLINE)
        return heard(reader)

    assert news_of("ack", durable=False) == {}
    assert news_of("ack", durable=True) == {"marks": HERE}
    assert news_of("fail", durable=False) == {"failed": HERE}
    assert "failed" in news_of("fail", durable=True)
    assert news_of("bury", durable=False) == {"morgue": HERE}
    assert news_of("bury", durable=True) == {"morgue": HERE, "marks": HERE}


def test_a_worker_notes_that_a_job_fails_no_more(broker: Broker) -> None:
    changes, seen = Changes(), []
    reader = read_all(changes)

    def work() -> None:
        seen.append(heard(reader))
        if len(seen) == 1:
            raise ValueError

    put(broker, "work")
    with working(broker, registry_of(work, retry_in=0.01), config(dispatcher=False), changes=changes):
        eventually(lambda: len(seen) == 2 and heard(reader))
    assert seen == [{}, {"failed": HERE}]


def test_a_worker_notes_the_end_of_durable_payloads(broker: Broker) -> None:
    changes = Changes()
    reader = read_all(changes)

    def sync(payloads: dict[str, list[object]]) -> None:
        pass

    def news(key: bytes) -> dict[str, set[tuple[str, int]]]:
        put_payload(broker, "sync", "a", 1, key=key)
        settings = config(dispatcher=False, burst=True)
        with working(broker, registry_of(sync, merge=True), settings, changes=changes) as worker:
            assert worker.done.wait(DEADLINE)
        return heard(reader)

    assert news(new_key()) == {}
    assert news(new_key(durable=True)) == {"marks": HERE}


@pytest.fixture
def polled(connection: Connection, prefix: str) -> tuple[Broker, Any, ChangeReader]:
    broker, changes = Broker(connection, prefix=prefix), Changes()
    return broker, poller_of([broker.queue("default")], changes=changes), read_all(changes)


def look(poller: Any, reader: ChangeReader) -> dict[str, set[tuple[str, int]]]:
    check_now(poller)
    return heard(reader)


def test_a_look_notes_what_is_other_than_at_the_last_one(polled: tuple[Broker, Any, ChangeReader]) -> None:
    broker, poller, reader = polled
    queue = broker.queue("default")
    assert look(poller, reader) == {"failed": HERE, "morgue": HERE}, "of the first one nobody knows what is new"
    assert look(poller, reader) == {}
    for ident in ("a", "b", "c"):
        put(broker, "work", id=ident, key=new_key(durable=True))
    jobs = queue.reserve(0, 3, worker="w").jobs
    assert look(poller, reader) == {}
    queue.settle([fail(jobs[0], 1, 2, delay_ms=0)])
    assert look(poller, reader) == {"failed": HERE}
    assert look(poller, reader) == {}
    queue.settle([bury(jobs[1], 1, 2, reason="why"), ack(jobs[2], 1, 2)])
    assert look(poller, reader) == {"morgue": HERE, "marks": HERE}
    assert look(poller, reader) == {"marks": HERE}, "as long as nobody takes the marks"
    queue.marks(0, queue.marks(0))
    assert look(poller, reader) == {}
    queue.cancel("a")
    assert look(poller, reader) == {"failed": HERE, "marks": HERE}


def test_a_look_notes_that_a_shard_lost_its_data(polled: tuple[Broker, Any, ChangeReader]) -> None:
    broker, poller, reader = polled
    look(poller, reader)
    broker.client.flushdb()
    assert look(poller, reader) == {"lost": HERE}
    assert look(poller, reader) == {}


def test_a_look_notes_that_redis_was_started_anew() -> None:
    """It may have come back without its last seconds."""
    ticks = [Tick(0, None, None, False, False, b"born", run_id) for run_id in ("one", "one", "two")]
    changes = Changes()
    reader = read_all(changes)
    poller = poller_of([TickingQueue(ticks)], changes=changes)
    look(poller, reader)
    assert look(poller, reader) == {}
    assert look(poller, reader) == {"lost": HERE}


# -- duties of every process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dispatcher", [True, False])
def test_the_duties_of_a_process_run_whether_it_has_a_dispatcher_or_not(broker: Broker, dispatcher: bool) -> None:
    changes = Changes()
    everywhere = Clerk(changes)

    def work() -> None:
        pass

    settings = config(dispatcher=dispatcher)
    with working(broker, registry_of(work), settings, changes=changes, duties={"marks": everywhere}):
        assert everywhere.worked.acquire(timeout=DEADLINE)
        put(broker, "work", key=new_key(durable=True))
        eventually(lambda: HERE in everywhere.turns, "the news of the end")
