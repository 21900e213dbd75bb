"""Queues over HTTP: made, shown, limited, paused, resharded, deleted."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

import pytest
from django.db import connections as databases

from django_delayq import connections
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury
from django_delayq.core.redis.scripts import SentCalls
from django_delayq.models import OutboxJob
from tests.support.api_caller import Caller

NO_LIMITS = {"max_length": None, "morgue_max": None, "morgue_ttl": None, "priorities": "strict", "starve_after": None}
NOTHING = {"delayed": 0, "ready": 0, "reserved": 0, "gated": 0, "failed": 0, "morgue": 0}


def described(name: str, **others: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "python",
        "shards": 1,
        "epoch": 0,
        "draining": False,
        "paused": "",
        "paused_until": {},
        "configured": False,
        "limits": NO_LIMITS,
        **others,
    }


def fill(broker: Any, name: str, *, delayed: int = 0, ready: int = 0, held: int = 0, buried: int = 0) -> None:
    queue = broker.queue(name)
    for place in range(held + buried):
        queue.schedule(NewJob(f"taken{place}", "shop.mail"))
        (job,) = queue.reserve_id(f"taken{place}", worker="w", ttr_ms=60_000).jobs
        if place < buried:
            queue.settle([bury(job, 0, 1, reason="buried")])
    for place in range(ready):
        queue.schedule(NewJob(f"ready{place}", "shop.mail", due_ms=int(broker.now_ms()) - 5000, delay_ms=None))
    for place in range(delayed):
        queue.schedule(NewJob(f"delayed{place}", "shop.mail", delay_ms=60_000))


# --- list and show


def test_a_deployment_without_queues_has_an_empty_list(api: Caller) -> None:
    assert api.get("v1/queues") == (200, {"queues": []})
    assert api.get("v1/queues?names_only=true") == (200, {"names": []})


def test_the_list_tells_what_lies_in_each_queue(api: Caller, delayq: Any) -> None:
    delayq.queue("mail", shards=3)
    fill(delayq, "mail", delayed=3, ready=2, held=1, buried=1)
    delayq.queue("images", kind="pull")
    status, body = api.get("v1/queues")
    assert status == 200
    images, mail = body["queues"]
    assert images == {
        **described("images", kind="pull"),
        "counts": NOTHING,
        "lag_seconds": 0.0,
        "lag_by_priority": {},
        "counters": {},
        "unreachable_shards": 0,
    }
    assert mail.pop("lag_by_priority") == {"4": mail["lag_seconds"]}
    assert 5 <= mail.pop("lag_seconds") < 60
    assert mail == {
        **described("mail", shards=3),
        "counts": {**NOTHING, "delayed": 3, "ready": 2, "reserved": 1, "morgue": 1},
        "counters": delayq.inspector.counts("mail").counters,
        "unreachable_shards": 0,
    }
    assert mail["counters"]["created"] == 7


def test_the_list_asks_the_registry_and_each_node_once_however_many_queues_there_are(
    api: Caller, delayq: Any, calls_of: Any
) -> None:
    for place in range(30):
        delayq.queue(f"queue{place}", shards=2)
    api.get("v1/queues")  # the server has the script then
    with calls_of() as few:
        assert len(api.get("v1/queues")[1]["queues"]) == 30
    with calls_of() as one:
        assert len(api.get("v1/queues?names_only=1")[1]["names"]) == 30
    nodes = len(delayq.client.get_primaries()) if delayq.connection.cluster else 1
    assert (len(few), len(one)) == (1 + nodes, 1)


@pytest.fixture
def calls_of(delayq: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Round trips: commands of the client, and pieces that are sent to a node."""

    @contextlib.contextmanager
    def counting() -> Any:
        seen: list[str] = []
        with monkeypatch.context() as patch:
            run, send = connections.hurried_broker().client.execute_command, SentCalls._send

            def command(*args: Any, **options: Any) -> Any:
                seen.append(str(args[0]))
                return run(*args, **options)

            def piece(self: Any, *args: Any) -> None:
                seen.append("piece")
                send(self, *args)

            patch.setattr(connections.hurried_broker().client, "execute_command", command)
            patch.setattr(SentCalls, "_send", piece)
            yield seen

    connections.hurried_broker().inspector.all_counts()  # the server's version is asked for once
    return counting


