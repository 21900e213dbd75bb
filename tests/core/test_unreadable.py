"""Stored values that cannot be read: they stop neither the other jobs of a call nor their shard."""

from __future__ import annotations

import pytest

from django_delayq.core import Settlement, bury
from django_delayq.core.times import iso_of
from tests.support.core_stored import check_stored
from tests.support.core_values import new_key

from .bulk_stage import JobFilter
from .stage import LEASE, T0, Stage

pytestmark = pytest.mark.broken_on_purpose

#: states of a job: bytes that are none, a text, and a number without its map
STATES = [b"\xff" * 60, b"short", b"\x01"]


def store(stage: Stage, key: str, name: bytes | str, value: bytes) -> None:
    stage.broker.client.hset(stage.key(key), name, value)


@pytest.mark.parametrize("state", STATES)
def test_a_waiting_job_with_an_unreadable_state_runs_and_so_do_the_others(stage: Stage, state: bytes) -> None:
    for ident in ("a", "b", "c"):
        stage.put(ident)
    store(stage, "state", "b", state)
    jobs = stage.take()
    assert [job.id for job in jobs] == ["a", "b", "c"]
    assert stage.done(*jobs) == [True] * 3
    assert stage.picture() == {}


@pytest.mark.parametrize("state", STATES)
def test_a_lease_with_an_unreadable_state_ends_like_the_others(stage: Stage, state: bytes) -> None:
    for ident in ("a", "b", "c"):
        stage.put(ident)
    a, b, c = stage.take()
    store(stage, "state", "b", state)
    assert stage.queue.touch([a, b, c]) == ["held", "lost", "held"]
    assert stage.done(a, b) == [True, False]
    assert stage.settle(bury(c, 1, 2, reason="why"), bury(b, 1, 2, reason="why")) == [True, False]
    stage.wait(LEASE)
    (lost,) = stage.take_lost()
    assert lost.id == "b"
    assert stage.released(lost)
    assert [job.id for job in stage.take()] == ["b"]


@pytest.mark.parametrize("state", STATES)
def test_a_job_with_an_unreadable_state_is_listed_searched_and_checked(stage: Stage, state: bytes) -> None:
    stage.put("a")
    stage.take()
    store(stage, "state", "a", state)
    page = stage.broker.inspector.page("q", "reserved", where=JobFilter(failures=0, text="a"))
    assert [view.id for view in page.jobs] == ["a"]
    assert "lease without token" in check_stored(stage.broker, repair=True).violations[0]
    assert [job.id for job in stage.take()] == ["a"]


def test_gated_content_that_is_cut_off_ends_in_the_morgue(stage: Stage) -> None:
    for ident in ("a", "b"):
        stage.put(ident)
    jobs = stage.take()
    store(stage, "gate", "a", b"1234")
    assert stage.done(*jobs) == [True, True]
    batch = stage.batch()
    assert batch.jobs == [] and [job.id for job in batch.broken] == ["a"]
    stage.buried(batch.broken[0], "cut off", outcome="undecodable")
    page = stage.broker.inspector.page("q", "morgue")
    assert [(view.id, view.outcome) for view in page.jobs] == [("a", "undecodable")]


def test_a_payload_that_is_cut_off_ends_in_the_morgue(stage: Stage) -> None:
    stage.add("m", b"one", "1")
    stage.put("b")
    client = stage.broker.client
    ((field, value),) = client.hgetall(stage.key("payload")).items()
    client.hset(stage.key("payload"), field, value[:20])
    batch = stage.batch()
    assert [job.id for job in batch.jobs] == ["b"]
    assert [(job.id, "payload" in job.broken) for job in batch.broken] == [("m", True)]


def test_a_job_that_is_due_since_ever_is_handed_out(stage: Stage) -> None:
    stage.put("a")
    stage.broker.client.zadd(stage.key("due.4"), {"a": "-inf"})
    assert stage.done(stage.take_one()) == [True]


# -- the morgue --------------------------------------------------------------------------------------------------------

#: records of the morgue
RECORDS = [b"?", b"", b"\xff" * 60]


@pytest.mark.parametrize("record", RECORDS)
def test_an_unreadable_record_stops_neither_the_others_nor_its_end(stage: Stage, record: bytes) -> None:
    stage.durable = True
    stage.add("m", b"one", "1")  # records are read for the keys of their payloads from now on
    stage.done(stage.take_one())
    keys = {ident: stage.in_morgue(ident) for ident in ("a", "b", "c")}
    store(stage, "grave", b"b\0" + keys["b"], record)
    assert stage.queue.kick("b") == ""
    assert stage.queue.kick("a") == "kicked"
    stage.queue.rule(0, {"morgue_max": 1})
    stage.queue.tick(0)
    assert stage.picture()["morgue"] == ["c buried"]
    assert stage.taken_marks()[keys["b"]] == "done"


@pytest.mark.parametrize("record", [b"\x82\xa4body\xa0\xa8payloads\x05", b"\x82\xa4body\xa0\xa8payloads\x91\x80"])
def test_a_list_leaves_arguments_out_of_no_unreadable_record(stage: Stage, record: bytes) -> None:
    keys = {ident: stage.in_morgue(ident) for ident in ("a", "b")}
    store(stage, "grave", b"a\0" + keys["a"], record)
    page = stage.broker.inspector.page("q", "morgue", most_bytes=0)
    assert [(view.id, bool(view.broken)) for view in page.jobs] == [("a", True), ("b", False)]


def test_what_has_no_readable_time_is_shown_outside_the_calendar(stage: Stage) -> None:
    stage.put("a")
    stage.take()
    store(stage, "gate", "a", b"1234")
    key = stage.in_morgue("dead")
    store(stage, "grave", b"dead\0" + key, b"?")
    inspector = stage.broker.inspector
    held, dead = inspector.get("q", "a"), inspector.get("q", "dead")
    assert held is not None and dead is not None
    assert [iso_of(held.due_ms), iso_of(held.gated_due_ms), iso_of(dead.due_ms)] == [iso_of(T0), None, None]


# -- attempts of jobs that were acked before ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [b"\xff", b"\x05", b"\x94\xa1x\x05\xa0\xa0", b"\x90"])
def test_an_unreadable_begun_attempt_hides_no_other_one(stage: Stage, entry: bytes) -> None:
    stage.put("a")
    (job,) = stage.take()
    stage.settle(Settlement(job, verb="ack_early"))
    store(stage, "begun", new_key(), entry)
    assert [one.id for one in stage.queue.begun(0)] == ["a"]
