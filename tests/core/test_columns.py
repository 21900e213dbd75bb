"""Reading of whole shards by columns: each job once, even with equal due times and concurrent changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob, JobView, NewJob
from django_delayq.core.snapshot import COLUMNS, INDEXED, PLACES, Columns, Part, read_entries, read_jobs

from .stage import LEASE, T0, Stage

EVERY_BYTE = bytes(range(256)) + b"\0\r\n\0" + "\u20ac".encode("utf-16")


def rows(some: Iterator[Columns]) -> list[dict[str, Any]]:
    """Return the rows of some jobs."""
    found = (row for columns in some for row in zip(*columns.values(), strict=True))
    return [dict(zip(COLUMNS, row, strict=True)) for row in found]


def told(stage: Stage, place: str, *, fetch: int = 200, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a place in all shards, sorted by id."""
    found = [
        row
        for number in stage.queue.numbers
        for row in rows(read_jobs(stage.broker, Part("q", number, place, **options), fetch=fetch))
    ]
    return sorted(found, key=lambda row: row["id"])


def one(stage: Stage, place: str, **options: Any) -> dict[str, Any]:
    (row,) = told(stage, place, **options)
    return row


def as_seen(view: JobView) -> dict[str, Any]:
    """Return the row expected for a job that the inspector returns."""
    job = view.job
    return {
        "id": job.id,
        "task": job.task,
        "due": view.due_ms,
        "priority": job.priority,
        "args": None if job.merged else job.args,
        "key": job.key.hex(),
        "failures": job.failures,
        "reserves": job.reserves,
        "crashes": job.crashes,
        "lease_until": view.deadline_ms,
        "worker": (job.worker or None) if view.state == "reserved" else None,
        "failed_at": job.failed_at_ms or None,
        "buried_at": view.buried_ms,
        "reason": view.reason or None,
        "payloads": view.payload_count if job.merged else None,
    }


@pytest.mark.parametrize("place", ["waiting", "reserved", "morgue"])
def test_rows_say_what_the_inspector_says(full: Stage, place: str) -> None:
    seen = [as_seen(view) for view in full.broker.inspector.page("q", place).jobs]
    assert len(seen) >= 1
    found = [{name: row[name] for name in seen[0]} for row in told(full, place)]
    assert found == sorted(seen, key=lambda row: str(row["id"]))


def test_what_is_gated_has_a_row_of_its_own(full: Stage) -> None:
    (run,) = (row for row in told(full, "reserved") if row["id"] == "gated")
    row = one(full, "gated")
    view = full.broker.inspector.get("q", "gated")
    assert view is not None and view.gated is not None
    assert (row["id"], row["due"], row["key"]) == ("gated", T0 + 70_000, view.gated.key.hex())
    assert row["key"] != run["key"]
    assert (row["failures"], row["lease_until"], row["worker"]) == (0, None, None)


def test_a_failed_job_tells_its_last_error(stage: Stage) -> None:
    stage.put("job")
    error = json.dumps({"class": "shop.Gone", "message": "no \ud800 such", "traceback": "..."}).encode()
    stage.failed(stage.take_one(), 5000, error=error)
    stage.put("odd", at=9000)
    row, fresh = told(stage, "waiting")
    assert (row["failures"], row["failed_at"], row["reserves"]) == (1, T0, 1)
    assert (row["error_class"], row["error"]) == ("shop.Gone", "no ? such")
    assert (fresh["failures"], fresh["failed_at"], fresh["error"]) == (0, None, None)


def test_an_error_that_is_no_json_is_told_as_it_is(stage: Stage) -> None:
    stage.put("job")
    stage.failed(stage.take_one(), 5000, error=b"bare \xff text")
    assert one(stage, "waiting")["error"] == "bare \ufffd text"
    stage.wait(6000)
    stage.buried(stage.take_one(), "why", error_class="Bad", error=b"[1]")
    row = one(stage, "morgue")
    assert (row["reason"], row["error_class"], row["error"]) == ("why", "Bad", "[1]")


def test_bytes_come_back_as_they_were_put_in(stage: Stage) -> None:
    stage.put("job", args=EVERY_BYTE, options=json.dumps({"context": {"trace": "\u00e9"}, "timeout": 5}).encode())
    stage.put("plain", args=b"", options=b'{"timeout":5}')
    row, plain = told(stage, "waiting")
    assert (row["args"], row["context"]) == (EVERY_BYTE, '{"trace":"\u00e9"}')
    assert (plain["args"], plain["context"]) == (b"", None)


