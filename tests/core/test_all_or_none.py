"""Calls that store all jobs of a shard or none."""

from __future__ import annotations

import random
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


def merged(ident: str, data: bytes, **options: Any) -> NewJob:
    """Return a merged job with a payload."""
    payload = Payload(data, "1", new_key())
    return NewJob(ident, "work", delay_ms=5, on_conflict="merge", payload=payload, **options)


def send(stage: Stage, *news: NewJob) -> str:
    """Return the outcomes of a call that stores all or none."""
    return " ".join(stage.queue.schedule_many(news, all_or_none=True))


@pytest.fixture
def stage(broker: Broker) -> Stage:
    return Stage(broker)


def test_a_call_in_which_nothing_is_refused_stores_all(stage: Stage) -> None:
    stage.put("old")
    news = (new("a"), new("old"), new("a", on_conflict="ignore"), new("b", on_conflict="error"))
    assert send(stage, *news) == "created replaced ignored created"
    assert stage.broker.inspector.counts("q").ready == 3


@pytest.mark.parametrize(("options", "outcome"), [({"task": "other"}, "taken"), ({"on_conflict": "error"}, "exists")])
def test_one_refused_job_keeps_the_others_out_whatever_their_order(
    stage: Stage, options: dict[str, Any], outcome: str
) -> None:
    stage.put("old")
    before = stage.picture()
    ignored = new("old", on_conflict="ignore")
    assert send(stage, new("a"), new("old", **options), new("b"), ignored) == f"withheld {outcome} withheld ignored"
    assert send(stage, new("old", **options), new("a"), new("old")) == f"{outcome} withheld withheld"
    assert stage.picture() == before


def test_a_job_is_refused_because_of_one_in_front_of_it(stage: Stage) -> None:
    for options, outcome in (({"task": "other"}, "taken"), ({"on_conflict": "error"}, "exists")):
        assert send(stage, new("a"), new("a", **options)) == f"withheld {outcome}"
    assert send(stage, new("a"), merged("a", b"1")) == "withheld taken"
    assert stage.shard_is_empty()


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


def test_a_merged_job_that_would_have_too_many_payloads_keeps_the_others_out(stage: Stage) -> None:
    assert send(stage, merged("m", b"1", max_payloads=3), merged("m", b"2", max_payloads=3)) == "created merged"
    before = stage.picture()
    three = [merged("m", data, max_payloads=3) for data in (b"2", b"3", b"4")]
    assert send(stage, new("a"), *three) == "withheld withheld withheld full"
    assert stage.picture() == before
    assert send(stage, new("a"), *three[:2]) == "created merged merged"


def test_a_paused_queue_takes_none(stage: Stage) -> None:
    stage.broker.pause("q", "in")
    assert send(stage, new("a"), new("b")) == "paused paused"


def test_a_call_that_is_sent_again_gets_the_first_answer(stage: Stage) -> None:
    def news() -> list[NewJob]:
        return [new(ident, key=bytes([place]) * 16, repeatable=True) for place, ident in enumerate("ab", 1)]

    first = send(stage, *news())
    stage.queue.cancel("a")
    assert (first, send(stage, *news())) == ("created created",) * 2
    assert stage.broker.inspector.counts("q").ready == 1


def test_callers_wait_for_room_for_all_jobs_together(stage: Stage) -> None:
    stage.broker.limit("q", max_length=2)
    stage.put("old")
    assert send(stage, new("a", room_ms=50), new("b")) == "full full"
    assert stage.queue.count_many([new("a", room_ms=50)], all_or_none=True) == {"created": 1}


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


@pytest.mark.parametrize("seed", range(8))
def test_a_call_is_refused_if_and_only_if_one_of_its_jobs_would_be(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(15):
        plain, together = (Stage(broker, name=f"{name}{turn}") for name in ("plain", "together"))
        if chance.random() < 0.4:
            for stage in (plain, together):
                broker.limit(stage.queue.name, max_length=5)
        before = [draw(chance) for _ in range(chance.randrange(6))]
        taken = [ident for ident in ("a", "b", "ma", "mb") if chance.random() < 0.4]
        after = [draw(chance) for _ in range(chance.randrange(3))]
        for stage in (plain, together):
            stage.queue.schedule_many(made(before))
            for ident in taken:
                stage.queue.reserve_id(ident, worker="w", early=True)
            stage.queue.schedule_many(made(after))
        group = [draw(chance) for _ in range(1 + chance.randrange(5))]
        world = number_of_jobs(together), together.picture().get("payloads")
        one_by_one = plain.queue.schedule_many(made(group))
        answers = together.queue.schedule_many(made(group), all_or_none=True)
        if any(outcome.is_refusal for outcome in one_by_one):
            assert {outcome for outcome in answers if outcome.is_refusal} != set(), (group, one_by_one, answers)
            assert (number_of_jobs(together), together.picture().get("payloads")) == world
        else:
            assert answers == one_by_one, group
            assert number_of_jobs(together) == number_of_jobs(plain)


def number_of_jobs(stage: Stage) -> tuple[int, int, int]:
    """Return how many wait, are reserved and are gated."""
    counts = stage.broker.inspector.counts(stage.queue.name)
    return counts.ready + counts.delayed, counts.reserved, counts.gated


def draw(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return an id and options of a job."""
    ident = chance.choice("abc")
    if chance.random() < 0.6:
        rules = {"max_payloads": 2, "payloads": {"a": "all", "b": "all", "c": "last"}[ident]}  # those of a task
        return f"m{ident}", {**rules, "data": bytes([chance.choice(b"wxyz")])}
    conflict = chance.choice(["replace"] * 4 + ["ignore", "error"])
    return ident, {"task": chance.choice(["work"] * 6 + ["other"]), "on_conflict": conflict}


def made(draws: list[tuple[str, dict[str, Any]]]) -> list[NewJob]:
    """Return new jobs."""
    return [
        merged(ident, options["data"], **{name: options[name] for name in ("max_payloads", "payloads")})
        if "data" in options
        else new(ident, **options)
        for ident, options in draws
    ]
