"""Queues over HTTP: made, shown, limited, paused, resharded, deleted."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections as databases

from django_delayq import connections, limits, status
from django_delayq.core import figures
from django_delayq.core.figures import DepthPoint
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury
from django_delayq.core.times import iso_of
from django_delayq.models import OutboxJob
from django_delayq.status.json_form import as_json
from tests.support.api_caller import Caller
from tests.support.round_trips import round_trips

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


def test_the_list_tells_what_lies_in_each_queue(api: Caller, delayq: Any) -> None:
    assert api.get("v1/queues") == (200, {"queues": []})
    assert api.get("v1/queues?names_only=true") == (200, {"names": []})
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


def test_the_list_asks_the_registry_and_each_node_once_however_many_queues_there_are(api: Caller, delayq: Any) -> None:
    for place in range(30):
        delayq.queue(f"queue{place}", shards=2)
    api.get("v1/queues")  # the server has the script then
    with round_trips() as sent:
        assert len(api.get("v1/queues")[1]["queues"]) == 30
        few = len(sent)
        assert len(api.get("v1/queues?names_only=1")[1]["names"]) == 30
    nodes = len(delayq.client.get_primaries()) if delayq.connection.cluster else 1
    assert (few, len(sent) - few) == (1 + nodes, 1)


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
    delayq.queue("wide", shards=70)
    body = api.get("v1/queues/wide")[1]
    assert [one["number"] for one in body["by_shard"]] == list(range(6, 70)), "the newest 64"
    assert body["shards_left_out"] == 6


def test_a_queue_that_there_is_not_is_404(api: Caller) -> None:
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/depth", None),
        ("GET", "/limits", None),
        ("POST", "/pause", {"direction": "in"}),
        ("POST", "/resume", {"direction": "in"}),
        ("POST", "/reshard", {"shards": 2}),
        ("PATCH", "", {"max_length": 1}),
        ("PUT", "/limits", {"rate": 1}),
        ("DELETE", "", None),
    ):
        status, answer = api(method, f"v1/queues/nothing{path}", body)
        assert (status, answer["code"]) == (404, "queue_not_found"), (method, path)
    assert api.get("v1/queues") == (200, {"queues": []})


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


def test_a_queue_that_is_something_else_is_a_conflict(api: Caller) -> None:
    api.post("v1/queues", {"name": "mail", "kind": "python", "shards": 4, "max_length": 6})
    for other, advice in (
        ({"kind": "pull"}, "take another name"),
        ({"shards": 2}, "POST v1/queues/mail/reshard"),
        ({"max_length": 5}, "PATCH v1/queues/mail"),
    ):
        status, body = api.post("v1/queues", {"name": "mail", **other})
        assert (status, body["code"], advice in body["detail"]) == (409, "conflict", True), advice


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


# --- limits, pause, reshard


def test_limits_are_changed_one_by_one_and_taken_away_with_null(api: Caller, delayq: Any) -> None:
    api.post("v1/queues", {"name": "mail", "max_length": 5, "morgue_ttl": 60})
    status, body = api.patch("v1/queues/mail", {"max_length": 2, "priorities": "weighted"})
    connections.close_broker()  # a new process has never heard of them
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


def test_a_queue_is_paused_and_goes_on(api: Caller, delayq: Any) -> None:
    api.post("v1/queues", {"name": "mail"})
    assert api.post("v1/queues/mail/pause", {"direction": "in"}) == (200, described("mail", paused="in"))
    assert delayq.queue("mail").schedule_many([NewJob("a", "t")]) == ["paused"]
    assert api.post("v1/queues/mail/pause", {"direction": "out"})[1]["paused"] == "both"
    assert api.post("v1/queues/mail/resume", {"direction": "in"})[1]["paused"] == "out"
    assert delayq.queue("mail").schedule_many([NewJob("a", "t")]) == ["created"]
    assert api.post("v1/queues/mail/resume", {"direction": "both"}) == (200, described("mail"))
    status, body = api.post("v1/queues/mail/pause", {"direction": "out", "seconds": 600})
    end = iso_of(delayq.known_queue("mail").layout["paused"]["out"])
    assert (status, body["paused"], body["paused_until"]) == (200, "out", {"out": end})
    assert api.get("v1/queues/mail")[1]["paused_until"] == {"out": end}
    assert api.post("v1/queues/mail/resume", {"direction": "both"})[1]["paused_until"] == {}


def test_a_queue_gets_other_shards_while_its_jobs_live_on(api: Caller, delayq: Any) -> None:
    fill(delayq, "mail", delayed=4)
    resharded = described("mail", shards=3, epoch=1, draining=True)
    for _ in range(2):
        assert api.post("v1/queues/mail/reshard", {"shards": 3}) == (200, resharded)
    body = api.get("v1/queues/mail")[1]
    assert [(one["epoch"], one["number"]) for one in body["by_shard"]] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert (body["by_shard"][0]["counts"]["delayed"], body["counts"]["delayed"]) == (4, 4)


# --- delete


def test_an_empty_queue_is_deleted(api: Caller) -> None:
    api.post("v1/queues", {"name": "mail"})
    assert api.delete("v1/queues/mail") == (204, None)
    assert api.get("v1/queues?names_only=true") == (200, {"names": []})
    assert api.delete("v1/queues/mail")[0] == 404
    again = api.post("v1/queues", {"name": "mail", "shards": 2})
    assert again == (201, described("mail", shards=2, epoch=1)), "in a new epoch"


def test_a_queue_with_jobs_is_deleted_only_with_force(api: Caller, delayq: Any) -> None:
    fill(delayq, "mail", delayed=1, buried=1)
    for name in ("mail", "other"):
        row = {"queue": name, "job_id": "7", "key": uuid.uuid4(), "task": "shop.mail", "due_ms": 0, "record": b""}
        OutboxJob.objects.create(**row)
    status, body = api.delete("v1/queues/mail")
    assert (status, body["code"]) == (409, "queue_not_empty")
    assert body["detail"].endswith("empty it first, or delete it with ?force=true")
    assert api.delete("v1/queues/mail?force=perhaps")[0] == 400
    assert api.get("v1/queues/mail")[1]["counts"] == {**NOTHING, "delayed": 1, "morgue": 1}
    assert api.delete("v1/queues/mail?force=true") == (204, None)
    assert api.get("v1/queues") == (200, {"queues": []})
    assert list(OutboxJob.objects.values_list("queue", flat=True)) == ["other"]


def test_all_producers_are_paused_and_resumed(api: Caller, delayq: Any) -> None:
    delayq.queue("images", kind="pull")
    assert api.get("v1/producers") == (200, {"paused": False, "since": None})
    status, body = api.post("v1/producers/pause")
    assert (status, body) == (200, {"paused": True, "since": iso_of(delayq.producers_paused_since())})
    for entry in ({"body": "x"}, {"jobs": [{"body": "x"}, {"body": "y"}]}):
        status, problem = api.post("v1/queues/images/jobs", entry)
        assert (status, problem["code"]) == (503, "queue_paused")
        assert "all producers are paused" in problem["detail"]
    assert api.get("v1/status")[1]["producers_paused"] == body["since"]
    assert api.post("v1/producers/resume") == (200, {"paused": False, "since": None})
    assert api.post("v1/queues/images/jobs", {"body": "x"})[0] == 201


# --- the whole deployment


def test_the_status_is_what_the_command_prints(api: Caller, delayq: Any) -> None:
    fill(delayq, "mail", delayed=1, ready=2)
    fill(delayq, "slow", ready=1, buried=1)
    delayq.announce("w1", {"queues": ["mail"], "threads": 2, "running": 1})
    code, body = api.get("v1/status")
    assert code == 200
    expected = as_json(status.take(delayq, recurring=True))
    assert body.keys() == expected.keys()
    for moving in ("now", "redis", "workers"):
        assert type(body.pop(moving)) is type(expected.pop(moving))
    for found in (body, expected):
        for entry in (found["totals"], *found["queues"]):
            entry.pop("lag_seconds")
            assert entry.pop("lag_by_priority", {"4": 0.0}).keys() == {"4"}
    assert body == expected
    assert body["totals"]["morgue"] == 1


MINUTE = 60_000


def test_t86_the_depth_of_a_queue_is_known_by_minute(api: Caller, delayq: Any) -> None:
    delayq.queue("mail")
    now_ms = delayq.now_ms()
    for ago in range(90, -1, -1):
        point = DepthPoint(ready=ago, done=30 * (90 - ago))
        figures.record_depths(delayq, {"mail": point}, now_ms - ago * MINUTE)
    last_ms = now_ms // MINUTE * MINUTE
    code, body = api.get("v1/queues/mail/depth?minutes=2")
    counts = {"delayed": 0, "reserved": 0, "failed": 0, "morgue": 0, "lag_seconds": 0.0, "p50_ms": None, "p99_ms": None}
    rates = {"scheduled": 0.0, "done": 0.5, "failing": 0.0}
    assert (code, body["points"][-2:]) == (
        200,
        [
            {"at": iso_of(last_ms - MINUTE), "ready": 1, **counts, **rates},
            {"at": iso_of(last_ms), "ready": 0, **counts, **rates},
        ],
    )
    assert len(api.get("v1/queues/mail/depth")[1]["points"]) == 60, "an hour"
    assert len(api.get("v1/queues/mail/depth?minutes=1440")[1]["points"]) == 91


# --- limits over all workers


@pytest.fixture
def operator(delayq: Any, caller: Callable[..., Caller]) -> Caller:
    """Return a caller that may see and change the limits of the queue mail, with jobs of three tenants."""
    queue = delayq.queue("mail", shards=2)
    queue.schedule_many(NewJob(f"job-{number}", "work", group=f"tenant-{number % 3}") for number in range(9))
    return caller("view", "operate")


def test_limits_are_listed_with_the_jobs_that_wait_behind_them(operator: Caller) -> None:
    limits.set("mail", group="tenant-1", concurrency=1, rate="30/m", burst=2)
    limits.set("mail", concurrency=50)
    code, body = operator.get("v1/queues/mail/limits")
    assert (code, body["due"], body["cursor"], body["unreachable"]) == (200, 9, None, False)
    group, queue = body["limits"]
    assert group["since"] == max(body["since"], group["since"])
    assert {**group, "since": "", "next_start": ""} == {
        "kind": "group",
        "name": "tenant-1",
        "concurrency": 1,
        "rate": 0.5,
        "burst": 2,
        "at_run_time": True,
        "leases": 0,
        "jobs": 2,
        "since": "",
        "next_start": "",
    }
    assert (queue["kind"], queue["name"], queue["concurrency"], queue["jobs"]) == ("queue", "mail", 50, 0)


def test_groups_come_in_pages(operator: Caller, delayq: Any) -> None:
    one_at_a_time = b'{"group_limits":[1,0,0]}'
    jobs = [NewJob(f"{number}", "work", group=f"g/{number % 150}", options=one_at_a_time) for number in range(600)]
    delayq.queue("news", shards=2).schedule_many(jobs)
    found, pages, cursor = list[tuple[str, int]](), 0, ""
    while cursor is not None:
        body = operator.get(f"v1/queues/news/limits?cursor={cursor}")[1]
        found += [(one["name"], one["jobs"]) for one in body["limits"]]
        pages, cursor = pages + 1, body["cursor"]
    assert sorted(found) == sorted((f"g/{number}", 3) for number in range(150))
    assert pages == 2


def test_a_limit_is_set_and_deleted(operator: Caller) -> None:
    assert operator("PUT", "v1/queues/mail/limits", {"concurrency": 3, "rate": "10/s", "burst": 7})[0] == 204
    assert limits.get("mail") == {"concurrency": 3, "rate": 10.0, "burst": 7}
    assert operator("PUT", "v1/queues/mail/limits", {"group": "a/b", "rate": 2})[0] == 204
    assert limits.get("mail", group="a/b") == {"rate": 2.0, "burst": 1}
    assert operator("PUT", "v1/tasks/shop.mail/limits", {"concurrency": 1})[0] == 204
    assert limits.get(task="shop.mail") == {"concurrency": 1}
    for path in ("v1/queues/mail/limits", "v1/queues/mail/limits?group=a/b", "v1/tasks/shop.mail/limits"):
        assert operator.delete(path)[0] == 204
    assert [limits.get("mail"), limits.get("mail", group="a/b"), limits.get(task="shop.mail")] == [{}, {}, {}]
