"""Pauses that end by themselves, on Redis's clock."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob
from tests.support.core_calls import broker_clock
from tests.support.core_stored import queue_policy, shard_key
from tests.support.core_values import QueuePaused

from .epochs_stage import reshard
from .stage import T0, Stage


@pytest.fixture
def wide(clocked: Broker) -> Iterator[Stage]:
    """Return a queue of three shards whose broker reads the clock of the test."""
    stage = Stage(clocked, shards=3)
    with broker_clock(clocked, lambda: stage.us / 1000):
        yield stage


def outcomes(stage: Stage, n: int = 12) -> set[Any]:
    return set(stage.queue.schedule_many(NewJob(f"{stage.us}-{number}", "work") for number in range(n)))


def taken(stage: Stage) -> int:
    return sum(len(stage.queue.reserve(number, 250, worker="w").jobs) for number in stage.queue.numbers)


def test_a_pause_for_a_time_ends_without_any_process(wide: Stage) -> None:
    assert outcomes(wide) == {"created"}
    wide.broker.pause("q", seconds=600)
    wide.wait(599_999)
    assert (outcomes(wide), taken(wide)) == ({"paused"}, 0)
    with pytest.raises(QueuePaused, match="'q' is paused for new jobs"):
        wide.put("one")
    wide.wait(1)
    assert (outcomes(wide), taken(wide)) == ({"created"}, 24)


def test_a_reserve_from_a_paused_queue_says_when_the_pause_ends(wide: Stage) -> None:
    wide.put("due")
    number = wide.queue.shard_of("due")
    wide.put("later", at=900_000)
    wide.broker.pause("q", "out", seconds=timedelta(minutes=10))
    wide.wait(200_000)
    assert wide.queue.reserve(number, 1, worker="w").next_due_ms == 400_000
    assert wide.queue.tick(number).next_due_ms == T0 + 600_000
    far = wide.queue.shard_of("later")
    if far != number:
        assert wide.queue.reserve(far, 1, worker="w").next_due_ms == 700_000
    wide.broker.pause("q", "out")
    assert wide.queue.reserve(number, 1, worker="w").next_due_ms is None, "the second pause has no end"


def test_each_direction_has_its_own_end_and_a_new_pause_replaces_it(wide: Stage) -> None:
    broker = wide.broker

    def shown() -> Any:
        orders = queue_policy(wide.queue.layout, broker.now_ms())
        return orders["paused"], orders["until"]

    broker.pause("q", "in", seconds=60)
    broker.pause("q", "out", seconds=30)
    assert shown() == ("both", {"in": T0 + 60_000, "out": T0 + 30_000})
    wide.wait(30_000)
    assert shown() == ("in", {"in": T0 + 60_000})
    broker.pause("q", "in", seconds=10)
    assert shown() == ("in", {"in": T0 + 40_000})
    broker.pause("q", "in")
    assert shown() == ("in", {})
    broker.resume("q")
    assert (shown(), wide.queue.layout.get("until")) == (("", {}), None)


def test_the_next_look_of_a_dispatcher_removes_a_pause_that_has_ended(wide: Stage) -> None:
    wide.broker.pause("q", "both", seconds=5)
    wide.broker.pause("q", "out", seconds=50)
    wide.wait(5_000)
    wide.queue.tick(wide.queue.numbers[0])
    assert wide.queue.layout["paused"] == {"out": T0 + 50_000}
    wide.wait(45_000)
    wide.queue.tick(wide.queue.numbers[0])
    assert "paused" not in wide.queue.layout and "until" not in wide.queue.layout
    metas = [shard_key(wide.queue, "meta", number) for number in wide.queue.numbers]
    assert [wide.broker.client.hget(meta, "rules") for meta in metas] == [None] * 3


def test_new_shards_keep_the_end_of_a_pause(wide: Stage) -> None:
    wide.broker.pause("q", "in", seconds=60)
    reshard(wide, 4)
    assert outcomes(wide) == {"paused"}
    wide.wait(60_000)
    assert outcomes(wide) == {"created"}


@pytest.mark.parametrize(("seconds", "problem"), [(0, "more than 0"), (-1, "negative"), ("10m", "number of seconds")])
def test_a_pause_of_no_length_is_refused(wide: Stage, seconds: Any, problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        wide.broker.pause("q", seconds=seconds)
    assert "paused" not in wide.queue.layout
