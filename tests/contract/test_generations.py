"""Which job of an id is meant, on both brokers: verbs with a generation, and the key that a schedule call answers."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.errors import IdTaken
from django_delayq.core.job import Generation, NewJob, new_key
from django_delayq.core.records.schedule_frames import generation_of

from .stand import T0, Stand


def put(stand: Stand, ident: str = "a", **options: Any) -> NewJob:
    """Schedule a plain job with a key that is known here."""
    new = stand.new(ident, key=new_key(), **options)
    stand.queue.schedule(new)
    return new


def add(stand: Stand, data: bytes, score: str = "0", ident: str = "m", **options: Any) -> NewJob:
    """Schedule a payload of a merged job."""
    new = stand.merged(ident, data, score, **options)
    new.key = new_key()
    stand.queue.schedule(new)
    return new


def where(stand: Stand, new: NewJob) -> str:
    return stand.queue.locate(new.id, generation_of(new))


def cancel(stand: Stand, new: NewJob, **options: Any) -> str:
    return stand.queue.cancel(new.id, generation=generation_of(new), **options)


def test_a_waiting_job_is_the_one_that_was_put_in_last(stand: Stand) -> None:
    first, second = put(stand, at=1000), put(stand, at=1000)
    assert (where(stand, first), where(stand, second)) == ("", "live")
    assert cancel(stand, first) == ""
    assert not stand.queue.reschedule("a", delay_ms=5, generation=generation_of(first))
    assert not stand.queue.run_now("a", generation=generation_of(first))
    assert stand.short() == {"waiting": ["a +1000"]}
    assert stand.queue.run_now("a", generation=generation_of(second))
    assert stand.queue.reschedule("a", due_ms=T0 + 7, generation=generation_of(second))
    assert stand.short() == {"waiting": ["a +7"]}
    assert cancel(stand, second) == "cancelled"
    assert (stand.short(), where(stand, second)) == ({}, "")


def test_a_stale_generation_is_not_there_whatever_task_has_its_id(stand: Stand) -> None:
    old = put(stand)
    stand.done(stand.take_one())
    put(stand, task="other")
    assert cancel(stand, old, task="work") == ""
    assert not stand.queue.run_now("a", task="work", generation=generation_of(old))
    with pytest.raises(IdTaken):
        stand.queue.cancel("a", task="work")


@pytest.mark.parametrize("merged", [False, True])
def test_a_run_and_what_is_gated_behind_it_are_two(stand: Stand, merged: bool) -> None:
    def make(content: bytes, at: int) -> NewJob:
        return add(stand, content, ident="a", at=at) if merged else put(stand, args=content, at=at)

    first = make(b"[1]", 0)
    job = stand.take_one()
    second = make(b"[2]", 9000)
    assert (where(stand, first), where(stand, second)) == ("live", "gated")
    assert not stand.queue.reschedule("a", delay_ms=5, generation=generation_of(first))
    assert stand.queue.reschedule("a", due_ms=T0 + 600, generation=generation_of(second))
    assert cancel(stand, first) == "stopping"
    assert stand.short()["gated"] == ["a +600"]
    third = make(b"[3]", 9000)
    assert cancel(stand, third) == "cancelled"
    assert "gated" not in stand.short()
    assert stand.queue.touch([job]) == ["stopping"]
    fourth = make(b"[4]", 400)
    assert stand.failed(job)
    assert (where(stand, first), where(stand, fourth)) == ("", "live")
    assert stand.short()["waiting"] == ["a +400"]


def test_a_payload_is_followed_from_run_to_run(stand: Stand) -> None:
    first = add(stand, b"a", "1")
    job = stand.take_one()
    second, third = add(stand, b"b", "2"), add(stand, b"c", "3")
    assert (second.joined, third.joined) == (second.key, second.key), "the gated generation is that of the first"
    assert stand.failed(job, 1000)
    assert {where(stand, new) for new in (first, second, third)} == {"live"}
    stand.wait(1000)
    job = stand.take_one()
    fourth = add(stand, b"d", "4")
    assert [where(stand, new) for new in (first, second, third, fourth)] == ["live", "live", "live", "gated"]
    stand.done(job)
    assert [where(stand, new) for new in (first, second, third, fourth)] == ["", "", "", "live"]


def test_an_equal_payload_is_in_the_job_that_it_was_merged_into(stand: Stand) -> None:
    first, same = add(stand, b"a", "1"), add(stand, b"a", "1")
    assert (first.joined, same.joined) == (b"", first.key)
    assert (where(stand, same), cancel(stand, same), where(stand, first)) == ("live", "cancelled", "")


@pytest.mark.parametrize("score", ["0", "2"])
def test_of_equal_payloads_the_one_that_stays_bears_the_durable_key_of_the_other(stand: Stand, score: str) -> None:
    first = add(stand, b"a", "1")
    durable = add(stand, b"a", score, key=new_key(durable=True))
    assert durable.payload is not None
    assert stand.queue.settled(0) == []
    assert stand.queue.locate("m", Generation((durable.payload.key,), generation_of(durable).digest)) == "live"
    assert where(stand, first) == "live"


def test_a_twin_of_a_payload_that_runs_waits_behind_the_run(stand: Stand) -> None:
    add(stand, b"a", "1")
    job = stand.take_one()
    twin = add(stand, b"a", "1")
    by_payload = Generation((twin.payload.key,), generation_of(twin).digest)  # type: ignore[union-attr]
    assert stand.queue.locate("m", by_payload) == "gated"
    stand.done(job)
    assert stand.queue.locate("m", by_payload) == "live"


def test_what_is_ignored_has_met_the_job_that_was_there(stand: Stand) -> None:
    first = put(stand)
    second = put(stand, on_conflict="ignore")
    assert (first.joined, second.joined) == (b"", first.key)
    job = stand.take_one()
    gated, ignored = put(stand), put(stand, on_conflict="ignore")
    assert (gated.joined, ignored.joined) == (gated.key, first.key)
    stand.done(job)
    assert where(stand, gated) == "live"


def test_many_jobs_hear_whom_they_met_each_for_itself(stand: Stand) -> None:
    old = put(stand, "old")
    news = [
        stand.new("new", key=new_key()),
        stand.new("old", key=new_key(), on_conflict="ignore"),
        stand.new("old", key=new_key()),
        stand.merged("m", b"1", key=new_key()),
        stand.merged("m", b"2", key=new_key()),
        stand.new("old", key=new_key(), on_conflict="ignore"),
    ]
    for new in news:
        new.key = new.key or new_key()
    outcomes = stand.queue.schedule_many(news)
    assert outcomes == ["created", "ignored", "replaced", "created", "merged", "ignored"]
    assert [new.joined for new in news] == [b"", old.key, b"", b"", news[3].key, news[2].key]


def test_a_buried_generation_is_found_beside_a_live_one(stand: Stand) -> None:
    old = put(stand)
    assert stand.buried(stand.take_one())
    new = put(stand, at=1000)
    inspector = stand.broker.inspector
    views = [inspector.get_generation("q", "a", generation_of(one)) for one in (old, new)]
    assert [view and (view.state, view.job.key) for view in views] == [("morgue", old.key), ("delayed", new.key)]
    assert inspector.get_generation("q", "a", Generation((new_key(),))) is None
    assert inspector.get_generation("nowhere", "a", generation_of(old)) is None


def test_gated_content_is_seen_as_a_job_of_its_own(stand: Stand) -> None:
    put(stand)
    stand.take_one()
    gated = put(stand, args=b"[2]", at=5000)
    view = stand.broker.inspector.get_generation("q", "a", generation_of(gated))
    assert view is not None
    assert (view.state, view.due_ms - T0, view.job.args, view.job.key) == ("gated", 5000, b"[2]", gated.key)


def test_nothing_is_located_where_nothing_was(stand: Stand) -> None:
    assert stand.queue.locate("a", Generation((new_key(),))) == ""
