"""Workers over HTTP: listed, shown with what they run, and sent commands."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote

import pytest

from django_delayq.core.job import NewJob
from django_delayq.core.times import iso_of
from tests.support.api_caller import Caller
from tests.support.worker_stage import DEADLINE, config, eventually, put, registry_of, working

NAME = "web-1.example:4711:k3"


def announced(broker: Any, name: str = NAME, **info: Any) -> None:
    broker.announce(
        name,
        {
            "host": "web-1",
            "pid": 4711,
            "queues": ["mail"],
            "threads": 3,
            "running": 1,
            "dispatcher": True,
            "started": 1_000,
            "rss_mib": 64,
            **info,
        },
    )


def running(ident: str, queue: str = "mail", slot: int = 0) -> dict[str, Any]:
    return {"slot": slot, "queue": queue, "id": ident, "task": "shop.mail", "started_ms": 1_795_000_000_123, "ids": 1}


def shown(broker: Any, **others: Any) -> dict[str, Any]:
    (said,) = broker.workers()
    return {
        "name": NAME,
        "host": "web-1",
        "pid": 4711,
        "queues": ["mail"],
        "ignored": [],
        "threads": 3,
        "running": 1,
        "dispatcher": True,
        "quarantine": False,
        "stopping": False,
        "started": "1970-01-01T00:00:01.000Z",
        "rss_mib": 64,
        "seen": iso_of(said["seen_ms"]),
        "lost": False,
        "jobs": [],
        **others,
    }


def test_the_list_tells_what_each_worker_last_said(api: Caller, delayq: Any) -> None:
    announced(delayq, jobs=[running("7")], ignored=["extra"])
    status, body = api.get("v1/workers")
    (worker,) = body["workers"]
    assert (status, 0 <= worker.pop("seconds_ago") < 5) == (200, True)
    job = {"slot": 0, "queue": "mail", "id": "7", "task": "shop.mail", "started": "2026-11-18T09:46:40.123Z", "ids": 1}
    assert worker == shown(delayq, ignored=["extra"], jobs=[{**job, "started": iso_of(1_795_000_000_123)}])


def test_a_worker_of_another_release_is_shown_as_far_as_it_said_something(api: Caller, delayq: Any) -> None:
    delayq.announce("old", {"jobs": ["?"], "threads": None})
    (worker,) = api.get("v1/workers")[1]["workers"]
    assert (worker["name"], worker["threads"], worker["pid"], worker["jobs"]) == ("old", 0, None, [])


def test_what_no_text_is_in_an_announcement_breaks_no_answer(api: Caller, delayq: Any) -> None:
    delayq.queue("mail")
    announced(delayq, host="h\udc80", jobs=[running("a\ud800b")])
    for address in ("v1/workers", f"v1/workers/{NAME}", "v1/status"):
        assert api.get(address)[0] == 200, address
    assert api.get(f"v1/workers/{NAME}")[1]["jobs"][0]["id"] == "a?b"


def test_one_worker_is_shown_with_the_ends_of_its_leases(api: Caller, delayq: Any) -> None:
    queue = delayq.queue("mail", shards=2)
    for ident in ("mine", "others", "done"):
        queue.schedule(NewJob(ident, "shop.mail"))
    (mine,) = queue.reserve_id("mine", worker=NAME, ttr_ms=60_000).jobs
    queue.reserve_id("others", worker="somebody", ttr_ms=60_000)
    announced(delayq, jobs=[running("mine"), running("others", slot=1), running("gone", queue="gone", slot=2)])
    status, body = api.get(f"v1/workers/{NAME}")
    assert status == 200
    view = delayq.inspector.get("mail", mine.id)
    assert {job["id"]: job["lease_ends"] for job in body.pop("jobs")} == {
        "mine": iso_of(view.deadline_ms),
        "others": None,
        "gone": None,
    }
    assert 0 <= body.pop("seconds_ago") < 5
    assert body == {name: value for name, value in shown(delayq).items() if name != "jobs"}


@pytest.mark.parametrize("name", ["a/b/c", "with space", "ünïcode", "50%", "dump", "a/stop", "?x=1#y"])
def test_a_name_may_have_any_characters(name: str, api: Caller, delayq: Any) -> None:
    announced(delayq, name)
    status, body = api.get(f"v1/workers/{quote(name, safe='')}")
    if name == "a/stop":  # only the verbs of this one can be had
        assert status == 405
    else:
        assert (status, body["name"]) == (200, name)
    assert api.post(f"v1/workers/{quote(name, safe='')}/dump") == (202, {"worker": name, "command": "dump"})


def test_a_worker_that_there_is_not_is_404(api: Caller) -> None:
    assert api.get("v1/workers/nobody")[1]["code"] == "not_found"
    for verb in ("stop", "drain", "dump"):
        status, body = api.post(f"v1/workers/nobody/{verb}")
        assert (status, body["code"]) == (404, "not_found")


@pytest.mark.parametrize("word", ["stop", "drain", "dump"])
def test_a_worker_hears_what_it_is_told_with_its_next_announcement(word: str, api: Caller, delayq: Any) -> None:
    announced(delayq)
    assert api.post(f"v1/workers/{NAME}/{word}") == (202, {"worker": NAME, "command": word})
    heard = delayq.announce(NAME, {})
    assert list(heard.commands) == [word]


def test_the_stacks_are_there_when_the_worker_has_told_them(api: Caller, delayq: Any) -> None:
    announced(delayq)
    status, body = api.get(f"v1/workers/{NAME}/dump")
    assert (status, body["code"]) == (404, "not_found")
    delayq.keep_dump(NAME, "Thread 1:\n  here", 1_795_000_000_123)
    assert api.get(f"v1/workers/{NAME}/dump") == (
        200,
        {"worker": NAME, "taken": iso_of(1_795_000_000_123), "stacks": "Thread 1:\n  here"},
    )


def test_a_real_worker_is_seen_at_work_tells_its_stacks_and_stops(api: Caller, delayq: Any) -> None:
    began, go = threading.Event(), threading.Event()

    def a_long_errand() -> None:
        began.set()
        assert go.wait(DEADLINE)

    put(delayq, "a_long_errand", id="7")
    with working(delayq, registry_of(a_long_errand), config(heartbeat=0.05, threads=1)) as worker:
        assert began.wait(DEADLINE)
        eventually(lambda: [one["jobs"] for one in api.get("v1/workers")[1]["workers"]] not in ([], [[]]))
        (found,) = api.get("v1/workers")[1]["workers"]
        address = f"v1/workers/{quote(found['name'], safe='')}"
        (job,) = api.get(address)[1]["jobs"]
        assert (job["id"], job["task"]) == ("7", "a_long_errand")
        assert job["lease_ends"] > iso_of(delayq.now_ms())
        assert api.post(f"{address}/dump")[0] == 202
        eventually(lambda: api.get(f"{address}/dump")[0] == 200)
        assert "a_long_errand" in api.get(f"{address}/dump")[1]["stacks"]
        assert api.post(f"{address}/stop")[0] == 202
        eventually(lambda: api.get(address)[1]["stopping"])
        go.set()
        assert worker.done.wait(DEADLINE)
        eventually(lambda: api.get("v1/workers") == (200, {"workers": []}))
        assert worker.stop()


def test_a_worker_watches_and_ignores_queues_by_order_of_an_operator(api: Caller, delayq: Any) -> None:
    announced(delayq)
    delayq.queue("errands")
    for word in ("watch", "ignore"):
        assert api.post(f"v1/workers/{NAME}/{word}", {"queue": "errands"}) == (202, {"worker": NAME, "command": word})
        assert delayq.announce(NAME, {}).choices == {"errands": word}
    assert api.post(f"v1/workers/{NAME}/watch", {"queue": "nowhere"})[1]["code"] == "queue_not_found"
    assert api.post(f"v1/workers/{NAME}/watch", {})[0] == 400
    assert api.post("v1/workers/nobody/watch", {"queue": "errands"})[1]["code"] == "not_found"
