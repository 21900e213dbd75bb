"""Search for jobs by conditions and by their content, page by page: by index where there is one; it changes nothing.

Nereus is the model: its browser lists live jobs by range of id, of time and of retries.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgpack
import pytest

from django_delayq.core import Broker, InvalidJob, NewJob, Payload
from django_delayq.core.reading import jobs_of
from tests.support.core_calls import ScriptCall, watch_calls
from tests.support.core_values import encode, encode_args, new_key

from . import bulk_stage as bulk
from .bulk_stage import JobFilter
from .stage import T0, Stage
from .world import unchanged

# -- conditions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(clocked: Broker) -> Stage:
    """Create jobs of two customers over three shards: 12 that wait, of which three failed; one runs, two are buried."""
    stage = Stage(clocked, shards=3)
    for ident in ("north-x", "south-x"):
        stage.in_morgue(ident, at=-1, args=encode_args((f"{ident}@example.org",), {}))
    for number in range(12):
        customer = "north" if number % 3 == 0 else "south"
        args = encode_args((f"{customer}@example.org",), {})
        task = "mail.send" if number % 2 else "work"
        stage.put(f"{customer}-{number:02}", at=number * 1000, task=task, priority=number % 8, args=args)
    for ident, times in (("failed-1", 1), ("failed-2", 2), ("failed-3", 3)):
        stage.put(ident, at=-1)
        for _ in range(times):
            (job,) = stage.queue.reserve_id(ident, worker="w", early=True).jobs
            assert stage.failed(job, 500_000 + times, error=b'{"class":"OSError"}')
    stage.put("held", at=-1)
    (job,) = stage.queue.reserve_id("held", worker="w").jobs
    return stage


def pages(stage: Stage, place: str = "waiting", limit: int = 250, **options: Any) -> list[list[str]]:
    """Return the ids on each page."""
    found, cursor = [], ""
    while cursor or not found:
        with unchanged(stage.broker):
            page = stage.broker.inspector.page(stage.queue.name, place, limit=limit, cursor=cursor, **options)
        found.append([view.id for view in page.jobs])
        cursor = page.cursor
    return found


def matching(stage: Stage, place: str = "waiting", **conditions: Any) -> list[str]:
    (page,) = pages(stage, place, where=JobFilter(**conditions))
    return page


NORTH = ["north-00", "north-03", "north-06", "north-09"]
FAILED = ["failed-1", "failed-2", "failed-3"]


@pytest.mark.parametrize(
    ("place", "conditions", "found"),
    [
        ("waiting", {"prefix": "north-"}, NORTH),
        ("waiting", {"text": "NORTH@"}, NORTH),
        ("waiting", {"task": "mail.send", "prefix": "north"}, ["north-03", "north-09"]),
        ("waiting", {"due_from_ms": T0 + 3000, "due_before_ms": T0 + 5000}, ["north-03", "south-04"]),
        ("waiting", {"due_from_ms": T0 + 4500, "due_before_ms": T0 + 6000.5}, ["south-05", "north-06"]),
        ("waiting", {"failures": 2}, ["failed-2", "failed-3"]),
        ("waiting", {"failures": 1, "never_started": True}, []),
        ("failed", {"failures": 2}, ["failed-2", "failed-3"]),
        ("failed", {"failures_to": 2}, ["failed-1", "failed-2"]),
        ("failed", {"failures": 2, "failures_to": 2}, ["failed-2"]),
        ("failed", {"failures_to": 0}, []),
        ("waiting", {"failures": 1, "failures_to": 2}, ["failed-1", "failed-2"]),
        ("waiting", {"failures_to": 0, "prefix": "north-"}, NORTH),
        ("failed", {"text": "oserror", "prefix": "failed-1"}, ["failed-1"]),
        ("reserved", {"prefix": "he"}, ["held"]),
        ("reserved", {"never_started": True}, []),
        ("morgue", {"prefix": "north"}, ["north-x"]),
        ("morgue", {"text": "south-x@example"}, ["south-x"]),
        ("waiting", {"text": "nowhere"}, []),
        ("waiting", {"task": "mail"}, []),
    ],
)
def test_the_jobs_that_meet_all_conditions_are_listed_in_order(
    listed: Stage, place: str, conditions: dict[str, Any], found: list[str]
) -> None:
    assert matching(listed, place, **conditions) == found


def test_jobs_that_were_never_started_are_told_from_those_that_were(listed: Stage) -> None:
    assert len(matching(listed, never_started=True)) == 12
    assert set(matching(listed)) - set(matching(listed, never_started=True)) == set(FAILED)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_have_as_many_jobs_as_wanted_and_every_match_once(listed: Stage, limit: int, reverse: bool) -> None:
    found = pages(listed, limit=limit, reverse=reverse, where=JobFilter(prefix="north"))
    assert list(chain(*found)) == (NORTH[::-1] if reverse else NORTH)
    assert all(len(page) == limit for page in found[:-1])


def test_a_page_whose_time_is_over_has_what_was_found_and_a_cursor(listed: Stage) -> None:
    where = JobFilter(text="north@")
    first = listed.broker.inspector.page("q", "waiting", where=where, seconds=0)
    assert (first.examined, first.cursor) == (15, "")
    for number in range(200):
        listed.put(f"more-{number}", at=-5000)
    first = listed.broker.inspector.page("q", "waiting", where=where, seconds=0)
    assert (len(first.jobs), first.examined) == (0, 50)
    assert list(chain(*pages(listed, where=where, seconds=0))) == NORTH


def test_an_index_limits_how_many_jobs_are_read(listed: Stage) -> None:
    def examined(place: str, **conditions: Any) -> int:
        return listed.broker.inspector.page("q", place, where=JobFilter(**conditions)).examined

    assert examined("waiting", due_before_ms=T0 + 2000) == 2
    assert examined("failed", failures=3) == 1
    assert examined("failed", failures_to=2) == 2
    assert examined("failed", failures_to=0) == 0
    assert examined("morgue", prefix="north") == 1
    assert examined("waiting", prefix="north") == 15, "there is no index of waiting jobs by id"


def test_a_range_and_the_conditions_hold_together(listed: Stage) -> None:
    where = JobFilter(due_before_ms=T0 + 8000)
    (page,) = pages(listed, by="due", low=T0 + 4000, high=T0 + 20_000, where=where)
    assert page == ["south-04", "south-05", "north-06", "south-07"]


def test_a_further_condition_takes_the_place_of_the_stored_text(listed: Stage) -> None:
    where = JobFilter(text="north", prefix="south")
    (page,) = pages(listed, where=where, accepts=lambda view: view.id.endswith("1"))
    assert page == ["south-01", "south-11"]


def test_a_text_is_found_behind_the_size_that_is_shown(stage: Stage) -> None:
    stage.put("large", at=1, args=encode_args(("x" * 5000 + "needle",), {}))
    page = stage.broker.inspector.page("q", "waiting", where=JobFilter(text="needle"), most_bytes=100)
    (view,) = page.jobs
    assert (view.id, view.cut, view.job.args, view.size > 5000) == ("large", True, b"", True)


def test_the_beginning_of_an_id_ends_where_the_last_one_that_begins_with_it_does(stage: Stage) -> None:
    for ident in ("a", "ab", "a\U0010ffff\U0010ffff", "b", "A"):
        stage.in_morgue(ident, at=-1)
    assert sorted(matching(stage, "morgue", prefix="a")) == ["a", "ab", "a\U0010ffff\U0010ffff"]


# -- a range of ids, and the time of a burial --------------------------------------------------------------------------

IDS = ("a", "b", "ba", "bz", "c", "é", "z")


@pytest.fixture
def both(wide: Stage) -> Stage:
    """Return three shards with the same ids waiting and in the morgue, where one is buried each second."""
    for ident in IDS:
        wide.in_morgue(ident)
        wide.wait(1000)
    for ident in IDS:
        wide.put(ident, at=50_000)
    return wide


@pytest.mark.parametrize("place", ["waiting", "morgue"])
@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"id_from": "b"}, ["b", "ba", "bz", "c", "z", "é"]),
        ({"id_to": "bz"}, ["a", "b", "ba", "bz"]),
        ({"id_from": "b0", "id_to": "bzz"}, ["ba", "bz"]),
        ({"id_from": "ba", "id_to": "ba"}, ["ba"]),
        ({"id_from": "z"}, ["z", "é"]),
        ({"prefix": "b", "id_from": "ba"}, ["ba", "bz"]),
        ({"prefix": "b", "id_to": "ba"}, ["b", "ba"]),
        ({"prefix": "b", "id_from": "c"}, []),
    ],
)
def test_a_range_of_ids_has_both_its_ends(
    both: Stage, place: str, conditions: dict[str, str], expected: list[str]
) -> None:
    assert sorted(matching(both, place, **conditions)) == expected
    page = both.broker.inspector.page("wide", "morgue", "id", where=JobFilter(**conditions))  # type: ignore[arg-type]
    assert sorted(view.id for view in page.jobs) == expected
    assert page.examined == len(expected), "the index of the morgue gives no other job"


def test_the_time_of_the_burial_is_a_range_of_the_morgue_only(both: Stage) -> None:
    assert matching(both, "morgue", buried_from_ms=T0 + 2000, buried_before_ms=T0 + 4000) == ["ba", "bz"]
    assert matching(both, "morgue", buried_before_ms=T0 + 1000.5) == ["a", "b"]
    assert matching(both, "morgue", buried_from_ms=T0 + 5000, id_to="y") == []
    assert matching(both, "waiting", buried_from_ms=0) == []
    where = JobFilter(buried_from_ms=T0 + 6000)
    assert both.broker.inspector.page("wide", "morgue", where=where).examined == 1, "by index"


def test_bulk_verbs_take_the_ranges(both: Stage) -> None:
    def change(verb: bulk.Verb, **conditions: Any) -> dict[str, int]:
        return dict(bulk.change(both.queue, verb, JobFilter(**conditions)).counts)

    assert change(bulk.CANCEL, id_from="b", id_to="bz") == {"cancelled": 3}
    assert change(bulk.kick(), id_from="b", id_to="c", buried_from_ms=T0 + 2000) == {"kicked": 2, "live": 1}
    assert change(bulk.DISCARD, buried_before_ms=T0 + 2000) == {"discarded": 2}
    assert sorted(matching(both, "morgue")) == ["c", "z", "é"]


@pytest.mark.parametrize(
    ("conditions", "problem"),
    [
        ({"id_from": "b", "id_to": "a"}, "exchange id_from and id_to"),
        ({"id_to": "x" * 256}, "id_to is a text"),
        ({"failures": 3, "failures_to": 2}, "exchange failures and failures_to"),
        *(({"failures_to": wrong}, "failures_to must be") for wrong in (-1, True, "2")),
        ({"buried_from_ms": "yesterday"}, "buried_from_ms must be a number of Unix ms"),
    ],
)
def test_conditions_that_hold_nothing_or_cannot_be_are_refused(conditions: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidJob, match=problem):
        JobFilter(**conditions)
    assert not JobFilter(failures_to=0).is_empty


# -- content -----------------------------------------------------------------------------------------------------------


def ids(stage: Stage, wanted: Any, **options: Any) -> list[str]:
    with unchanged(stage.broker):
        return [view.id for view in bulk.search(stage.broker, wanted, **options)]


def args(*values: Any, **named: Any) -> bytes:
    return encode_args(values, named)


@pytest.fixture
def scene(clocked: Broker) -> Stage:
    """Create one job in each place, over three shards; arguments are its own name and "common"."""
    stage = Stage(clocked, shards=3)
    for ident in ("delayed", "ready", "reserved", "failed", "buried"):
        stage.put(ident, at=0, args=args(f"{ident}@Example.org", "common", n=5))
    stage.put("delayed", at=60_000, args=args("delayed@Example.org", "common", n=5))
    stage.wait(1)
    held = {job.id: job for number in range(3) for job in stage.take(number=number)}
    stage.failed(held["failed"], 5_000, error_class="Boom", error=json.dumps({"message": "no such host"}).encode())
    stage.buried(held["buried"], "exhausted", error_class="BadGateway")
    stage.released(held["ready"])
    stage.put("reserved", at=90_000, args=args("gated@Example.org"))
    return stage


ALL = ["buried", "delayed", "failed", "ready", "reserved"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ready@example.org", ["ready"]),
        ("COMMON", ALL),
        ("buried", ["buried"]),  # its id, for instance
        ("gated@", ["reserved"]),  # what waits behind its run
        ('"n":5', ALL),  # the canonical form
        ("no such host", ["failed"]),
        ("badgateway", ["buried"]),
        ("exhausted", ["buried"]),
        ("work", ALL),  # the task's name
        ("nowhere", []),
    ],
)
def test_a_text_is_found_in_ids_arguments_tasks_and_errors_of_every_place(
    scene: Stage, text: str, found: list[str]
) -> None:
    assert sorted(ids(scene, text)) == found


def test_a_function_decides_by_the_decoded_arguments_and_what_it_raises_is_the_callers(scene: Stage) -> None:
    assert sorted(ids(scene, lambda view: view.arguments[1] == {"n": 5})) == ALL
    assert ids(scene, lambda view: view.state == "morgue") == ["buried"]
    assert ids(scene, lambda view: bool(view.gated and b"gated@" in view.gated.args)) == ["reserved"]
    with pytest.raises(ZeroDivisionError):
        ids(scene, lambda view: 1 // 0)


@pytest.mark.parametrize("text", ['say "hi"', "back\\slash", "two\nlines", "Žluťoučký", "2030-01-02", "a/b"])
def test_texts_are_found_as_they_were_given_however_they_are_stored(stage: Stage, text: str) -> None:
    stage.put("a", args=args(f"-- {text} --", datetime(2030, 1, 2, tzinfo=UTC)))
    stage.put("b", args=args(kept={"deep": [text]}))
    stage.put("c", args=args("something else"))
    stage.put("raw", args=b"\xff\xfe " + text.encode())
    stage.put("d", options=json.dumps({"context": {"trace": text}}, ensure_ascii=False).encode())
    assert ids(stage, text) == ["a", "b", "raw", "d"]


def test_payloads_of_merged_jobs_are_searched_waiting_running_gated_and_buried(stage: Stage) -> None:
    for number in range(5):
        stage.add("buried", encode({"who": f"ann {number}"}), str(number), task="sync")
    (view,) = stage.broker.inspector.page("q", "waiting", where=JobFilter(text="ann 3")).jobs
    assert (view.id, view.payloads, view.payload_count) == ("buried", (), 5)
    (job,) = stage.take()
    stage.add("buried", encode({"who": "bob"}), "2", task="sync")
    assert ids(stage, "ann 4") == ids(stage, "bob") == ["buried"]
    assert ids(stage, "ann 7") == []
    stage.buried(job)
    assert ids(stage, "ann", places=("morgue",)) == ["buried"]
    assert ids(stage, "bob", places=("waiting",)) == ["buried"]
    assert ids(stage, "bob", places=("morgue",)) == []


def test_a_hot_id_is_read_in_pieces(stage: Stage) -> None:
    stage.queue.schedule_many(
        NewJob("hot", "sync", payload=Payload(encode(f"payload-{n}"), str(n), new_key()), on_conflict="merge")
        for n in range(1000)
    )
    stage.put("other", args=args("x"))

    def pieces(calls: list[ScriptCall]) -> int:
        return sum(call.name == "payloads" for call in calls)

    with watch_calls(stage.broker) as calls:
        assert ids(stage, "payload-999") == ["hot"]
    assert pieces(calls) == 4
    assert ids(stage, "payload-3.") == []
    with watch_calls(stage.broker) as calls:
        assert ids(stage, "payload-10") == ["hot"]
    assert pieces(calls) == 1  # found in the first piece


def test_graves_that_are_gone_end_no_page_too_early(stage: Stage) -> None:
    keys = [stage.in_morgue(f"buried{number}", args=b"x" * 600_000) for number in range(6)]
    members = [b"buried%d\0" % number + key for number, key in enumerate(keys)]
    stage.queue.discard("buried1")
    stage.queue.discard("buried5")
    found = jobs_of(stage.broker, {("q", 0): members}, buried=True)
    assert [one.id for _, one in found] == [f"buried{n}" for n in (0, 2, 3, 4)]


def test_old_epochs_are_searched_too_and_a_queue_that_is_not_there_has_nothing(broker: Broker) -> None:
    assert list(bulk.search(broker, "x", queue="nowhere")) == []
    assert list(broker.inspector.payloads("nowhere", "x")) == []
    assert broker.queue_names() == []
    stage = Stage(broker, shards=2, clock=False)
    stage.put("before", args=args("needle"))
    broker.reshard("q", 3)
    stage.put("after", args=args("needle"))
    assert sorted(view.id for view in bulk.search(broker, "needle")) == ["after", "before"]


def test_redis_is_free_between_any_two_chunks(stage: Stage) -> None:
    """Each chunk is a separate call with at most 250 jobs."""
    stage.queue.schedule_many(NewJob(f"j{number:04}", "work", delay_ms=number) for number in range(1200))
    with watch_calls(stage.broker) as calls:
        assert len(ids(stage, "work")) == 1200
    requests = [msgpack.unpackb(call.args[2], raw=True) for call in calls if call.name == "read"]
    assert max(request.get(b"limit", 0) for request in requests) <= bulk.SELECTED_AT_ONCE == 250
    assert max(len(request.get(b"members", ())) for request in requests) <= bulk.SELECTED_AT_ONCE