def test_payloads_of_a_merged_job_are_counted(stage: Stage) -> None:
    stage.add("m", b"one", "1")
    stage.add("m", b"two", "2")
    assert one(stage, "waiting")["payloads"] == 2 and one(stage, "waiting")["args"] is None
    job = stage.take_one()
    assert one(stage, "reserved")["payloads"] == 2 and told(stage, "gated") == []
    for score in "345":
        stage.add("m", score.encode(), score)
    assert one(stage, "gated")["payloads"] == 3
    stage.buried(job)
    row = one(stage, "morgue")
    assert (row["payloads"], row["args"]) == (2, None)
    assert one(stage, "waiting")["payloads"] == 3


# -- paging ------------------------------------------------------------------------------------------------------------


def of_one_due(stage: Stage, n: int, *, one_score: bool) -> list[str]:
    idents = [f"job-{number:05d}" for number in range(n)]
    stage.queue.count_many(NewJob(ident, "work", due_ms=T0 + 5000, delay_ms=None) for ident in idents)
    if one_score:
        scores = dict.fromkeys(idents, (T0 + 5000) * 1000)
        stage.broker.client.zadd(stage.key("due.4"), scores, xx=True)
    return idents


@pytest.mark.parametrize("one_score", [False, True])
def test_five_thousand_jobs_of_one_due_time_are_each_told_once(stage: Stage, one_score: bool) -> None:
    idents = of_one_due(stage, 5000, one_score=one_score)
    part = Part("q", 0, "waiting")
    assert [row["id"] for row in told(stage, "waiting")] == idents
    assert sorted(i for page in read_entries(stage.broker, part, page=333) for i in page["id"]) == idents


