"""The dashboard without a script, and the numbers that its script asks for."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import redis.connection
from django.test import Client

from django_delayq import connections
from django_delayq.admin import dashboard_snapshots
from django_delayq.admin.dashboard_data import MOST_QUEUES, level
from django_delayq.admin.dashboard_snapshots import LOOKS, DashboardSnapshot
from django_delayq.admin.dashboard_texts import warnings_of
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.operations.counts import Counts
from django_delayq.core.records.layout import encode, new_layout
from django_delayq.core.records.packed import pack_job
from django_delayq.core.rules import orders_of
from django_delayq.models import OutboxJob
from django_delayq.status import QueueStatus, RedisStatus, Snapshot
from tests.admin.dashboards import lively, say, settle
from tests.admin.support import Yard, cells, every_place, tags_of
from tests.support.redis_box import RedisBox

pytestmark = pytest.mark.django_db

PAGE = "/admin/django_delayq/dashboard/"
DATA = f"{PAGE}data/"
QUEUES = "/admin/django_delayq/queueentry/"
PLACES = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
EVIL = "<script>evil()</script>'\"{{ evil }}"


@pytest.fixture(autouse=True)
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request looks anew."""
    monkeypatch.setattr(dashboard_snapshots, "SHARED", 0.0)


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may see the dashboard, and nothing else."""
    client.force_login(staff("view_dashboard"))
    return client


@pytest.fixture
def operator(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may also see queues and jobs, and pause."""
    client.force_login(staff("view_dashboard", "view_queueentry", "pause_queueentry", "view_livejob"))
    return client