def test_one_queue_is_shown_shard_by_shard(api: Caller, delayq: Any) -> None:
    queue = delayq.queue("mail", shards=2)
    fill(delayq, "mail", delayed=5, ready=4)
    status, body = api.get("v1/queues/mail")
    assert status == 200
    by_shard = body.pop("by_shard")
    assert [(one["epoch"], one["number"]) for one in by_shard] == [(0, 0), (0, 1)]
    assert sum(one["counts"]["delayed"] for one in by_shard) == body["counts"]["delayed"] == 5
    assert [one["counts"]["ready"] for one in by_shard] == [
        one.ready for one in delayq.inspector.count_each_shard(queue, queue.numbers)
    ]
    assert max(one["lag_seconds"] for one in by_shard) == body["lag_seconds"] >= 5
    assert body["shards_left_out"] == 0


def test_a_queue_of_many_shards_shows_the_newest_64(api: Caller, delayq: Any) -> None:
    delayq.queue("mail", shards=70)
    body = api.get("v1/queues/mail")[1]
    assert [one["number"] for one in body["by_shard"]] == list(range(6, 70))
    assert body["shards_left_out"] == 6


def test_a_queue_that_there_is_not_is_404(api: Caller) -> None:
    status, body = api.get("v1/queues/nothing")
    assert (status, body["code"]) == (404, "queue_not_found")
    for verb in ("pause", "resume", "reshard"):
        asked = {"shards": 2} if verb == "reshard" else {"direction": "in"}
        assert api.post(f"v1/queues/nothing/{verb}", asked)[1]["code"] == "queue_not_found"
    assert api.patch("v1/queues/nothing", {"max_length": 1})[1]["code"] == "queue_not_found"
    assert api.delete("v1/queues/nothing")[1]["code"] == "queue_not_found"
    assert api.get("v1/queues") == (200, {"queues": []})


def test_an_unknown_member_of_the_query_is_refused(api: Caller) -> None:
    status, body = api.get("v1/queues?name_only=1")
    assert (status, body["code"], body["errors"][0]["pointer"]) == (400, "invalid", "/name_only")


# --- make


def test_a_queue_is_made_with_its_limits(api: Caller, delayq: Any) -> None:
    asked = {
        "name": "images",
        "kind": "pull",
        "shards": 3,
        "max_length": 9,
        "morgue_max": 7,
        "morgue_ttl": 1.001,
        "priorities": "weighted",
        "starve_after": 90,
    }
    limits = {"max_length": 9, "morgue_max": 7, "morgue_ttl": 1.001, "priorities": "weighted", "starve_after": 90.0}
    made = described("images", kind="pull", shards=3, limits=limits)
    assert api.post("v1/queues", asked) == (201, made)
    assert api.post("v1/queues", asked) == (200, made)
    assert api.post("v1/queues", {"name": "images"}) == (200, made)
    queue = delayq.queue("images")
    outcomes = queue.schedule_many([NewJob(f"{place}", "raw") for place in range(40)])
    assert outcomes.count("created") == 9