@pytest.mark.parametrize("one_score", [False, True])
def test_what_stays_is_told_once_while_others_come_and_go(stage: Stage, one_score: bool) -> None:
    idents = of_one_due(stage, 1000, one_score=one_score)
    found: list[str] = []
    gone: set[str] = set()
    for step, columns in enumerate(read_jobs(stage.broker, Part("q", 0, "waiting"), fetch=50)):
        found += columns["id"]
        # The entry behind which the next page begins, one before it and one far behind it leave; others come anywhere.
        for ident in (found[-1], found[len(found) // 2], idents[-1 - step]):
            if stage.queue.cancel(ident) == "cancelled":
                gone.add(ident)
        stage.put(f"early-{step}", at=0)
        stage.put(f"job-{step:05d}-new", at=5000)
        stage.put(f"late-{step}", at=9000)
    counts = Counter(found)
    assert [ident for ident in idents if ident not in gone and counts[ident] != 1] == []
    assert max(counts.values()) == 1 and len(gone) > 20


@pytest.mark.parametrize("one_score", [False, True])
@pytest.mark.parametrize("leave", [0, 51, 400])
@pytest.mark.parametrize("come", [0, 150])
def test_an_index_tells_what_stays_once_while_what_was_seen_leaves_and_others_come_before_it(
    stage: Stage, one_score: bool, leave: int, come: int
) -> None:
    """Test few jobs, where the position is found by its rank, and many."""
    idents = of_one_due(stage, 2000, one_score=one_score)
    found: list[str] = []
    gone: set[str] = set()
    for step, page in enumerate(read_entries(stage.broker, Part("q", 0, "waiting"), page=300)):
        found += page["id"]
        leaving = [ident for ident in found if ident not in gone][:leave] + ([found[-1]] if step == 3 else [])
        gone.update(leaving)
        stage.broker.client.zrem(stage.key("due.4"), "", *leaving)
        stage.broker.client.zadd(stage.key("due.4"), {f"early {step} {n}": n for n in range(come)} or {"early": 0})
    counts = Counter(found)
    assert [ident for ident in idents if counts[ident] != 1] == []
    assert max(counts.values()) == 1
    stage.broker.client.flushdb()


@pytest.mark.parametrize("n", [5, 30])
@pytest.mark.server
def test_an_index_tells_what_lies_at_the_ends_of_time(stage: Stage, n: int) -> None:
    idents = of_one_due(stage, n, one_score=False)
    ends = {f"{sign}{place}": float(f"{sign}inf") for sign in "+-" for place in range(25)}
    stage.broker.client.zadd(stage.key("due.4"), ends)
    found = [ident for page in read_entries(stage.broker, Part("q", 0, "waiting"), page=10) for ident in page["id"]]
    assert sorted(found) == sorted([*idents, *ends])
    stage.broker.client.flushdb()


@pytest.mark.parametrize(("low", "high"), [(None, T0 + 5300), (T0 + 5300, None), (T0 + 5100, T0 + 5101), (0, 1)])
def test_an_index_is_read_between_two_due_times(stage: Stage, low: int | None, high: int | None) -> None:
    due = {f"job-{n:04d}": T0 + 5000 + n for n in range(600)}
    stage.queue.count_many(NewJob(ident, "work", due_ms=ms, delay_ms=None) for ident, ms in due.items())
    pages = read_entries(stage.broker, Part("q", 0, "waiting", low, high), page=70)
    within = [ident for ident, ms in due.items() if (low or 0) <= ms < (high or T0 * 2)]
    assert [ident for page in pages for ident in page["id"]] == within


def test_a_heartbeat_neither_hides_nor_doubles_what_is_reserved(stage: Stage) -> None:
    idents = of_one_due(stage, 600, one_score=False)
    stage.wait(6000)
    jobs = [job for _ in range(3) for job in stage.take(250)]
    found: list[str] = []
    for step, columns in enumerate(read_jobs(stage.broker, Part("q", 0, "reserved"), fetch=20)):
        found += columns["id"]
        stage.wait(100)
        # Some leases are made longer and some shorter, so in their order they move both ways.
        stage.queue.touch(jobs[step % 2 :: 2], ttr_ms=LEASE * 2 if step % 3 else 5000)
    assert sorted(found) == idents


def test_large_jobs_come_in_small_replies(stage: Stage) -> None:
    for number in range(12):
        stage.put(f"job-{number:02d}", at=1000 + number, args=b"x" * 900_000)
    sizes = [len(columns["id"]) for columns in read_jobs(stage.broker, Part("q", 0, "waiting"))]
    assert sum(sizes) == 12 and max(sizes) <= 3
    looked_up = tuple(f"job-{number:02d}" for number in range(12))
    assert [len(row["args"]) for row in told(stage, "waiting", idents=looked_up)] == [900_000] * 12


def test_large_arguments_stay_where_they_are_when_nobody_wants_them(stage: Stage) -> None:
    stage.put("large", args=b"x" * 50_000, options=b'{"context":{"a":1}}')
    row = one(stage, "waiting", args=False)
    assert row["args"] == b"" and row["context"] == '{"a":1}' and row["error"] is None


# -- some of them ------------------------------------------------------------------------------------------------------


def test_bounds_are_from_one_moment_on_and_before_another(full: Stage) -> None:
    for place in PLACES:
        everything = told(full, place)
        for low, high in ((T0, T0 + 70_000), (None, T0 + 70_001), (T0 + 70_000, None), (T0 + 1, T0 + 2)):
            wanted = [
                row for row in everything if (low is None or low <= row["due"]) and (high is None or row["due"] < high)
            ]
            assert told(full, place, low=low, high=high) == wanted


def test_jobs_are_found_by_their_ids_as_by_walking(full: Stage) -> None:
    idents = (
        "failing",
        "held",
        "gated",
        "dead",
        "merged",
        "ready",
        "delayed",
        "ready",
        "nobody",
        "",
        "x" * 300,
        "a\0b",
        "\ud800",
    )
    for place in PLACES:
        assert told(full, place, idents=idents) == told(full, place)
        assert told(full, place, idents=("nobody",)) == []
    assert told(full, "waiting", idents=("delayed",), high=T0 + 10_000) == []


def test_all_graves_of_an_id_are_told(stage: Stage) -> None:
    keys = {stage.in_morgue("dead").hex() for _ in range(3)}
    stage.in_morgue("dead1")
    assert {row["key"] for row in told(stage, "morgue", idents=("dead",), fetch=2)} == keys


@pytest.mark.parametrize("place", [place for place in PLACES if INDEXED[place]])
def test_an_index_says_the_same_as_the_jobs(full: Stage, place: str) -> None:
    name = {"waiting": "due", "reserved": "lease_until", "morgue": "buried_at"}[place]
    found = []
    for number in full.queue.numbers:
        for page in read_entries(full.broker, Part("q", number, place), page=1):
            found += zip(page["id"], page[name], strict=True)
    assert sorted(found) == [(row["id"], row[name]) for row in told(full, place)]


def test_what_is_no_place_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidJob, match="waiting, reserved, gated, morgue"):
        next(read_jobs(stage.broker, Part("q", 0, "failed")))
    for part in (Part("q", 0, "gated"), Part("q", 0, "waiting", idents=("a",))):
        with pytest.raises(InvalidJob, match="read_jobs"):
            next(read_entries(stage.broker, part))


def test_a_shard_that_is_not_there_has_no_jobs(broker: Broker) -> None:
    for place in PLACES:
        assert rows(read_jobs(broker, Part("nobody", 7, place))) == []
    assert list(read_entries(broker, Part("nobody", 7, "waiting"))) == []


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.broken_on_purpose
@pytest.mark.server
def test_a_body_that_cannot_be_read_is_a_row_with_an_error(stage: Stage) -> None:
    bodies = {
        b"cut": b"\x24",
        b"empty": b"",
        b"newer": b"\xe4" + b"k" * 30,
        b"taskless": b"\x24\xff\xff" + b"k" * 16,
        b"options": b"\x34\1\0" + b"k" * 16 + b"\xff\xff{",
    }
    stage.put("sound", at=1)
    for place, (ident, body) in enumerate(bodies.items()):
        stage.broker.client.hset(stage.key("body"), ident, body)
        stage.broker.client.zadd(stage.key("due.4"), {ident: T0 * 1000 + place})
    stage.broker.client.zadd(stage.key("due.4"), {b"gone": 5, b"\xff\xfe": float("inf"), b"farthest": 2.0**53})
    found = {row["id"]: row for row in told(stage, "waiting")}
    assert set(found) == {"sound", "gone", "farthest", "\ufffd\ufffd", *(ident.decode() for ident in bodies)}
    assert found.pop("sound")["error"] is None
    assert {row["error_class"] for row in found.values()} == {"Undecodable"}
    assert all(row["error"] for row in found.values())
    assert {row["task"] for row in found.values()} == {None}
    assert found["newer"]["args"] == bodies[b"newer"] and found["newer"]["key"] == (b"k" * 16).hex()
    assert {found[ident]["due"] for ident in ("\ufffd\ufffd", "farthest")} == {None}
    (page,) = read_entries(stage.broker, Part("q", 0, "waiting"))
    assert set(page["id"]) == {*found, "sound"} and page["due"][-1] is None


@pytest.mark.broken_on_purpose
@pytest.mark.server
def test_states_gates_and_graves_that_cannot_be_read_raise_nothing(stage: Stage) -> None:
    for ident in ("a", "b", "c"):
        stage.put(ident)
    stage.take()
    stage.put("a")
    dead = stage.in_morgue("dead")
    client = stage.broker.client
    client.hset(stage.key("state"), "a", b"short")
    client.hset(stage.key("state"), "b", b"\xff" * 60)
    client.hset(stage.key("gate"), mapping={"a": b"1234", "c": b"\0" * 8})
    client.hset(stage.key("grave"), b"dead\0" + dead, b"?")
    reserved = {row["id"]: row for row in told(stage, "reserved")}
    assert reserved["a"]["failures"] == 0 and reserved["a"]["task"] == "work"
    assert reserved["b"]["error_class"] == "Undecodable" and "state" in reserved["b"]["error"]
    assert [(row["id"], row["due"], row["error_class"]) for row in told(stage, "gated")] == [
        ("a", None, "Undecodable"),
        ("c", 0, "Undecodable"),
    ]
    row = one(stage, "morgue")
    assert (row["id"], row["key"], row["args"], row["error_class"]) == ("dead", dead.hex(), b"?", "Undecodable")
    assert "record" in row["error"]


def test_jobs_of_more_tasks_than_a_reply_can_name_come_in_several(stage: Stage) -> None:
    stage.queue.schedule_many(NewJob(f"j{number:03d}", f"shop.task{number}") for number in range(300))
    found = told(stage, "waiting", fetch=1000)
    assert [row["task"] for row in found] == [f"shop.task{number}" for number in range(300)]