class _Tiles(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._key = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._key = dict(attrs).get("data-total") or ""

    def handle_data(self, data: str) -> None:
        if self._key:
            self.found[self._key] = data
            self._key = ""


def tiles(html: bytes) -> dict[str, str]:
    parser = _Tiles()
    parser.feed(html.decode())
    return parser.found


def plain(text: str) -> str:
    return text.replace("\N{NARROW NO-BREAK SPACE}", "")


def places(counts: Any) -> list[int]:
    return [getattr(counts, place) for place in PLACES]


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_page_are_those_of_the_inspector(delayq: Broker, operator: Client) -> None:
    lively(delayq)
    page = operator.get(PAGE)
    assert page.status_code == 200
    tags_of(page.content)
    counts = delayq.inspector.all_counts()
    sums = {place: str(sum(getattr(one, place) for one in counts)) for place in PLACES}
    shown = tiles(page.content)
    assert {place: shown[place] for place in PLACES} == sums
    assert shown["busy"] == "5 / 12"
    rows = {row[0].split()[0]: row[1:7] for row in cells(page.content, "dq-queues") if row[0]}
    assert rows == {one.queue: [str(number) for number in places(one)] for one in counts}
    shards = {row[0]: row[1:] for row in cells(page.content, "dq-heat")}
    assert shards == {
        one.queue: [str(shard.ready) for _, shard in one.shards] for one in delayq.inspector.all_counts(by_shard=True)
    }


def test_the_numbers_that_the_script_gets_are_those_of_the_inspector(delayq: Broker, viewer: Client) -> None:
    lively(delayq)
    said = viewer.get(DATA, {"all": "1", "span": "hour"}).json()
    counts = {one.queue: one for one in delayq.inspector.all_counts(by_shard=True)}
    assert {one["name"]: [one[place] for place in PLACES] for one in said["queues"]} == {
        name: places(one) for name, one in counts.items()
    }
    assert said["totals"]["done"] == sum(one.counters.get("acked", 0) for one in counts.values())
    failing = [one.counters.get("failed", 0) + one.counters.get("buried", 0) for one in counts.values()]
    assert said["totals"]["failing"] == sum(failing) > 0
    assert {one["name"]: one["shards"] for one in said["heat"]} == {
        name: [[shard.ready, shard.delayed, shard.reserved] for _, shard in one.shards] for name, one in counts.items()
    }
    backlog = said["backlog"]
    assert len(backlog["bins"]) == 60
    assert backlog["due"] + sum(backlog["bins"]) + backlog["later"] == sum(
        one.delayed + one.ready for one in counts.values()
    )
    assert sum(said["lateness"]) == 16


def test_the_backlog_tells_in_which_minute_or_hour_a_job_falls_due(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    for name, delay_s in (("a", 90), ("b", 100), ("c", 2 * 3600 + 90), ("d", 30 * 3600)):
        yard.put(name, delay_ms=delay_s * 1000)
    yard.put("due")

    def told(span: str) -> tuple[int, dict[int, int], int]:
        said = viewer.get(DATA, {"all": "1", "span": span}).json()["backlog"]
        return said["due"], {place: n for place, n in enumerate(said["bins"]) if n}, said["later"]

    assert told("hour") == (1, {1: 2}, 2)
    assert told("day") == (1, {0: 2, 2: 1}, 1)


def test_rates_and_lateness_are_known_from_the_second_look_on(
    delayq: Broker, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_snapshots, "_RATE_SECONDS", (0.0, 120.0))
    yard = Yard(delayq)
    yard.put("a")
    first = tiles(viewer.get(PAGE).content)
    settle(yard, yard.take(), late_ms=40)
    second = tiles(viewer.get(PAGE).content)
    assert [first[key] for key in ("done_rate", "p50", "p99")] == ["–", "–", "–"]
    assert float(plain(second["done_rate"])) > 0
    assert 25 < int(second["p50"].split()[0]) <= 50


def test_what_threads_run_is_shown_with_the_ends_of_their_leases(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq)
    yard.put("order_1/x")
    (job,) = yard.take()
    say(delayq, "w@host:1", [job])
    worker = operator.get(DATA).json()["workers"][0]
    view = delayq.inspector.get("orders", "order_1/x")
    assert view is not None
    assert [(one["id"], one["task"], one["lease_ms"]) for one in worker["jobs"]] == [
        ("order_1/x", "shop.cancel_order", view.deadline_ms)
    ]
    page = operator.get(PAGE).content.decode()
    assert 'href="/admin/django_delayq/livejob/orders_2Forder_5F1_2Fx/change/"' in page
    assert "lease: " in page


def test_a_worker_that_speaks_of_a_queue_that_is_gone_does_not_bring_it_back(delayq: Broker, viewer: Client) -> None:
    gone = {"slot": 0, "queue": "gone", "id": "a", "task": "t", "started_ms": 1, "ids": 1}
    delayq.announce("w@host:1", {"host": "host", "threads": 1, "running": 1, "jobs": [gone]})
    assert viewer.get(DATA).json()["workers"][0]["jobs"][0]["lease_ms"] is None
    assert delayq.queue_names() == []


def test_what_no_text_is_in_an_announcement_breaks_no_page(delayq: Broker, client: Client, staff: Any) -> None:
    client.force_login(staff(superuser=True))
    Yard(delayq)
    runs = {"slot": 0, "queue": "orders", "id": "a\ud800b", "task": "t\udfff", "started_ms": 1, "ids": 3}
    delayq.announce("w@host:1", {"host": "h\udc80", "queues": ["orders", "\ud800"], "threads": 2, "jobs": [runs]})
    pages = [client.get(address) for address in (PAGE, DATA, f"{DATA}?all=1", QUEUES, f"{QUEUES}orders/change/")]
    assert [page.status_code for page in pages] == [200] * 5
    assert b"a?b +2</a>" in pages[0].content
    assert pages[1].json()["workers"][0]["jobs"][0]["id"] == "a?b"


def test_the_outbox_is_shown_when_there_is_something_in_it(delayq: Broker, viewer: Client) -> None:
    assert viewer.get(DATA, {"all": "1"}).json()["outbox"] == []
    record = pack_job(NewJob("a", "t"))
    OutboxJob(queue="orders", job_id="a", task="t", key=uuid.uuid4(), due_ms=5, record=record).save()
    assert viewer.get(DATA, {"all": "1"}).json()["outbox"][0][0] == "To be sent"
    assert b"Durable jobs in the database" in viewer.get(PAGE).content


def test_warnings_say_what_to_do() -> None:
    def said(**redis: Any) -> list[str]:
        return warnings_of(Snapshot(0.0, redis=RedisStatus(**{"aof": True, "maxmemory_policy": "noeviction", **redis})))

    assert said() == []
    assert "appendonly yes" in said(aof=False)[0]
    assert "is its disk full?" in said(aof_ok=False)[0]
    assert "noeviction" in said(maxmemory_policy="allkeys-lru")[0]
    assert said(maxmemory=1000, used_memory=950) == [
        "95 % of Redis's memory limit is used: new jobs are refused when it is full."
    ]
    assert "replica" in said(role="replica")[0]
    assert "loading" in said(loading=True)[0]


def test_a_warning_says_why_jobs_wait_for_quarantine() -> None:
    queues = tuple(
        QueueStatus(name, "python", Counts(name, quarantine=number), 1, 0)
        for name, number in (("mail", 0), ("orders", 1))
    )
    redis = RedisStatus(aof=True, maxmemory_policy="noeviction")
    assert warnings_of(Snapshot(0.0, queues, redis=redis)) == [
        "1 job waits to run alone in a process, because its process died under it (orders)."
    ]


def test_the_shards_of_an_old_epoch_are_told_apart(delayq: Broker, viewer: Client) -> None:
    Yard(delayq).put("a", delay_ms=60_000)
    delayq.reshard("orders", 2)
    page = viewer.get(PAGE, {"heat": "delayed"}).content
    assert sorted(cells(page, "dq-heat")) == [["orders, epoch 0", "1"], ["orders, epoch 1", "0", "0"]]


def test_colours_grow_with_the_numbers() -> None:
    assert [level(n, 500_000) for n in (0, 1, 5, 10_000, 250_000, 500_000)] == [0, 1, 1, 2, 6, 8]
    assert level(3, 3) == 8


# -- many --------------------------------------------------------------------------------------------------------------


def many(broker: Broker, queues: int, shards: int = 1) -> None:
    """Queues, without a call for each."""
    layout = encode(new_layout(shards, "python"))
    broker.client.hset(broker.queues_key, mapping={f"q{number:04}": layout for number in range(queues)})


def shown(client: Client, **asked: str) -> list[str]:
    return [one["name"] for one in client.get(DATA, asked).json()["queues"]]


def test_of_a_thousand_queues_those_that_lag_most_come_first(delayq: Broker, viewer: Client) -> None:
    many(delayq, 1_000)
    now_ms = int(delayq.now_ms())
    for name, late_s in (("q0500", 50), ("q0900", 90), ("q0100", 10)):
        Yard(delayq, name).put("late", due_ms=now_ms - late_s * 1000, delay_ms=None)
    Yard(delayq, "q0700").put("later", delay_ms=60_000)
    found = shown(viewer)
    assert found[:5] == ["q0900", "q0500", "q0100", "q0700", "q0000"]
    assert len(found) == MOST_QUEUES
    said = plain(viewer.get(DATA).json()["queues_said"])
    assert said == "100 of 1000; type a part of a name to find others"
    assert shown(viewer, q="Q099") == [f"q099{digit}" for digit in range(10)]
    assert viewer.get(DATA, {"q": "q099"}).json()["totals"]["ready"] == 3, "totals are of all"
    assert shown(viewer, q="nobody") == []
    delayq.client.delete(delayq.queues_key)  # the check of 1,000 queues afterwards would take long


def test_queues_are_sorted_by_any_column(delayq: Broker, viewer: Client) -> None:
    for name, number in (("a", 2), ("b", 3), ("c", 1)):
        yard = Yard(delayq, name)
        for place in range(number):
            yard.put(f"{place}", delay_ms=60_000)
    settle(Yard(delayq, "c"), [])
    assert shown(viewer, sort="delayed", down="1") == ["b", "a", "c"]
    assert shown(viewer, sort="delayed", down="0") == ["c", "a", "b"]
    assert shown(viewer, sort="name") == ["a", "b", "c"]
    assert shown(viewer, sort="name", down="1") == ["c", "b", "a"]
    assert shown(viewer, sort="nonsense", span="year", heat="cold") == ["b", "a", "c"]
    page = viewer.get(PAGE, {"sort": "delayed", "down": "1"}).content.decode()
    assert 'aria-sort="descending"><a href="?sort=delayed&amp;down=0"' in page


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One element for each time that this thread sends something to Redis."""
    sent: list[int] = []
    original = redis.connection.AbstractConnection.send_packed_command
    here = threading.get_ident()

    def counted(self: Any, command: Any, check_health: bool = True) -> None:
        if threading.get_ident() == here:
            sent.append(1)
        original(self, command, check_health=check_health)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counted)
    return sent


@pytest.mark.one_server("counts round trips")
def test_a_page_costs_no_more_than_ten_calls_and_that_is_so_for_many_queues(
    delayq: Broker, viewer: Client, trips: list[int]
) -> None:
    yard = Yard(delayq)
    for number in range(20):
        yard.put(f"a{number}", delay_ms=1_000 * number)
    yard.put("now")
    say(delayq, "w@host:1", yard.take()[:3])
    for _ in range(2):
        viewer.get(PAGE)  # the scripts are known from here on, and each line is made

    def price(address: str) -> int:
        trips.clear()
        assert viewer.get(address).status_code == 200
        return len(trips)

    few = [price(PAGE), price(DATA), price(f"{DATA}?all=1")]
    assert max(few) <= 6
    many(delayq, 300, shards=16)
    assert [price(PAGE), price(DATA), price(f"{DATA}?all=1")] == few
    delayq.client.delete(delayq.queues_key)


@pytest.mark.one_server("listens to one server")
def test_a_page_of_one_shard_sends_no_more_than_ten_commands(
    delayq: Broker, viewer: Client, redis_box: RedisBox
) -> None:
    yard = Yard(delayq)
    yard.put("now")
    say(delayq, "w@host:1", yard.take())
    viewer.get(PAGE)  # the scripts are known from here on
    sent = []
    with redis_box.client().monitor() as monitor:
        viewer.get(PAGE)
        delayq.client.echo("that was it")
        for said in monitor.listen():
            if "that was it" in said["command"]:
                break
            if said["client_type"] != "lua":  # what a script reads is no call of ours
                sent.append(said["command"].split()[0].upper())
    assert len(sent) <= 10, sent
    assert sent.count("EVALSHA") == 2, "the counts of the shard, and the lease of its job"


# -- looks -------------------------------------------------------------------------------------------------------------


def test_a_look_is_shared_by_those_who_ask_at_the_same_moment(
    delayq: Broker, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_snapshots, "SHARED", 60.0)
    yard = Yard(delayq)
    first = viewer.get(PAGE).content
    yard.put("a")
    assert viewer.get(DATA).json()["totals"]["ready"] == 0
    assert tiles(viewer.get(PAGE).content)["ready"] == tiles(first)["ready"] == "0"
    monkeypatch.setattr(dashboard_snapshots, "SHARED", 0.0)
    assert viewer.get(DATA).json()["totals"]["ready"] == 1


def test_many_threads_are_answered_by_one_look(delayq: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_snapshots, "SHARED", 60.0)
    broker, found = connections.broker(), []
    gate = threading.Barrier(8)

    def ask() -> None:
        gate.wait(10)
        found.append(LOOKS.look(broker))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 8
    assert len({id(look) for look in found}) == 1


def test_the_next_look_waits_a_hundred_times_as_long_as_this_one_took(delayq: Broker, viewer: Client) -> None:
    assert DashboardSnapshot(Snapshot(0.0), "", {}, cost_ms=3.0).next_ms == 1_000
    assert DashboardSnapshot(Snapshot(0.0), "", {}, cost_ms=250.0).next_ms == 25_000
    said = viewer.get(DATA).json()
    assert said["next_ms"] >= max(1_000, 99 * said["cost_ms"])


def test_redis_is_gone_is_said_kindly_and_in_the_place_of_the_numbers(
    delayq: Broker, viewer: Client, settings: Any
) -> None:
    connections.close_broker()
    here = settings.DELAYQ
    settings.DELAYQ = {**here, "REDIS": "redis://127.0.0.1:1/0"}
    page, data = viewer.get(PAGE), viewer.get(DATA)
    assert (page.status_code, page["Retry-After"], data.status_code) == (503, "5", 503)
    tags_of(page.content)
    assert b"Redis cannot be reached just now." in page.content
    assert data.json()["error"]
    connections.close_broker()
    settings.DELAYQ = here
    assert viewer.get(PAGE).status_code == 200


@pytest.mark.broken_on_purpose
@pytest.mark.one_server("stops one server")
def test_a_redis_that_stands_still_holds_no_request_for_long(
    delayq: Broker,
    viewer: Client,
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
    assert viewer.get(PAGE).status_code == 200
    box.pause()
    for address in (PAGE, DATA, f"{DATA}?all=1"):
        began = time.monotonic()
        assert viewer.get(address).status_code == 503
        assert time.monotonic() - began < 0.3 * 8, "a few answers waited for, and a line that was made anew"


# -- who may ----------------------------------------------------------------------------------------------------------


def test_only_those_who_may_see_it_do(delayq: Broker, client: Client, staff: Callable[..., Any]) -> None:
    assert client.get(PAGE).status_code == client.get(DATA).status_code == 302
    client.force_login(staff("view_queueentry", "view_livejob", "pause_queueentry"))
    assert client.get(PAGE).status_code == client.get(DATA).status_code == 403
    assert b"dashboard/" not in client.get("/admin/").content


def test_it_is_linked_from_the_index_and_asks_nothing_but_get(delayq: Broker, viewer: Client) -> None:
    assert b'href="/admin/django_delayq/dashboard/"' in viewer.get("/admin/").content
    assert viewer.post(PAGE).status_code == viewer.post(DATA).status_code == 405


def test_who_may_not_pause_has_no_button_and_is_refused(delayq: Broker, viewer: Client) -> None:
    every_place(delayq)
    page = viewer.get(PAGE).content
    assert b"data-pause " not in page
    assert b"/pause/" not in page
    assert b"livejob" not in page, "nor links to pages that would refuse"
    assert viewer.post(f"{QUEUES}orders/pause/", {"direction": "out"}).status_code == 403
    assert orders_of(delayq.queue("orders").layout)["paused"] == ""


def test_who_may_not_see_jobs_is_not_told_their_ids(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    yard.put("ada@example.org")
    say(delayq, "w@host:1", yard.take())
    (job,) = viewer.get(DATA).json()["workers"][0]["jobs"]
    assert (job["id"], job["task"], job["lease_ms"] > 0) == ("", "shop.cancel_order", True)
    assert b"ada@example.org" not in viewer.get(PAGE).content


def test_the_buttons_work_as_forms(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    page = operator.get(PAGE).content
    assert b'action="/admin/django_delayq/queueentry/orders/pause/"' in page
    operator.post(f"{QUEUES}orders/pause/", {"direction": "out"})
    page = operator.get(PAGE).content
    assert b'action="/admin/django_delayq/queueentry/orders/resume/"' in page
    assert b"paused for workers" in page


def test_nothing_that_is_stored_becomes_html(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq, worker=EVIL)
    yard.put(f"a{EVIL}", task=EVIL)
    (job,) = yard.take()
    runs = {"slot": 0, "queue": "orders", "id": job.id, "task": EVIL, "started_ms": 1}
    delayq.announce(EVIL, {"host": EVIL, "pid": 1, "queues": [EVIL], "threads": 1, "running": 1, "jobs": [runs]})
    page = operator.get(PAGE, {"q": EVIL, "sort": EVIL})
    tags_of(page.content)
    assert b"<script>evil" not in page.content
    page = operator.get(PAGE)
    assert b"&lt;script&gt;evil" in page.content
    tags_of(page.content)
