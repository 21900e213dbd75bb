"""Requests of the dashboard: snapshots that they share, a Redis that does not answer, and permissions."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq import connections
from django_delayq.admin import dashboard
from django_delayq.admin.dashboard import SNAPSHOTS, DashboardSnapshot
from django_delayq.core.broker import Broker
from django_delayq.core.layouts import queue_policy
from django_delayq.status import Snapshot
from tests.admin.dashboards import say, tiles
from tests.admin.support import Yard, every_place, tags_of
from tests.support.redis_box import RedisBox

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("unshared")]

PAGE = "/admin/django_delayq/dashboard/"
PARTS = f"{PAGE}parts/"
QUEUES = "/admin/django_delayq/queueentry/"


# -- looks -------------------------------------------------------------------------------------------------------------


def test_a_look_is_shared_by_those_who_ask_at_the_same_moment(
    delayq: Broker, onlooker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "SHARED", 60.0)
    yard = Yard(delayq)
    first = onlooker.get(PAGE).content
    yard.put("a")
    assert tiles(onlooker.get(PARTS).content)["ready"] == "0"
    assert tiles(onlooker.get(PAGE).content)["ready"] == tiles(first)["ready"] == "0"
    monkeypatch.setattr(dashboard, "SHARED", 0.0)
    assert tiles(onlooker.get(PARTS).content)["ready"] == "1"


def test_many_threads_are_answered_by_one_look(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "SHARED", 60.0)
    broker, found = connections.broker(), []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait(10)
        found.append(SNAPSHOTS.latest(broker))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 8
    assert len({id(look) for look in found}) == 1


def test_the_next_look_waits_a_hundred_times_as_long_as_this_one_took(
    delayq: Broker, onlooker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DashboardSnapshot(Snapshot(0.0), cost_ms=3.0).next_ms == 1_000
    assert DashboardSnapshot(Snapshot(0.0), cost_ms=250.0).next_ms == 25_000
    for cost_ms, state in ((3.0, "live"), (250.0, "live, every 25 s, because a snapshot takes 250 ms")):
        look = DashboardSnapshot(Snapshot(0.0), cost_ms=cost_ms)
        monkeypatch.setattr(SNAPSHOTS, "latest", lambda *_, look=look: look)
        page = onlooker.get(PARTS).content.decode()
        assert f'data-next="{look.next_ms}"' in page
        assert f'<strong id="dq-state" role="status">{state}</strong>' in page


def test_redis_is_gone_is_said_kindly_and_in_the_place_of_the_numbers(
    delayq: Broker, onlooker: Client, settings: Any
) -> None:
    connections.close_broker()
    here = settings.DELAYQ
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    page, parts = onlooker.get(PAGE), onlooker.get(PARTS)
    for response in (page, parts):
        assert (response.status_code, response["Retry-After"]) == (503, "5")
        tags_of(response.content)
        assert b"Redis cannot be reached just now." in response.content
        assert re.search(rb'id="dq-trouble" data-part class="[^"]*" role="alert">', response.content), "it is shown"
    assert b"<code></code>" not in parts.content
    assert b"The last values that were received stay on the page." in parts.content
    connections.close_broker()
    settings.DELAYQ = here
    assert onlooker.get(PAGE).status_code == 200


@pytest.mark.broken_on_purpose
@pytest.mark.one_server("stops one server")
def test_a_redis_that_stands_still_holds_no_request_for_long(
    delayq: Broker,
    onlooker: Client,
    settings: Any,
    redis_factory: Callable[..., RedisBox],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    connections.close_broker()
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    yard = Yard(connections.broker())
    yard.put("a")
    say(connections.broker(), "w@host:1", yard.take())
    assert onlooker.get(PAGE).status_code == 200
    box.pause()
    for address in (PAGE, PARTS, f"{PARTS}?all=1"):
        began = time.monotonic()
        assert onlooker.get(address).status_code == 503
        assert time.monotonic() - began < 0.3 * 8, "a few answers waited for, and a line that was made anew"


# -- who may ----------------------------------------------------------------------------------------------------------


def test_it_is_linked_from_the_index_and_asks_nothing_but_get(delayq: Broker, onlooker: Client) -> None:
    assert b'href="/admin/django_delayq/dashboard/"' in onlooker.get("/admin/").content
    assert onlooker.post(PAGE).status_code == onlooker.post(PARTS).status_code == 405


def test_who_may_not_pause_has_no_button_and_is_refused(delayq: Broker, onlooker: Client) -> None:
    every_place(delayq)
    page = onlooker.get(PAGE).content
    assert b'"dq-pause"' not in page
    assert b"formaction" not in page
    assert b"/pause/" not in page
    assert b"livejob" not in page, "nor links to pages that would refuse"
    assert onlooker.post(f"{QUEUES}orders/pause/", {"direction": "out"}).status_code == 403
    assert queue_policy(delayq.queue("orders").layout)["paused"] == ""


def test_who_may_not_see_jobs_is_not_told_their_ids(delayq: Broker, onlooker: Client) -> None:
    yard = Yard(delayq)
    yard.put("ada@example.org")
    say(delayq, "w@host:1", yard.take())
    for address in (PAGE, PARTS, f"{PARTS}?all=1"):
        page = onlooker.get(address).content
        assert b"shop.cancel_order" in page
        assert b"lease: " in page
        assert b"ada@example.org" not in page
