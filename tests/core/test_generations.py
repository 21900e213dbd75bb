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
    payload = Payload(data, score, key or new_key())
    options = {"task": "sync", "on_conflict": "merge", "due_policy": "keep"} | options
    return plain(ident, payload=payload, **options)


def put(stage: Stage, ident: str = "a", **options: Any) -> NewJob:
    """Schedule a plain job."""
    stage.queue.schedule(new := plain(ident, **options))
    return new


def add(stage: Stage, data: bytes, score: str = "0", ident: str = "m", **options: Any) -> NewJob:
    """Schedule a payload of a merged job."""
    stage.queue.schedule(new := merged(ident, data, score, **options))
    return new


def where(stage: Stage, new: NewJob) -> str:
    return locate(stage.queue, new.id, generation_of(new))


def cancel(stage: Stage, new: NewJob, **options: Any) -> str:
    return stage.queue.cancel(new.id, generation=generation_of(new), **options)


def test_a_waiting_job_is_the_one_that_was_put_in_last(stage: Stage) -> None:
    first, second = put(stage, at=1000), put(stage, at=1000)
    assert (where(stage, first), where(stage, second)) == ("", "live")
    assert cancel(stage, first) == ""
    assert not stage.queue.reschedule("a", delay_ms=5, generation=generation_of(first))
    assert not stage.queue.run_now("a", generation=generation_of(first))
    assert stage.picture() == {"waiting": ["a +1000"]}
    assert stage.queue.run_now("a", generation=generation_of(second))
    assert stage.queue.reschedule("a", due_ms=T0 + 7, generation=generation_of(second))
    assert stage.picture() == {"waiting": ["a +7"]}
    assert cancel(stage, second) == "cancelled"
    assert (stage.picture(), where(stage, second)) == ({}, "")


def test_a_stale_generation_is_not_there_whatever_task_has_its_id(stage: Stage) -> None:
    old = put(stage)
    stage.done(stage.take_one())
    put(stage, task="other")
    assert cancel(stage, old, task="work") == ""
    assert not stage.queue.run_now("a", task="work", generation=generation_of(old))
    with pytest.raises(IdTaken):
        stage.queue.cancel("a", task="work")


@pytest.mark.parametrize("of_merged", [False, True])
def test_a_run_and_what_is_gated_behind_it_are_two(stage: Stage, of_merged: bool) -> None:
    def make(content: bytes, at: int) -> NewJob:
        return add(stage, content, ident="a", at=at) if of_merged else put(stage, args=content, at=at)

    first = make(b"[1]", 0)
    job = stage.take_one()
    second = make(b"[2]", 9000)
    assert (where(stage, first), where(stage, second)) == ("live", "gated")
    assert not stage.queue.reschedule("a", delay_ms=5, generation=generation_of(first))
    assert stage.queue.reschedule("a", due_ms=T0 + 600, generation=generation_of(second))
    assert cancel(stage, first) == "stopping"
    assert stage.picture()["gated"] == ["a +600"]
    third = make(b"[3]", 9000)
    assert cancel(stage, third) == "cancelled"
    assert "gated" not in stage.picture()
    assert stage.queue.touch([job]) == ["stopping"]
    fourth = make(b"[4]", 400)
    assert stage.failed(job)
    assert (where(stage, first), where(stage, fourth)) == ("", "live")
    assert stage.picture()["waiting"] == ["a +400"]


def test_what_was_too_much_for_an_attempt_stays_a_job_when_only_its_generation_is_cancelled(stage: Stage) -> None:
    news = [
        NewJob("a", "sync", on_conflict="merge", due_policy="keep", payload=Payload(b"%03d" % n, str(n), new_key()))
        for n in range(260)
    ]
    stage.queue.schedule_many(news)
    job = stage.take_one()
    assert cancel(stage, news[0]) == "stopping"
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
    assert {where(stage, new) for new in (first, second, third)} == {"live"}
    stage.wait(1000)
    job = stage.take_one()
    fourth = add(stage, b"d", "4")
    assert [where(stage, new) for new in (first, second, third, fourth)] == ["live", "live", "live", "gated"]
    stage.done(job)
    assert [where(stage, new) for new in (first, second, third, fourth)] == ["", "", "", "live"]


