"""Operators' switches over HTTP: queues of running workers, pauses for a time, all producers."""

from __future__ import annotations

import threading
import time
from typing import Any

from django_delayq.core.times import iso_of
from tests.support.api_caller import Caller
from tests.support.worker_stage import config, eventually, registry_of, working

from .test_workers import NAME, announced


def test_a_worker_watches_and_ignores_queues_by_order_of_an_operator(api: Caller, delayq: Any) -> None:
    announced(delayq)
    delayq.queue("errands")
    for word in ("watch", "ignore"):
        assert api.post(f"v1/workers/{NAME}/{word}", {"queue": "errands"}) == (202, {"worker": NAME, "command": word})
        assert delayq.announce(NAME, {}).choices == {"errands": word}
    assert api.post(f"v1/workers/{NAME}/watch", {"queue": "nowhere"})[1]["code"] == "queue_not_found"
    assert api.post(f"v1/workers/{NAME}/watch", {})[0] == 400
    assert api.post("v1/workers/nobody/watch", {"queue": "errands"})[1]["code"] == "not_found"


def test_what_a_real_worker_ignores_is_shown(api: Caller, delayq: Any) -> None:
    with working(delayq, registry_of(print), config(heartbeat=0.05)) as worker:
        eventually(lambda: delayq.workers())
        assert api.post(f"v1/workers/{worker.name}/ignore", {"queue": "default"})[0] == 202
        found = eventually(lambda: (one := api.get(f"v1/workers/{worker.name}")[1])["ignored"] == ["default"] and one)
        assert found["queues"] == []


def test_a_pause_for_a_time_is_shown_with_its_end(api: Caller, delayq: Any) -> None:
    delayq.queue("errands")
    status, body = api.post("v1/queues/errands/pause", {"direction": "out", "seconds": 600})
    end = iso_of(delayq.known_queue("errands").layout["paused"]["out"])
    assert (status, body["paused"], body["paused_until"]) == (200, "out", {"out": end})
    assert api.get("v1/queues/errands")[1]["paused_until"] == {"out": end}
    for wrong in (0, -1, "10m"):
        assert api.post("v1/queues/errands/pause", {"direction": "out", "seconds": wrong})[0] == 400
    assert api.post("v1/queues/errands/resume", {"direction": "both"})[1]["paused_until"] == {}


def test_all_producers_are_paused_and_resumed(api: Caller, delayq: Any) -> None:
    delayq.queue("images", kind="pull")
    assert api.get("v1/producers") == (200, {"paused": False, "since": None})
    status, body = api.post("v1/producers/pause")
    assert (status, body) == (200, {"paused": True, "since": iso_of(delayq.producers_paused_since())})
    for path in ({"body": "x"}, [{"body": "x"}, {"body": "y"}]):
        entry = path if isinstance(path, dict) else {"jobs": path}
        status, problem = api.post("v1/queues/images/jobs", entry)
        assert (status, problem["code"]) == (503, "queue_paused")
        assert "all producers are paused" in problem["detail"]
    assert api.get("v1/status")[1]["producers_paused"] == body["since"]
    assert api.post("v1/producers/resume") == (200, {"paused": False, "since": None})
    assert api.post("v1/queues/images/jobs", {"body": "x"})[0] == 201


def test_a_request_waits_for_room_as_long_as_it_says(api: Caller, delayq: Any) -> None:
    delayq.queue("images", kind="pull")
    delayq.limit("images", max_length=1)
    assert api.post("v1/queues/images/jobs", {"body": "x", "id": "1"})[0] == 201
    timer = threading.Timer(0.4, lambda: delayq.queue("images").cancel("1"))
    timer.start()
    assert api.post("v1/queues/images/jobs", {"body": "y", "wait_for_room": 10})[0] == 201
    timer.join()
    for entry in ({"body": "z", "wait_for_room": 0.3}, {"jobs": [{"body": "z", "wait_for_room": 0.3}]}):
        began = time.monotonic()
        status, problem = api.post("v1/queues/images/jobs", entry)
        assert (status, problem["code"]) == (429, "queue_full")
        assert time.monotonic() - began >= 0.3
    for wrong in (-1, 21, "1"):
        assert api.post("v1/queues/images/jobs", {"body": "z", "wait_for_room": wrong})[0] == 400
