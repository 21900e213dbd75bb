"""Observers of the duration of calls to Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, NewJob, QueueUnavailable, RedisConfig, ack, connect

Seen = list[tuple[str, float, bool]]


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def watched(connection: Connection, prefix: str, seen: Seen) -> Broker:
    """Return a broker that records every call in ``seen``."""
    return Broker(connection, prefix=prefix, observe=lambda *told: seen.append(told))


def test_every_call_is_told_by_its_verb_with_its_time(watched: Broker, seen: Seen) -> None:
    queue = watched.queue("q")
    seen.clear()
    began = time.perf_counter()
    queue.schedule(NewJob("a", "work"))
    queue.schedule(NewJob("b", "work", fresh=True))
    jobs = queue.reserve(0, 10, worker="w").jobs
    queue.touch(jobs)
    queue.settle([ack(job, 1, 2) for job in jobs])
    watched.inspector.get("q", "a")
    took = time.perf_counter() - began
    assert [verb for verb, *_ in seen] == [
        "schedule",
        "schedule_fresh",
        "reserve",
        "touch",
        "settle",
        "read",
        "read",
    ]
    assert not any(failed for *_, failed in seen)
    assert all(0 < seconds < took for _, seconds, _ in seen)
    assert sum(seconds for _, seconds, _ in seen) <= took
    watched.observe(None)
    queue.schedule(NewJob("c", "work"))
    assert len(seen) == 7, "nobody observes any more"


def test_chunks_that_are_sent_together_are_told_as_one_call_when_they_are_read(watched: Broker, seen: Seen) -> None:
    queue = watched.queue("q", shards=2)
    seen.clear()
    queue.schedule_many(NewJob(f"j{n}", "work") for n in range(1000))
    assert {verb for verb, *_ in seen} == {"schedule"}
    assert len(seen) in (2, 3)  # chunks of both shards, sent as soon as one has 250 jobs, and what is left


@pytest.mark.one_server("SCRIPT FLUSH goes to one node of a cluster")
def test_a_call_that_is_made_again_is_one_call(watched: Broker, seen: Seen) -> None:
    queue = watched.queue("q")
    queue.schedule(NewJob("a", "work"))
    seen.clear()
    watched.client.script_flush()
    queue.schedule(NewJob("b", "work"))
    watched.client.script_flush()
    queue.schedule_many([NewJob("c", "work")])
    assert [(verb, failed) for verb, _, failed in seen] == [("schedule", False)] * 2


@pytest.fixture
def unreachable(prefix: str, seen: Seen) -> Iterator[Broker]:
    gone = connect(RedisConfig.parse("redis://127.0.0.1:1/0?retries=0"))
    yield Broker(gone, prefix=prefix, observe=lambda *told: seen.append(told))
    gone.close()


def test_a_call_that_fails_is_told_as_such(unreachable: Broker, seen: Seen) -> None:
    with pytest.raises(QueueUnavailable):
        unreachable.announce("w", {})
    ((verb, seconds, failed),) = seen
    assert (verb, failed) == ("announce", True)
    assert seconds > 0


def test_an_observer_that_raises_disturbs_nobody(
    connection: Connection, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(*_told: Any) -> None:
        raise ZeroDivisionError("metrics")

    queue = Broker(connection, prefix=prefix, observe=observe).queue("q")
    assert queue.schedule(NewJob("a", "work")) == "created"
    assert "the observer of calls to Redis failed" in caplog.text
