"""Figures over HTTP."""

from __future__ import annotations

from typing import Any

from django_delayq import status
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury
from tests.support.api_caller import Caller


def seed(broker: Any) -> None:
    mail, slow = broker.queue("mail", shards=2), broker.queue("slow")
    for ident in ("a", "b"):
        mail.schedule(NewJob(ident, "shop.mail", due_ms=int(broker.now_ms()) - 5_000, delay_ms=None))
    mail.schedule(NewJob("c", "shop.mail", delay_ms=60_000))
    slow.schedule(NewJob("x", "shop.slow", due_ms=int(broker.now_ms()) - 90_000, delay_ms=None))
    slow.schedule(NewJob("y", "shop.slow"))
    (job,) = slow.reserve_id("y", worker="w", ttr_ms=60_000).jobs
    slow.settle([bury(job, 0, 1, reason="buried")])


def test_the_list_of_queues_has_what_lowkiq_shows_of_each(api: Caller, delayq: Any) -> None:
    seed(delayq)
    code, body = api.get("v1/queues")
    assert code == 200
    mail, slow = body["queues"]
    assert (mail["name"], slow["name"]) == ("mail", "slow")
    assert [one["counts"]["delayed"] + one["counts"]["ready"] for one in (mail, slow)] == [3, 1]
    assert [one["counts"]["morgue"] for one in (mail, slow)] == [0, 1]
    assert 5 <= mail["lag_seconds"] < 60 and 90 <= slow["lag_seconds"] < 150


def test_the_status_is_what_the_command_prints(api: Caller, delayq: Any) -> None:
    seed(delayq)
    delayq.announce("w1", {"queues": ["mail"], "threads": 2, "running": 1})
    code, body = api.get("v1/status")
    assert code == 200
    expected = status.take(delayq, recurring=True).as_json()
    assert body.keys() == expected.keys()
    for moving in ("now", "redis", "workers"):
        assert type(body.pop(moving)) is type(expected.pop(moving))
    for found in (body, expected):
        for entry in (found["totals"], *found["queues"]):
            entry.pop("lag_seconds")
            assert entry.pop("lag_by_priority", {"4": 0.0}).keys() == {"4"}
    assert body == expected
    assert body["totals"]["morgue"] == 1