def test_a_queue_needs_nothing_but_a_name(api: Caller) -> None:
    assert api.post("v1/queues", {"name": "mail"}) == (201, described("mail"))
    assert api.post("v1/queues", {"name": "mail"}) == (200, described("mail"))


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"kind": "pull"}, "take another name"),
        ({"shards": 2}, "POST v1/queues/mail/reshard"),
        ({"max_length": 5}, "PATCH v1/queues/mail"),
    ],
)
def test_a_queue_that_is_something_else_is_a_conflict(asked: dict[str, Any], advice: str, api: Caller) -> None:
    api.post("v1/queues", {"name": "mail", "kind": "python", "shards": 4, "max_length": 6})
    status, body = api.post("v1/queues", {"name": "mail", **asked})
    assert (status, body["code"]) == (409, "conflict")
    assert advice in body["detail"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("same", [True, False])
def test_of_many_who_make_a_queue_at_once_nobody_is_told_something_wrong(same: bool, api: Caller, delayq: Any) -> None:
    found: list[tuple[int, Any]] = []
    start = threading.Barrier(6)

    def make(shards: int) -> None:
        start.wait()
        found.append(Caller(api.token).post("v1/queues", {"name": "mail", "shards": shards}))
        databases.close_all()

    threads = [threading.Thread(target=make, args=(2 if same else place,)) for place in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(status for status, _ in found)
    if same:  # who wants the very same at the same moment has made it too
        assert set(statuses) <= {200, 201} and 201 in statuses
    else:
        assert statuses == [201] + [409] * 5
    shards = {body["shards"] for status, body in found if status < 300}
    assert shards == {delayq.known_queue("mail").shards}


@pytest.mark.parametrize(
    ("asked", "pointer"),
    [
        ({}, "/name"),
        ({"name": "1mail"}, "/name"),
        ({"name": "mail\n"}, "/name"),
        ({"name": "m" * 65}, "/name"),
        ({"name": "a:{b}"}, "/name"),
        ({"name": ["mail"]}, "/name"),
        ({"name": "mail", "kind": "ruby"}, "/kind"),
        ({"name": "mail", "shards": 0}, "/shards"),
        ({"name": "mail", "shards": 1025}, "/shards"),
        ({"name": "mail", "shards": 10**30}, "/shards"),
        ({"name": "mail", "max_length": -1}, "/max_length"),
        ({"name": "mail", "morgue_ttl": 0.5}, "/morgue_ttl"),
        ({"name": "mail", "priorities": None}, "/priorities"),
        ({"name": "mail", "starve_after": 0}, "/starve_after"),
        ({"name": "mail", "shard": 2}, "/shard"),
    ],
)
def test_nonsense_makes_no_queue(asked: dict[str, Any], pointer: str, api: Caller) -> None:
    status, body = api.post("v1/queues", asked)
    assert (status, body["code"], body["errors"][0]["pointer"]) == (400, "invalid", pointer)
    assert api.get("v1/queues?names_only=true") == (200, {"names": []})


def test_of_a_queue_in_the_settings_they_decide(api: Caller, settings: Any) -> None:
    limits = {**NO_LIMITS, "max_length": 8, "morgue_ttl": 60.0, "priorities": "weighted"}
    configured = {"images": {"kind": "pull", "shards": 2, "max_length": 8, "morgue_ttl": 60, "priorities": "weighted"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": configured}
    for other in ({"kind": "python"}, {"shards": 3}, {"max_length": 9}):
        status, body = api.post("v1/queues", {"name": "images", **other})
        assert (status, body["code"]) == (409, "set_in_settings")
    made = described("images", kind="pull", shards=2, configured=True, limits=limits)
    assert api.post("v1/queues", {"name": "images", "shards": 2}) == (201, made)
    status, body = api.patch("v1/queues/images", {"max_length": 9})
    assert (status, body["code"]) == (409, "set_in_settings")
    assert api.get("v1/queues/images")[1]["limits"] == limits


def test_a_deleted_queue_is_made_again_in_a_new_epoch(api: Caller) -> None:
    api.post("v1/queues", {"name": "mail", "max_length": 5})
    assert api.delete("v1/queues/mail") == (204, None)
    again = api.post("v1/queues", {"name": "mail", "shards": 2})
    assert again == (201, described("mail", shards=2, epoch=1))


# --- limits, pause, reshard


def test_limits_are_changed_one_by_one_and_taken_away_with_null(api: Caller, delayq: Any) -> None:
    api.post("v1/queues", {"name": "mail", "max_length": 5, "morgue_ttl": 60})
    status, body = api.patch("v1/queues/mail", {"max_length": 2, "priorities": "weighted"})
    assert (status, body["limits"]) == (
        200,
        {**NO_LIMITS, "max_length": 2, "morgue_ttl": 60.0, "priorities": "weighted"},
    )
    assert delayq.queue("mail").schedule_many([NewJob(name, "t") for name in "abc"]).count("full") == 1
    assert api.patch("v1/queues/mail", {"starve_after": 600})[1]["limits"]["starve_after"] == 600
    status, body = api.patch("v1/queues/mail", dict(NO_LIMITS))
    assert (status, body["limits"]) == (200, NO_LIMITS)
    assert delayq.queue("mail").schedule(NewJob("c", "t")) == "created"
    assert api.patch("v1/queues/mail", {}) == (200, described("mail"))


def test_limits_outlive_the_process(api: Caller) -> None:
    api.post("v1/queues", {"name": "mail"})
    api.patch("v1/queues/mail", {"max_length": 2})
    connections.close_broker()  # what a new process has never heard
    connections.queue("mail").schedule(NewJob("a", "t"))
    assert api.get("v1/queues/mail")[1]["limits"]["max_length"] == 2


@pytest.mark.parametrize(
    "asked",
    [{"max_length": 0}, {"max_length": "many"}, {"morgue_ttl": True, "x": 1}, {"shards": 2}, {"priorities": "none"}],
)
def test_limits_that_are_none_change_nothing(asked: dict[str, Any], api: Caller) -> None:
    api.post("v1/queues", {"name": "mail", "max_length": 5})
    assert api.patch("v1/queues/mail", {"morgue_max": 7, **asked})[0] == 400
    assert api.get("v1/queues/mail")[1]["limits"] == {**NO_LIMITS, "max_length": 5}


def test_a_queue_is_paused_and_goes_on(api: Caller, delayq: Any) -> None:
    api.post("v1/queues", {"name": "mail"})
    assert api.post("v1/queues/mail/pause", {"direction": "in"}) == (200, described("mail", paused="in"))
    assert delayq.queue("mail").schedule_many([NewJob("a", "t")]) == ["paused"]
    assert api.post("v1/queues/mail/pause", {"direction": "out"})[1]["paused"] == "both"
    assert api.post("v1/queues/mail/resume", {"direction": "in"})[1]["paused"] == "out"
    assert delayq.queue("mail").schedule_many([NewJob("a", "t")]) == ["created"]
    assert api.post("v1/queues/mail/resume", {"direction": "both"}) == (200, described("mail"))
    for nonsense in ({}, {"direction": "sideways"}, {"direction": "in", "for": 5}):
        assert api.post("v1/queues/mail/pause", nonsense)[1]["code"] == "invalid"
    assert api.get("v1/queues/mail")[1]["paused"] == ""


def test_a_queue_gets_other_shards_while_its_jobs_live_on(api: Caller, delayq: Any) -> None:
    fill(delayq, "mail", delayed=4)
    resharded = described("mail", shards=3, epoch=1, draining=True)
    assert api.post("v1/queues/mail/reshard", {"shards": 3}) == (200, resharded)
    assert api.post("v1/queues/mail/reshard", {"shards": 3}) == (200, resharded)
    body = api.get("v1/queues/mail")[1]
    assert [(one["epoch"], one["number"]) for one in body["by_shard"]] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert (body["by_shard"][0]["counts"]["delayed"], body["counts"]["delayed"]) == (4, 4)


@pytest.mark.parametrize("shards", [0, -1, 1025, 1.5, "two", None, True, [2]])
def test_no_queue_has_so_many_shards(shards: Any, api: Caller) -> None:
    api.post("v1/queues", {"name": "mail"})
    assert api.post("v1/queues/mail/reshard", {"shards": shards})[1]["code"] == "invalid"
    assert api.get("v1/queues/mail")[1]["epoch"] == 0


# --- delete


def test_what_is_wrong_with_the_whole_body_is_told_without_a_place(api: Caller) -> None:
    status, body = api.post("v1/queues", ["mail"])
    assert (status, [one["pointer"] for one in body["errors"]]) == (400, [""])
    assert body["detail"] == body["errors"][0]["detail"]


def test_an_empty_queue_is_deleted(api: Caller) -> None:
    api.post("v1/queues", {"name": "mail"})
    assert api.delete("v1/queues/mail") == (204, None)
    assert api.get("v1/queues?names_only=true") == (200, {"names": []})
    assert api.delete("v1/queues/mail")[0] == 404


def test_a_queue_with_jobs_is_deleted_only_with_force(api: Caller, delayq: Any) -> None:
    fill(delayq, "mail", delayed=1, buried=1)
    status, body = api.delete("v1/queues/mail")
    assert (status, body["code"]) == (409, "queue_not_empty")
    assert body["detail"].endswith("empty it first, or delete it with ?force=true")
    assert api.delete("v1/queues/mail?force=perhaps")[0] == 400
    assert api.get("v1/queues/mail")[1]["counts"] == {**NOTHING, "delayed": 1, "morgue": 1}
    assert api.delete("v1/queues/mail?force=true") == (204, None)
    assert api.get("v1/queues") == (200, {"queues": []})


def test_a_deletion_with_force_forgets_what_waits_in_the_database(api: Caller, delayq: Any) -> None:
    delayq.queue("mail")
    delayq.queue("other")
    for name in ("mail", "other"):
        OutboxJob.objects.create(**_row(name))
    assert api.delete("v1/queues/mail?force=true") == (204, None)
    assert list(OutboxJob.objects.values_list("queue", flat=True)) == ["other"]


def _row(queue: str) -> dict[str, Any]:
    return {"queue": queue, "job_id": "7", "key": uuid.uuid4(), "task": "shop.mail", "due_ms": 0, "record": b""}
