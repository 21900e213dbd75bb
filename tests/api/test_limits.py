"""Limits over HTTP: read with what waits behind them, set and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import limits
from django_delayq.core.job import NewJob
from tests.support.api_caller import Caller


@pytest.fixture
def api(delayq: Any, caller: Callable[..., Caller]) -> Caller:
    queue = delayq.queue("mail", shards=2)
    queue.schedule_many(NewJob(f"job-{number}", "work", group=f"tenant-{number % 3}") for number in range(9))
    return caller("view", "operate")


def test_limits_are_listed_with_the_jobs_that_wait_behind_them(api: Caller) -> None:
    limits.set("mail", group="tenant-1", concurrency=1, rate="30/m", burst=2)
    limits.set("mail", concurrency=50)
    code, body = api.get("v1/queues/mail/limits")
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


def test_groups_come_in_pages(api: Caller, delayq: Any) -> None:
    one_at_a_time = b'{"group_limits":[1,0,0]}'
    jobs = [NewJob(f"{number}", "work", group=f"g/{number % 150}", options=one_at_a_time) for number in range(600)]
    delayq.queue("news", shards=2).schedule_many(jobs)
    found, pages, cursor = list[tuple[str, int]](), 0, ""
    while cursor is not None:
        body = api.get(f"v1/queues/news/limits?cursor={cursor}")[1]
        found += [(one["name"], one["jobs"]) for one in body["limits"]]
        pages, cursor = pages + 1, body["cursor"]
    assert sorted(found) == sorted((f"g/{number}", 3) for number in range(150))
    assert pages == 2


def test_a_limit_is_set_and_deleted(api: Caller) -> None:
    assert api("PUT", "v1/queues/mail/limits", {"concurrency": 3, "rate": "10/s", "burst": 7})[0] == 204
    assert limits.get("mail") == {"concurrency": 3, "rate": 10.0, "burst": 7}
    assert api("PUT", "v1/queues/mail/limits", {"group": "a/b", "rate": 2})[0] == 204
    assert limits.get("mail", group="a/b") == {"rate": 2.0, "burst": 1}
    assert api("PUT", "v1/tasks/shop.mail/limits", {"concurrency": 1})[0] == 204
    assert limits.get(task="shop.mail") == {"concurrency": 1}
    for path in ("v1/queues/mail/limits", "v1/queues/mail/limits?group=a/b", "v1/tasks/shop.mail/limits"):
        assert api.delete(path)[0] == 204
    assert [limits.get("mail"), limits.get("mail", group="a/b"), limits.get(task="shop.mail")] == [{}, {}, {}]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"burst": 3},
        {"concurrency": 0},
        {"rate": "often"},
        {"rate": 1, "burst": 0},
        {"group": "", "rate": 1},
        {"group": "a\0b", "rate": 1},
        {"rate": 1, "queue": "mail"},
    ],
    ids=str,
)
def test_a_wrong_limit_is_refused(api: Caller, wrong: dict[str, Any]) -> None:
    code, body = api("PUT", "v1/queues/mail/limits", wrong)
    assert (code, body["code"]) == (400, "invalid")


def test_a_queue_that_does_not_exist_has_no_limits(api: Caller) -> None:
    assert api.get("v1/queues/nowhere/limits")[0] == 404
    assert api("PUT", "v1/queues/nowhere/limits", {"rate": 1})[0] == 404
