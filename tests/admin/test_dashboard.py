"""Tests of the dashboard without a script, and of the parts that its script swaps."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client

from django_delayq.admin.dashboard import MOST_QUEUES
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.layouts import encode, new_layout
from django_delayq.models import OutboxJob
from django_delayq.outbox.rows import pack_job
from tests.admin.dashboards import lively, say, tiles
from tests.admin.support import Yard, cells, tags_of
from tests.support.round_trips import round_trips

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("unshared")]

PAGE = "/admin/django_delayq/dashboard/"
PARTS = f"{PAGE}parts/"
QUEUES = "/admin/django_delayq/queueentry/"
PLACES = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
#: parts that come with every tenth response only
EXPENSIVE = {"dq-charts", "dq-outbox"}


def names(response: Any) -> set[str]:
    """The ids of the parts that a response has."""
    return set(re.findall(r'id="([\w-]+)"(?: data-summary)? data-part', response.content.decode()))


def plain(text: str) -> str:
    return text.replace("\N{NARROW NO-BREAK SPACE}", "")


def places(counts: Any) -> list[int]:
    return [getattr(counts, place) for place in PLACES]


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_page_are_those_of_the_inspector(delayq: Broker, dashboard_user: Client) -> None:
    lively(delayq)
    page = dashboard_user.get(PAGE)
    assert page.status_code == 200
    tags_of(page.content)
    counts = delayq.inspector.all_counts()
    sums = {place: str(sum(getattr(one, place) for one in counts)) for place in PLACES}
    shown = tiles(page.content)
    assert {place: shown[place] for place in PLACES} == sums
    assert shown["busy"] == "5 / 12"
    rows = {row[0].split()[0]: row[1:7] for row in cells(page.content, "dq-queues") if row[0]}
    assert rows == {one.queue: [str(number) for number in places(one)] for one in counts}


def test_the_parts_for_the_script_are_those_of_the_page(delayq: Broker, onlooker: Client) -> None:
    lively(delayq)
    page, parts = onlooker.get(PAGE), onlooker.get(PARTS, {"all": "1"})
    tags_of(parts.content)
    assert names(parts) == names(page) - {"dq-live"}
    assert names(onlooker.get(PARTS)) == names(parts) - EXPENSIVE
    # A job may have crossed a minute in between.
    for table, columns in (("dq-queues", 7), ("dq-backlog-table", 1)):
        of_parts, of_page = ([row[:columns] for row in cells(one.content, table)] for one in (parts, page))
        assert of_parts == of_page
    first = {key: text for key, text in tiles(page.content).items() if key in PLACES}
    assert first.items() <= tiles(parts.content).items()
    assert b"<body" not in parts.content


def test_the_backlog_tells_in_which_minute_or_hour_a_job_falls_due(delayq: Broker, onlooker: Client) -> None:
    yard = Yard(delayq)
    for name, delay_s in (("a", 90), ("b", 100), ("c", 2 * 3600 + 90), ("d", 30 * 3600)):
        yard.put(name, delay_ms=delay_s * 1000)
    yard.put("due")

    def told(span: str, bars: int) -> tuple[str, dict[str, str]]:
        page = onlooker.get(PARTS, {"all": "1", "span": span}).content
        rows = cells(page, "dq-backlog-table")
        assert len(rows) == bars
        found = re.search(r'id="dq-backlog-summary"[^>]*>(.*?) · as of [\d:]{8}<', page.decode())
        assert found is not None
        return found[1], {when: count for when, count in rows if count != "0"}

    assert told("hour", 60) == ("due now 1 · in the next hour 2 · later 2", {"1–2 min": "2"})
    assert told("day", 24) == ("due now 1 · in the next day 3 · later 1", {"0–1 h": "2", "2–3 h": "1"})


def test_what_threads_run_is_shown_with_the_ends_of_their_leases(delayq: Broker, dashboard_user: Client) -> None:
    yard = Yard(delayq)
    yard.put("order_1/x")
    (job,) = yard.take()
    say(delayq, "w@host:1", [job])
    page = dashboard_user.get(PARTS).content.decode()
    assert 'href="/admin/django_delayq/livejob/orders_2Forder_5F1_2Fx/change/">order_1/x</a>' in page
    assert "shop.cancel_order" in page
    found = re.search(r"lease: ([\d.]+) s<", page)
    view = delayq.inspector.get("orders", "order_1/x")
    assert found is not None and view is not None and view.deadline_ms is not None
    assert -0.05 <= float(found[1]) - (view.deadline_ms - delayq.now_ms()) / 1000 < 5, "in tenths of a second"


def test_a_worker_that_speaks_of_a_queue_that_is_gone_does_not_bring_it_back(delayq: Broker, onlooker: Client) -> None:
    gone = {"slot": 0, "queue": "gone", "id": "a", "task": "t", "started_ms": 1, "ids": 1}
    delayq.announce("w@host:1", {"host": "host", "threads": 1, "running": 1, "jobs": [gone]})
    page = onlooker.get(PARTS).content
    assert b'class="dq-task">t<' in page
    assert b"lease: " not in page
    assert delayq.queue_names() == []


def test_what_no_text_is_in_an_announcement_breaks_no_page(delayq: Broker, client: Client, staff: Any) -> None:
    client.force_login(staff(superuser=True))
    Yard(delayq)
    runs = {"slot": 0, "queue": "orders", "id": "a\ud800b", "task": "t\udfff", "started_ms": 1, "ids": 3}
    delayq.announce("w@host:1", {"host": "h\udc80", "queues": ["orders", "\ud800"], "threads": 2, "jobs": [runs]})
    pages = [client.get(address) for address in (PAGE, PARTS, f"{PARTS}?all=1", QUEUES, f"{QUEUES}orders/change/")]
    assert [page.status_code for page in pages] == [200] * 5
    assert all(b"a?b +2</a>" in page.content for page in pages[:3])


def test_the_outbox_is_shown_when_there_is_something_in_it(delayq: Broker, onlooker: Client) -> None:
    assert b'id="dq-outbox" data-part hidden' in onlooker.get(PARTS, {"all": "1"}).content
    record = pack_job(NewJob("a", "t"))
    OutboxJob(queue="orders", job_id="a", task="t", key=uuid.uuid4(), due_ms=5, record=record).save()
    for page in (onlooker.get(PARTS, {"all": "1"}), onlooker.get(PAGE)):
        assert b'id="dq-outbox" data-part>' in page.content
        assert b"<dt>To be sent</dt>" in page.content


def test_the_page_says_what_is_wrong(delayq: Broker, onlooker: Client) -> None:
    delayq.queue("orders").schedule(NewJob("a", "t"))
    delayq.queue("orders").reserve(0, 1, worker="w")
    for page in (onlooker.get(PARTS), onlooker.get(PAGE)):
        assert "<li>1 job" in page.content.decode() and "no dispatcher is running" in page.content.decode()


# -- many --------------------------------------------------------------------------------------------------------------


def many(broker: Broker, queues: int, shards: int = 1) -> None:
    """Queues, without a call for each."""
    layout = encode(new_layout(shards, "python"))
    broker.client.hset(broker.queues_key, mapping={f"q{number:04}": layout for number in range(queues)})


def shown(client: Client, **asked: str) -> list[str]:
    return [row[0].split()[0] for row in cells(client.get(PARTS, asked).content, "dq-queues") if row[0]]


def test_of_a_thousand_queues_those_that_lag_most_come_first(delayq: Broker, onlooker: Client) -> None:
    many(delayq, 1_000)
    now_ms = int(delayq.now_ms())
    for name, late_s in (("q0500", 50), ("q0900", 90), ("q0100", 10)):
        Yard(delayq, name).put("late", due_ms=now_ms - late_s * 1000, delay_ms=None)
    Yard(delayq, "q0700").put("later", delay_ms=60_000)
    found = shown(onlooker)
    assert found[0] == "q0900", "it is late"
    assert {"q0500", "q0100", "q0700"} < set(found) and found[1:] == sorted(found[1:])
    assert len(found) == MOST_QUEUES
    page = plain(onlooker.get(PARTS).content.decode())
    assert ">100 of 1000; type a part of a name to find others<" in page
    assert shown(onlooker, q="Q099") == [f"q099{digit}" for digit in range(10)]
    assert tiles(onlooker.get(PARTS, {"q": "q099"}).content)["ready"] == "3", "totals are of all"
    assert shown(onlooker, q="nobody") == []
    delayq.client.delete(delayq.queues_key)  # the check of 1,000 queues afterwards would take long


@pytest.mark.one_server("counts round trips")
def test_a_page_costs_no_more_than_ten_calls_and_that_is_so_for_many_queues(delayq: Broker, onlooker: Client) -> None:
    yard = Yard(delayq)
    for number in range(20):
        yard.put(f"a{number}", delay_ms=1_000 * number)
    yard.put("now")
    say(delayq, "w@host:1", yard.take()[:3])
    for _ in range(2):
        onlooker.get(PAGE)  # the scripts are known from here on, and each line is made

    def price(address: str) -> int:
        with round_trips() as sent:
            assert onlooker.get(address).status_code == 200
        return len(sent)

    def prices() -> list[int]:
        while True:  # in each minute a new sample of the depths is read, when it is ten seconds old
            price(f"{PARTS}?all=1")
            minute = (delayq.now_ms() - 10_000) // 60_000
            found = [price(PAGE), price(PARTS), price(f"{PARTS}?all=1")]
            if (delayq.now_ms() - 10_000) // 60_000 == minute:
                return found

    few = prices()
    assert max(few) <= 6
    many(delayq, 300, shards=16)
    assert prices() == few
    delayq.client.delete(delayq.queues_key)
