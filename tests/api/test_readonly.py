"""GET and HEAD change nothing, whatever the route; a picture of all Redis before and after shows it."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.outcomes import bury, fail
from tests.support.api_caller import Caller

from .routes import Route, all_routes, ask, picture

ROUTES = all_routes()
#: a scraper sends no HEAD
WITHOUT_HEAD = {"metrics"}


@pytest.fixture
def world(delayq: Any) -> Any:
    """Jobs in every place, also under the id that the sample addresses name."""
    mail, images = delayq.queue("mail", shards=2), delayq.queue("images", kind="pull")
    for queue, task in ((mail, "shop.mail"), (images, "raw")):
        for ident in ("buried", "failed", "held"):
            queue.schedule(NewJob(ident, task, b"[[],{}]"))
            (job,) = queue.reserve_id(ident, worker="host.example:4711", ttr_ms=60_000).jobs
            if ident != "held":
                settle = bury(job, 0, 1, reason="buried") if ident == "buried" else fail(job, 0, 1, delay_ms=0)
                queue.settle([settle])
        queue.schedule(NewJob("later", task, b"[[],{}]", delay_ms=60_000))
        queue.schedule(NewJob("7", task, b"[[],{}]"))
    mail.schedule(NewJob("many", "shop.merge", payload=Payload(b"1", "", new_key())))
    jobs = [{"slot": 0, "queue": "mail", "id": "held", "task": "shop.mail", "started_ms": 1, "ids": 1}]
    delayq.announce("host.example:4711", {"queues": ["mail"], "threads": 1, "running": 1, "jobs": jobs})
    delayq.keep_dump("host.example:4711", "stacks", delayq.now_ms())
    return delayq


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("route", ROUTES, ids=[route.path for route in ROUTES])
def test_looking_changes_nothing(method: str, route: Route, world: Any, api: Caller) -> None:
    before = picture(world)
    status = ask(api, method, route)
    is_there = "GET" in route.actions and not (method == "HEAD" and route.name in WITHOUT_HEAD)
    # job 7 waits, so nobody has buried it
    assert status == (405 if not is_there else 404 if route.name == "get_graves" else 200)
    assert picture(world) == before


@pytest.mark.parametrize("path", ["healthz", "readyz"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_asking_for_health_changes_nothing(method: str, path: str, world: Any, api: Caller) -> None:
    before = picture(world)
    assert api(method, path)[0] == 200
    assert picture(world) == before


def test_every_get_asks_for_the_permission_to_view() -> None:
    assert {route.actions.get("GET", "view") for route in ROUTES} == {"view"}


def test_the_picture_shows_a_change(world: Any, api: Caller) -> None:
    before = picture(world)
    assert api.post("v1/queues/mail/reserve", {})[0] == 200
    assert picture(world) != before