def test_an_equal_payload_is_in_the_job_that_it_was_merged_into(stage: Stage) -> None:
    first, same = add(stage, b"a", "1"), add(stage, b"a", "1")
    assert (first.joined, same.joined) == (b"", first.key)
    assert (where(stage, same), cancel(stage, same), where(stage, first)) == ("live", "cancelled", "")


@pytest.mark.parametrize("score", ["0", "2"])
def test_of_equal_payloads_the_one_that_stays_bears_the_durable_key_of_the_other(stage: Stage, score: str) -> None:
    first = add(stage, b"a", "1")
    durable = add(stage, b"a", score, key=new_key(durable=True))
    assert durable.payload is not None
    assert stage.queue.marks(0) == []
    assert locate(stage.queue, "m", Generation((durable.payload.key,), generation_of(durable).digest)) == "live"
    assert where(stage, first) == "live"


def test_a_twin_of_a_payload_that_runs_waits_behind_the_run(stage: Stage) -> None:
    add(stage, b"a", "1")
    job = stage.take_one()
    twin = add(stage, b"a", "1")
    by_payload = Generation((twin.payload.key,), generation_of(twin).digest)  # type: ignore[union-attr]
    assert locate(stage.queue, "m", by_payload) == "gated"
    stage.done(job)
    assert locate(stage.queue, "m", by_payload) == "live"


def test_what_is_ignored_has_met_the_job_that_was_there(stage: Stage) -> None:
    first = put(stage)
    second = put(stage, on_conflict="ignore")
    assert (first.joined, second.joined) == (b"", first.key)
    job = stage.take_one()
    gated, ignored = put(stage), put(stage, on_conflict="ignore")
    assert (gated.joined, ignored.joined) == (gated.key, first.key)
    stage.done(job)
    assert where(stage, gated) == "live"


def test_many_jobs_hear_whom_they_met_each_for_itself(stage: Stage) -> None:
    old = put(stage, "old")
    news = [
        plain("new"),
        plain("old", on_conflict="ignore"),
        plain("old"),
        merged("m", b"1"),
        merged("m", b"2"),
        plain("old", on_conflict="ignore"),
    ]
    outcomes = stage.queue.schedule_many(news)
    assert outcomes == ["created", "ignored", "replaced", "created", "merged", "ignored"]
    assert [new.joined for new in news] == [b"", old.key, b"", b"", news[3].key, news[2].key]


def test_a_buried_generation_is_found_beside_a_live_one(stage: Stage) -> None:
    old = put(stage)
    assert stage.buried(stage.take_one())
    new = put(stage, at=1000)
    inspector = stage.broker.inspector
    views = [inspector.get_generation("q", "a", generation_of(one)) for one in (old, new)]
    assert [view and (view.state, view.job.key) for view in views] == [("morgue", old.key), ("delayed", new.key)]
    assert inspector.get_generation("q", "a", Generation((new_key(),))) is None
    assert inspector.get_generation("nowhere", "a", generation_of(old)) is None


def test_gated_content_is_seen_as_a_job_of_its_own(stage: Stage) -> None:
    put(stage)
    stage.take_one()
    gated = put(stage, args=b"[2]", at=5000)
    view = stage.broker.inspector.get_generation("q", "a", generation_of(gated))
    assert view is not None
    assert (view.state, view.due_ms - T0, view.job.args, view.job.key) == ("gated", 5000, b"[2]", gated.key)


def test_nothing_is_located_where_nothing_was(stage: Stage) -> None:
    assert locate(stage.queue, "a", Generation((new_key(),))) == ""
