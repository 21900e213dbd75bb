"""Search for jobs by their content, page by page; searching changes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest

from django_delayq.core import Broker, NewJob, Payload
from django_delayq.core.reading import jobs_of
from tests.support.core_calls import ScriptCall, watch_calls
from tests.support.core_values import encode, encode_args, new_key

from .bulk_stage import SELECTED_AT_ONCE, search
from .stage import Stage
from .world import unchanged


def ids(stage: Stage, wanted: Any, **options: Any) -> list[str]:
    with unchanged(stage.broker):
        return [view.id for view in search(stage.broker, wanted, **options)]


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ready@example.org", ["ready"]),
        ("COMMON", ["buried", "delayed", "failed", "ready", "reserved"]),
        ("buried", ["buried"]),  # its id, for instance
        ("gated@", ["reserved"]),  # what waits behind its run
        ('"n":5', ["buried", "delayed", "failed", "ready", "reserved"]),  # the canonical form
        ("no such host", ["failed"]),
        ("badgateway", ["buried"]),
        ("exhausted", ["buried"]),
        ("work", ["buried", "delayed", "failed", "ready", "reserved"]),  # the task's name
        ("nowhere", []),
    ],
)
def test_a_text_is_found_in_ids_arguments_tasks_and_errors_of_every_place(
    scene: Stage, text: str, found: list[str]
) -> None:
    assert sorted(ids(scene, text)) == found


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (("waiting",), ["delayed", "failed", "ready"]),
        (("reserved",), ["reserved"]),
        (("failed",), ["failed"]),
        (("morgue",), ["buried"]),
        (("morgue", "reserved"), ["buried", "reserved"]),
    ],
)
def test_only_the_places_that_are_named_are_searched(scene: Stage, places: tuple[str, ...], found: list[str]) -> None:
    assert sorted(ids(scene, "common", places=places)) == found


def test_a_function_decides_by_the_decoded_arguments(scene: Stage) -> None:
    assert sorted(ids(scene, lambda view: view.arguments[1] == {"n": 5})) == [
        "buried",
        "delayed",
        "failed",
        "ready",
        "reserved",
    ]
    assert ids(scene, lambda view: view.state == "morgue") == ["buried"]
    assert ids(scene, lambda view: bool(view.gated and b"gated@" in view.gated.args)) == ["reserved"]


def test_a_text_is_found_in_arguments_that_cannot_be_read(stage: Stage) -> None:
    stage.put("raw", args=b"\xff\xfe needle")
    stage.put("good", args=args("needle"))
    assert ids(stage, "needle") == ["raw", "good"]


def test_what_a_function_raises_is_the_callers(scene: Stage) -> None:
    with pytest.raises(ZeroDivisionError):
        ids(scene, lambda view: 1 // 0)


@pytest.mark.parametrize("text", ['say "hi"', "back\\slash", "two\nlines", "Žluťoučký", "2030-01-02", "a/b"])
def test_texts_are_found_as_they_were_given_however_they_are_stored(stage: Stage, text: str) -> None:
    stage.put("a", args=args(f"-- {text} --", datetime(2030, 1, 2, tzinfo=UTC)))
    stage.put("b", args=args(kept={"deep": [text]}))
    stage.put("c", args=args("something else"))
    assert ids(stage, text) == ["a", "b"]


def test_the_context_of_a_job_is_searched(stage: Stage) -> None:
    stage.put("a", options=b'{"context":{"trace":"t-4711"}}')
    stage.put("b")
    assert ids(stage, "T-4711") == ["a"]


def test_payloads_of_merged_jobs_are_searched_waiting_running_gated_and_buried(stage: Stage) -> None:
    stage.add("buried", encode({"who": "ann"}), task="sync")
    (job,) = stage.take()
    stage.add("buried", encode({"who": "bob"}), "2", task="sync")
    assert ids(stage, "ann") == ids(stage, "bob") == ["buried"]
    stage.buried(job)
    assert ids(stage, "ann", places=("morgue",)) == ["buried"]
    assert ids(stage, "bob", places=("waiting",)) == ["buried"]
    assert ids(stage, "bob", places=("morgue",)) == []


def test_a_hot_id_is_read_in_pieces(stage: Stage) -> None:
    for start in range(0, 1000, 250):
        stage.queue.schedule_many(_payload_jobs(start, 250))
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


def _payload_jobs(start: int, n: int) -> list[NewJob]:
    return [
        NewJob(
            "hot",
            "sync",
            payload=Payload(encode(f"payload-{number}"), str(number), new_key()),
            on_conflict="merge",
            due_policy="keep",
        )
        for number in range(start, start + n)
    ]


def test_a_page_of_large_jobs_is_read_few_at_a_time(stage: Stage) -> None:
    for number in range(6):
        stage.in_morgue(f"buried{number}", args=b"x" * 600_000)
    for number in range(6):
        stage.put(f"large{number}", args=b"x" * 600_000)
    stage.put("small")
    with watch_calls(stage.broker) as calls:
        found = [stage.broker.inspector.page("q", place, limit=250).jobs for place in ("waiting", "morgue")]
    assert [[view.id for view in jobs] for jobs in found] == [
        [*(f"large{number}" for number in range(6)), "small"],
        [f"buried{number}" for number in range(6)],
    ]
    assert 600_000 < max(len(call.reply) for call in calls if isinstance(call.reply, bytes)) < 2_000_000


def test_graves_that_are_gone_end_no_page_too_early(stage: Stage) -> None:
    for number in range(6):
        stage.in_morgue(f"buried{number}", args=b"x" * 600_000)
    view = stage.broker.inspector
    members = [
        f"buried{number}".encode() + b"\0" + graves[0].job.key
        for number in range(6)
        if (graves := view.graves("q", f"buried{number}"))
    ]
    stage.queue.discard("buried1")
    stage.queue.discard("buried5")
    found = jobs_of(stage.broker, {("q", 0): members}, buried=True)
    assert [one.id for _, one in found] == [f"buried{n}" for n in (0, 2, 3, 4)]


def test_large_jobs_are_read_few_at_a_time(stage: Stage) -> None:
    for number in range(12):
        stage.put(f"large{number}", args=args("x" * 600_000, f"mark-{number}"))
    stage.queue.schedule_many(NewJob(f"j{number:04}", "work", args("small"), delay_ms=5) for number in range(1500))
    with watch_calls(stage.broker) as calls:
        assert ids(stage, "mark-11") == ["large11"]
    assert 600_000 < max(len(call.reply) for call in calls if isinstance(call.reply, bytes)) < 2_000_000
    assert len(calls) < 60


def test_old_epochs_are_searched_too(broker: Broker) -> None:
    stage = Stage(broker, shards=2, clock=False)
    stage.put("before", args=args("needle"))
    broker.reshard("q", 3)
    stage.put("after", args=args("needle"))
    assert sorted(view.id for view in search(broker, "needle")) == ["after", "before"]


def test_a_queue_that_is_not_there_has_nothing(broker: Broker) -> None:
    assert list(search(broker, "x", queue="nowhere")) == []
    assert list(broker.inspector.payloads("nowhere", "x")) == []
    assert broker.queue_names() == []


def test_redis_is_free_between_any_two_chunks(stage: Stage) -> None:
    """Each chunk is a separate call with at most 250 jobs."""
    stage.queue.schedule_many(NewJob(f"j{number:04}", "work", delay_ms=number) for number in range(1200))
    with watch_calls(stage.broker) as calls:
        assert len(ids(stage, "work")) == 1200
    requests = [msgpack.unpackb(call.args[2], raw=True) for call in calls if call.name == "read"]
    assert max(request.get(b"limit", 0) for request in requests) <= SELECTED_AT_ONCE == 250
    assert max(len(request.get(b"members", ())) for request in requests) <= SELECTED_AT_ONCE
