"""Operators' switches over HTTP: queues of running workers."""

from __future__ import annotations

from typing import Any

from tests.worker.support import config, eventually, registry_of, working

from .conftest import Caller
from .test_workers import NAME, announced


def test_a_worker_watches_and_ignores_queues_by_order_of_an_operator(api: Caller, delayq: Any) -> None:
    announced(delayq)
    delayq.queue("errands")
    for word in ("watch", "ignore"):
        assert api.post(f"v1/workers/{NAME}/{word}", {"queue": "errands"}) == (202, {"worker": NAME, "told": word})
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
