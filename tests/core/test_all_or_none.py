"""Calls that store all jobs of a shard or none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Payload
from tests.support.core_stored import CHUNK
from tests.support.core_values import ScheduleOutcome, new_key

from .stage import Stage


def new(ident: str, **options: Any) -> NewJob:
    """Return a plain job."""
    return NewJob(ident, options.pop("task", "work"), b"[]", **options)


def send(stage: Stage, *news: NewJob) -> str:
    """Return the outcomes of a call that stores all or none."""
    return " ".join(stage.queue.schedule_many(news, all_or_none=True))


@pytest.fixture
def stage(broker: Broker) -> Stage:
    return Stage(broker)


def test_jobs_that_do_not_fit_together_are_all_refused_as_full(stage: Stage) -> None:
    stage.put("old")
    stage.broker.limit("q", max_length=100)
    many = [new(f"j{n}") for n in range(100)]
    assert send(stage, *many, new("old")) == " ".join(["full"] * 100 + ["withheld"])
    assert send(stage, *many[:99], new("old"), new("j1")) == " ".join(["created"] * 99 + ["replaced"] * 2)


def test_room_in_other_shards_counts(broker: Broker) -> None:
    stage = Stage(broker, shards=4)
    broker.limit("q", max_length=100)
    here = [ident for ident in map(str, range(2000)) if stage.queue.shard_of(ident) == 0]
    stage.put(here.pop())  # the limit is divided, and this shard has some places left
    assert set(stage.queue.schedule_many(map(new, here[:100]), all_or_none=True)) == {ScheduleOutcome.FULL}
    assert set(stage.queue.schedule_many(map(new, here[:99]), all_or_none=True)) == {ScheduleOutcome.CREATED}


def test_each_shard_decides_for_its_own_jobs(broker: Broker) -> None:
    stage = Stage(broker, shards=4)
    idents = [*map(str, range(40))]
    stage.put("0")
    outcomes = stage.queue.schedule_many([new(one, on_conflict="error") for one in idents], all_or_none=True)
    shard = stage.queue.shard_of("0")
    beside = [outcome for one, outcome in zip(idents, outcomes, strict=True) if stage.queue.shard_of(one) == shard]
    assert beside == ["exists"] + ["withheld"] * (len(beside) - 1)
    assert outcomes.count("created") == 40 - len(beside) > 0


def test_a_payload_that_waits_already_needs_no_room(stage: Stage) -> None:
    def add(payload: bytes) -> NewJob:
        return new("full", payload=Payload(payload, "0", new_key()), on_conflict="merge", max_payloads=2)

    assert send(stage, add(b"1"), add(b"2")) == "created merged"
    assert send(stage, add(b"2"), new("beside")) == "merged created"
    assert send(stage, add(b"1"), add(b"3"), new("further")) == "withheld full withheld"


def test_all_jobs_are_sent_again_when_there_is_room(stage: Stage) -> None:
    stage.broker.limit("q", max_length=2)
    stage.put("old")
    timer = threading.Timer(0.2, lambda: stage.broker.limit("q", max_length=3))
    timer.start()
    assert send(stage, new("old"), new("a", room_ms=20_000), new("b")) == "replaced created created"
    timer.join()


def test_too_many_jobs_and_durable_ones_are_refused(stage: Stage) -> None:
    with pytest.raises(InvalidJob, match="up to 250 jobs"):
        send(stage, *(new(str(n)) for n in range(CHUNK + 1)))
    with pytest.raises(InvalidJob, match="durable"):
        send(stage, new("a", key=new_key(durable=True)))
    assert stage.shard_is_empty()
