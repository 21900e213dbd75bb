"""Which job of an id is meant: verbs with a generation, and the key that a schedule call answers with."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import IdTaken, NewJob, Payload
from django_delayq.core.records.frames import generation_of
from tests.support.core_calls import locate
from tests.support.core_values import Generation, new_key

from .stage import T0, Stage


def plain(ident: str, *, at: int | None = None, **options: Any) -> NewJob:
    """Return a job; ``at`` is in ms after T0."""
    due = {} if at is None else {"due_ms": T0 + at, "delay_ms": None}
    return NewJob(ident, **{"task": "work", "key": new_key()} | due | options)


def merged(ident: str, data: bytes, score: str = "0", *, key: bytes = b"", **options: Any) -> NewJob:
    """Return a merged job with one payload."""
    options = {"task": "sync", "on_conflict": "merge", "due_policy": "keep"} | options
    return plain(ident, payload=Payload(data, score, key or new_key()), **options)


def put(stage: Stage, ident: str = "a", **options: Any) -> NewJob:
    """Schedule a plain job."""
    stage.queue.schedule(new := plain(ident, **options))
    return new


def add(stage: Stage, data: bytes, score: str = "0", ident: str = "m", **options: Any) -> NewJob:
    """Schedule a payload of a merged job."""
    stage.queue.schedule(new := merged(ident, data, score, **options))
    return new


def where(stage: Stage, *news: NewJob) -> list[str]:
    return [locate(stage.queue, new.id, generation_of(new)) for new in news]


def cancel(stage: Stage, new: NewJob, **options: Any) -> str:
    return stage.queue.cancel(new.id, generation=generation_of(new), **options)


def test_a_waiting_job_is_the_one_that_was_put_in_last_whatever_task_has_its_id(stage: Stage) -> None:
    first, second = put(stage, at=1000), put(stage, at=1000)
    assert where(stage, first, second) == ["", "live"]
    assert cancel(stage, first) == ""
    assert not stage.queue.reschedule("a", delay_ms=5, generation=generation_of(first))
    assert not stage.queue.run_now("a", generation=generation_of(first))
    assert stage.picture() == {"waiting": ["a +1000"]}
    assert stage.queue.run_now("a", generation=generation_of(second))
    assert stage.queue.reschedule("a", due_ms=T0 + 7, generation=generation_of(second))
    assert stage.picture() == {"waiting": ["a +7"]}
    assert cancel(stage, second) == "cancelled"
    put(stage, task="other")
    assert cancel(stage, second, task="work") == ""
    assert not stage.queue.run_now("a", task="work", generation=generation_of(second))
    with pytest.raises(IdTaken):
        stage.queue.cancel("a", task="work")


@pytest.mark.parametrize("of_merged", [False, True])
def test_a_run_and_what_is_gated_behind_it_are_two(stage: Stage, of_merged: bool) -> None:
    def make(content: bytes, at: int) -> NewJob:
        return add(stage, content, ident="a", at=at) if of_merged else put(stage, args=content, at=at)

    first = make(b"[1]", 0)
    job = stage.take_one()
    second = make(b"[2]", 9000)
    assert where(stage, first, second) == ["live", "gated"]
    assert not stage.queue.reschedule("a", delay_ms=5, generation=generation_of(first))
    assert stage.queue.reschedule("a", due_ms=T0 + 600, generation=generation_of(second))
    assert cancel(stage, first) == "stopping"
    assert stage.picture()["gated"] == ["a +600"]
    assert cancel(stage, make(b"[3]", 9000)) == "cancelled"
    assert "gated" not in stage.picture()
    assert stage.queue.touch([job]) == ["stopping"]
    fourth = make(b"[4]", 400)
    assert stage.failed(job)
    assert where(stage, first, fourth) == ["", "live"]
    assert stage.picture()["waiting"] == ["a +400"]


def test_what_was_too_much_for_an_attempt_stays_a_job_when_only_its_generation_is_cancelled(stage: Stage) -> None:
    first, *_ = stage.add_many("a", 260)
    job = stage.take_one()
    assert cancel(stage, first) == "stopping"
    assert stage.failed(job)
    rest = stage.take_one()
    assert [payload.data for payload in rest.payloads] == [b"%03d" % n for n in range(250, 260)]
    assert stage.done(rest) == [True]
    assert stage.shard_is_empty()


def test_a_payload_is_followed_from_run_to_run(stage: Stage) -> None:
    first = add(stage, b"a", "1")
    job = stage.take_one()
    second, third = add(stage, b"b", "2"), add(stage, b"c", "3")
    assert (second.joined, third.joined) == (second.key, second.key), "the gated generation is that of the first"
    assert stage.failed(job, 1000)
    assert where(stage, first, second, third) == ["live"] * 3
    stage.wait(1000)
    job = stage.take_one()
    fourth = add(stage, b"d", "4")
    assert where(stage, first, second, third, fourth) == ["live", "live", "live", "gated"]
    stage.done(job)
    assert where(stage, first, second, third, fourth) == ["", "", "", "live"]


@pytest.mark.parametrize("score", ["0", "1", "2"])
def test_an_equal_payload_is_in_the_job_that_it_was_merged_into_and_leaves_it_its_durable_key(
    stage: Stage, score: str
) -> None:
    first, same = add(stage, b"a", "1"), add(stage, b"a", score, key=new_key(durable=True))
    assert (first.joined, same.joined) == (b"", first.key)
    assert where(stage, first, same) == ["live", "live"]
    assert stage.queue.marks(0) == []
    assert locate(stage.queue, "m", by_payload(same)) == "live"
    assert (cancel(stage, same), where(stage, first)) == ("cancelled", [""])


def by_payload(new: NewJob) -> Generation:
    assert new.payload is not None
    return Generation((new.payload.key,), generation_of(new).digest)


def test_a_twin_of_a_payload_that_runs_waits_behind_the_run(stage: Stage) -> None:
    add(stage, b"a", "1")
    job = stage.take_one()
    twin = by_payload(add(stage, b"a", "1"))
    assert locate(stage.queue, "m", twin) == "gated"
    stage.done(job)
    assert locate(stage.queue, "m", twin) == "live"


def test_each_of_many_jobs_hears_whom_it_met_and_what_is_ignored_has_met_the_run(stage: Stage) -> None:
    old = put(stage, "old")
    ignored = {"on_conflict": "ignore"}
    news = [
        plain("new"),
        plain("old", **ignored),
        plain("old"),
        merged("m", b"1"),
        merged("m", b"2"),
        plain("old", **ignored),
    ]
    outcomes = stage.queue.schedule_many(news)
    assert outcomes == ["created", "ignored", "replaced", "created", "merged", "ignored"]
    assert [new.joined for new in news] == [b"", old.key, b"", b"", news[3].key, news[2].key]
    stage.take()
    gated, last = put(stage, "old"), put(stage, "old", **ignored)
    assert (gated.joined, last.joined) == (gated.key, news[2].key)


def test_a_buried_generation_is_found_beside_a_live_one_and_a_gated_one(stage: Stage) -> None:
    old = put(stage)
    assert stage.buried(stage.take_one())
    new = put(stage)
    stage.take_one()
    gated = put(stage, args=b"[2]", at=5000)
    inspector = stage.broker.inspector
    views = [inspector.get_generation("q", "a", generation_of(one)) for one in (old, new, gated)]
    assert [(view.state, view.job.key, view.job.args, view.due_ms - T0) for view in views if view] == [
        ("morgue", old.key, b"", 0),
        ("reserved", new.key, b"", 0),
        ("gated", gated.key, b"[2]", 5000),
    ]
    assert inspector.get_generation("q", "a", Generation((new_key(),))) is None
    assert inspector.get_generation("nowhere", "a", generation_of(old)) is None


def test_the_generation_buried_last_is_kicked_unless_one_is_named(stage: Stage) -> None:
    keys = [stage.in_morgue("a") for _ in range(3)]
    assert [view.job.key for view in stage.broker.inspector.page("q", "morgue").jobs] == keys
    stage.queue.kick("a", key=keys[0])
    assert stage.take_one().key == keys[0]
    stage.queue.kick("a", replace=True)
    assert [view.job.key for view in stage.broker.inspector.graves("q", "a")] == [keys[1]]
    assert stage.queue.kick("a", key=b"never was there!") == ""


@pytest.mark.parametrize(("at", "due"), [(500, 500), (1500, 900)])
def test_a_merged_job_that_is_kicked_later_does_not_put_the_live_one_off(stage: Stage, at: int, due: int) -> None:
    stage.in_morgue("a", data=b"p")
    stage.add("a", b"q", at=at)
    assert stage.queue.kick("a", delay_ms=900) == "kicked"
    assert stage.picture() == {"waiting": [f"a +{due}"], "payloads": ["a: p q"]}
