"""The job browser: what lies where, page by page, and how it is found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from django_delayq.admin import browse, jobs
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.outcomes import fail
from tests.admin.support import Yard, cells, every_place
from tests.support.round_trips import round_trips

pytestmark = pytest.mark.django_db

LIST = "/admin/django_delayq/livejob/"


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may only look."""
    client.force_login(staff("view_livejob"))
    return client


def ids(client: Client, **asked: Any) -> list[str]:
    answer = client.get(LIST, asked)
    assert answer.status_code == 200
    return [row[0] for row in cells(answer.content)]


def every_page(client: Client, **asked: Any) -> list[list[str]]:
    pages, url = [], ""
    answer = client.get(LIST, asked)
    while True:
        pages.append([row[0] for row in cells(answer.content)])
        url = answer.context["next_url"]
        if not url:
            return pages
        answer = client.get(LIST + url)


def test_each_place_lists_its_jobs(delayq: Broker, viewer: Client) -> None:
    every_place(delayq)
    assert {place: ids(viewer, place=place) for place in browse.PLACES} == {
        "waiting": ["ready", "failed", "delayed"],
        "reserved": ["gated", "reserved"],
        "gated": ["gated"],
    }
    shown = viewer.get(LIST).context
    assert {place: number for place, _, number, _ in shown["tabs"]} == {"waiting": "3", "reserved": "2", "gated": "1"}
    assert [number for _, number, _ in shown["others"]] == ["1", "1"], "failed jobs and the morgue have their own lists"


def test_a_row_says_in_words_how_the_job_is(delayq: Broker, viewer: Client) -> None:
    every_place(delayq)
    ready, failed, delayed = cells(viewer.get(LIST, {"queue": "orders"}).content)
    assert ready == ["ready", "shop.cancel_order", "ready", "now", "0", "order_id=1"]
    assert failed[:3] + failed[4:] == ["failed", "shop.cancel_order", "delayed", "1", "order_id=5"]
    assert delayed[3] in ("in 59 min 59 s", "in 1 h")
    reserved = cells(viewer.get(LIST, {"queue": "orders", "place": "reserved"}).content)[1]
    assert reserved[:3] == ["reserved", "shop.cancel_order", "w@host:1"]
    assert reserved[4] in ("in 15 s", "in 14 s")


def test_arguments_of_a_task_that_is_not_known_here_are_numbered(delayq: Broker, viewer: Client) -> None:
    Yard(delayq).put("other", 7, [8], task="elsewhere.work")
    assert cells(viewer.get(LIST, {"queue": "orders"}).content)[0][-1] == "#1=7, #2=[8]"


def test_pages_go_on_behind_the_last_job_seen(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq, shards=3)
    for number in range(7):
        yard.put(f"job-{number}", delay_ms=1_000_000 + number * 1_000)
    assert every_page(viewer, queue="orders", limit=3) == [
        ["job-0", "job-1", "job-2"],
        ["job-3", "job-4", "job-5"],
        ["job-6"],
    ]
    assert every_page(viewer, queue="orders", limit=4, reverse=1)[1] == ["job-2", "job-1", "job-0"]


def test_pages_over_all_queues_go_from_queue_to_queue(delayq: Broker, viewer: Client) -> None:
    for name in ("b", "a", "empty", "c"):
        for number in range(0 if name == "empty" else 3):
            Yard(delayq, name).put(f"{name}{number}", delay_ms=1_000_000 + number * 1_000)
    for limit in (1, 2, 3, 4, 20):
        pages = every_page(viewer, limit=limit)
        assert [*chain(*pages)] == ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]
        assert all(len(page) == limit for page in pages[:-1])


