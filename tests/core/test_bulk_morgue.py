"""Bulk operations on the morgue: chunked, atomic for each job, limited to records from before the call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.core import InvalidJob, NewJob

from .bulk_stage import (
    Action,
    Discard,
    Kick,
    ProgressLog,
    act_in_shard,
    discard_all,
    discard_many,
    everything_in_morgue,
    kick_all,
    kick_many,
)
from .stage import T0, Stage
from .world import read_world, unchanged


def test_many_jobs_are_kicked_by_id_or_by_id_and_key(wide: Stage) -> None:
    keys = [wide.in_morgue("twice") for _ in range(2)]
    for ident in ("a", "b", "stays", "in the way"):
        wide.in_morgue(ident)
    wide.put("in the way", at=7)
    wanted = [
        "a",
        ("b", wide.broker.inspector.graves("wide", "b")[0].job.key),
        "nobody",
        ("twice", keys[0]),
        "in the way",
        ("twice", b"another key 1234"),
    ]
    found = kick_many(wide.queue, wanted, delay_ms=50)
    assert found == {"kicked": 3, "live": 1, "gone": 2}
    picture = wide.picture()
    assert sorted(picture["waiting"]) == ["a +50", "b +50", "in the way +7", "twice +50"]
    assert sorted(picture["morgue"]) == ["in the way buried", "stays buried", "twice buried"]
    assert [view.job.key for view in wide.broker.inspector.graves("wide", "twice")] == [keys[1]]
    assert kick_many(wide.queue, ["in the way"], replace=True) == {"kicked": 1}
    assert "in the way +0" in wide.picture()["waiting"]


def test_many_jobs_are_discarded(wide: Stage) -> None:
    everything_in_morgue(wide, 600)
    assert discard_many(wide.queue, (f"j{n}" for n in range(700))) == {"discarded": 600, "gone": 100}
    assert wide.picture() == {}
    assert wide.counters()["discarded"] == 600


@pytest.mark.parametrize("action", [Kick(), Discard()])
@pytest.mark.parametrize("ident", ["", "x" * 256, "a\0b"])
def test_an_id_that_cannot_be_is_refused(wide: Stage, action: Action, ident: str) -> None:
    key = wide.in_morgue("a")
    with unchanged(wide.broker), pytest.raises(InvalidJob):
        act_in_shard(wide.queue, wide.queue.shard_of("a"), [("a", key), (ident, key)], action)


@pytest.mark.parametrize("options", [{"per_second": float("nan")}, {"per_second": 0}, {"per_second": -1.0}])
def test_a_pace_that_cannot_be_is_refused(wide: Stage, options: dict[str, int]) -> None:
    with pytest.raises(InvalidJob):
        kick_all(wide.queue, **options)  # type: ignore[arg-type]


def test_the_whole_morgue_comes_back_due_now_or_after_a_delay(wide: Stage) -> None:
    everything_in_morgue(wide, 800)
    told = ProgressLog()
    assert kick_all(wide.queue, delay_ms=500, progress=told) == {"kicked": 800}
    assert told.steps[-1] == (800, 800)
    assert len(told.steps) >= 4
    counts = wide.broker.inspector.counts("wide")
    assert (counts.delayed, counts.ready, counts.morgue) == (800, 0, 0)
    wide.wait(500)
    assert sum(len(wide.take(250, number=number)) for number in wide.queue.numbers for _ in range(2)) == 800


def test_a_kicked_morgue_may_come_back_spread_over_time(wide: Stage) -> None:
    everything_in_morgue(wide, 600)
    assert kick_all(wide.queue, delay_ms=1000, per_second=100) == {"kicked": 600}
    dues = sorted(score for number in wide.queue.numbers for _, _, score in read_world(wide.queue, number)["waiting"])
    assert [due - T0 for due in dues] == [1000 + 10 * n for n in range(600)]


def test_jobs_that_cannot_be_kicked_do_not_keep_the_others_waiting(wide: Stage) -> None:
    everything_in_morgue(wide, 700)
    wide.queue.schedule_many(NewJob(f"j{number}", "work", delay_ms=60_000) for number in range(0, 700, 2))
    assert kick_all(wide.queue) == {"kicked": 350, "live": 350}
    assert kick_all(wide.queue) == {"live": 350}
    assert kick_all(wide.queue, replace=True) == {"kicked": 350}


@pytest.mark.parametrize(("verb", "outcome"), [(kick_all, "kicked"), (discard_all, "discarded")])
def test_what_is_buried_after_the_call_stays(stage: Stage, verb: Callable[..., object], outcome: str) -> None:
    everything_in_morgue(stage, 600)
    late = iter(range(10**6))

    def bury_another() -> None:
        stage.wait(1)
        stage.in_morgue(f"late {next(late)}", priority=0, at=-1000)

    told = ProgressLog(bury_another)
    assert verb(stage.queue, progress=told) == {outcome: 600}
    assert stage.broker.inspector.counts("q").morgue == next(late) == len(told.steps)


def test_only_what_was_buried_before_a_moment_is_discarded(stage: Stage) -> None:
    stage.in_morgue("old")
    stage.wait(1000)
    stage.in_morgue("edge")
    stage.wait(1000)
    stage.in_morgue("new")
    assert discard_all(stage.queue, before_ms=T0 + 1000) == {"discarded": 1}
    assert stage.picture() == {"morgue": ["edge buried", "new buried"]}
    assert discard_all(stage.queue, before_ms=T0 + 1001) == {"discarded": 1}
    assert discard_all(stage.queue) == {"discarded": 1}
    assert stage.shard_is_empty()
    assert discard_all(stage.queue) == {}