def test_what_is_gated_is_found_behind_many_runs_without_new_content(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    for number in range(60):
        yard.put(f"job-{number:02}")
    assert len(yard.take()) == 60
    for number in (3, 31, 57):
        yard.put(f"job-{number:02}", "again")
    assert sorted(chain(*every_page(viewer, place="gated", limit=20))) == ["job-03", "job-31", "job-57"]


def test_a_cursor_that_is_none_is_said_and_not_a_crash(delayq: Broker, viewer: Client) -> None:
    every_place(delayq)
    answer = viewer.get(LIST, {"queue": "orders", "cursor": "orders:nonsense!"})
    assert answer.status_code == 200
    assert "is not a cursor" in answer.content.decode()


def test_nonsense_in_the_address_is_left_out(delayq: Broker, viewer: Client) -> None:
    every_place(delayq)
    asked: list[dict[str, str]] = [
        *({"place": "nowhere"}, {"failures": "x"}, {"limit": "-4"}, {"limit": "9" * 30}, {"queue": "no-such-queue"}),
        *({"reverse": "x"}, {"cursor": ":"}, {"queue": "x\0y"}, {"q": "\0"}),
        *({"due_from": "soon"}, {"text": "a\0"}, {"id_from": "c", "id_to": "a"}),
    ]
    answers = [(one, viewer.get(LIST, one).status_code) for one in asked]
    assert answers == [(one, 200) for one in asked]


def test_a_search_finds_ids_texts_workers_and_errors(delayq: Broker, viewer: Client) -> None:
    yard = every_place(delayq)
    yard.put("order-77", {"note": "Fragile"}, context={"trace": "tr-9"})
    Yard(delayq, "crm").add("customer-5", {"name": "Ada"})
    found = {
        text: ids(viewer, q=text)
        for text in ("order-77", "fragile", "tr-9", "ada", "w@host", "LookupError", "nothing like this")
    }
    assert found == {
        "order-77": ["order-77"],
        "fragile": ["order-77"],
        "tr-9": ["order-77"],
        "ada": ["customer-5"],
        "w@host": ["gated", "reserved"],
        "LookupError": ["failed", "buried"],
        "nothing like this": [],
    }
    assert ids(viewer, q="ada", queue="orders") == []


def test_a_search_that_takes_too_long_ends_and_says_so(
    delayq: Broker, viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_place(delayq)
    monkeypatch.setattr(browse, "SEARCH_SECONDS", 0.0)
    counts = delayq.inspector.all_counts()
    looked = browse.search(delayq, browse.BrowseQuery({"q": "order"}), counts, seconds=0.0)
    assert looked.cut_off
    assert not looked.jobs
    monkeypatch.setattr(jobs, "search", lambda broker, query, counts: looked)
    assert "The search stopped" in viewer.get(LIST, {"q": "order"}).content.decode()


def test_a_search_lists_a_hundred_jobs_at_most(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    for number in range(105):
        yard.put(f"order-{number}")
    answer = viewer.get(LIST, {"q": "order"})
    assert len(cells(answer.content)) == 100
    assert "The search stopped" in answer.content.decode()


def test_a_late_job_is_marked(delayq: Broker, viewer: Client, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"late_after": 30.0}}
    now_ms = int(delayq.now_ms())
    Yard(delayq).put("early", due_ms=now_ms - 20_000, delay_ms=None)
    Yard(delayq).put("late", due_ms=now_ms - 40_000, delay_ms=None)
    due = {row[0]: row[4] for row in cells(viewer.get(LIST).content)}
    assert due == {"late": "40 s ago late", "early": "20 s ago"}


def test_the_page_costs_a_few_round_trips_however_many_queues_are_empty(delayq: Broker, viewer: Client) -> None:
    for number in range(40):
        delayq.queue(f"q{number}")
    Yard(delayq).put("one")
    calls: list[str] = []
    delayq.observe(lambda verb, seconds, failed: calls.append(verb))
    assert ids(viewer) == ["one"]
    delayq.observe(None)
    assert calls == ["stats", "read", "read"]  # counts, indexes and jobs go in a pipeline each


def test_a_search_asks_only_queues_and_places_that_hold_something(delayq: Broker, viewer: Client) -> None:
    for number in range(40):
        delayq.queue(f"q{number}", shards=3)
    Yard(delayq).put("one")
    calls: list[str] = []
    delayq.observe(lambda verb, seconds, failed: calls.append(verb))
    assert ids(viewer, q="one") == ["one"]
    assert ids(viewer, q="nothing") == []
    delayq.observe(None)
    assert len(calls) < 60


def test_of_large_arguments_a_list_says_how_large_they_are(delayq: Broker, viewer: Client) -> None:
    Yard(delayq).put("large", "x" * 50_000)
    assert cells(viewer.get(LIST).content)[0][-1] == "48.8 KB"


def test_a_damaged_error_has_its_pages_too(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    yard.put("deep")
    yard.queue.settle([fail(yard.take_one(), 1, 2, delay_ms=60_000, error_class="E", error=b"[" * 50_000)])
    for asked in ({}, {"q": "nothing"}, {"q": "deep"}):
        assert viewer.get(LIST, asked).status_code == 200
    assert viewer.get(f"{LIST}{quote('orders/deep')}/change/").status_code == 200


@pytest.mark.one_server("counts round trips")
def test_the_page_of_a_wide_queue_costs_no_round_trip_for_each_shard(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq, "wide", shards=1024)
    for number in range(3):
        yard.put(f"job-{number}", delay_ms=1_000_000 + number)
    assert ids(viewer, queue="wide") == ["job-0", "job-1", "job-2"]  # the scripts are known from here on
    with round_trips() as sent:
        assert ids(viewer, queue="wide") == ["job-0", "job-1", "job-2"]
    assert len(sent) <= 6, "the registry, the counts, the layout, the page, its jobs, the time"


def test_raw_bytes_of_a_pull_queue_are_shown_as_far_as_they_can_be(delayq: Broker, viewer: Client) -> None:
    pull = Yard(delayq, "pull")
    pull.put("json", raw=b'{"a": 1, "token": "t-1"}')
    pull.put("bytes", raw=b"\xff\xfe<b>")
    pull.put("none", raw=encode_args((), {}))
    content = {row[0]: row[-1] for row in cells(viewer.get(LIST, {"queue": "pull"}).content)}
    assert content["json"] == '{ "a": 1, "token": "••••••" }'
    assert "\\xff" in content["bytes"]
    assert content["none"] == ""
