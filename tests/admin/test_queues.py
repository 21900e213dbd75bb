"""The queue pages: numbers, workers, and what the buttons do to a whole queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.admin import queues
from django_delayq.core.broker import Broker
from django_delayq.core.layouts import queue_policy
from django_delayq.core.outcomes import ack
from tests.admin.queue_pages import LIST, press
from tests.admin.support import Yard, cells, every_place, tags_of

pytestmark = pytest.mark.django_db


def counts(broker: Broker, queue: str = "orders") -> dict[str, int]:
    found = broker.inspector.counts(queue)
    return {place: getattr(found, place) for place in ("delayed", "ready", "reserved", "gated", "failed", "morgue")}


def paused(broker: Broker, queue: str = "orders") -> str:
    found: str = queue_policy(broker.queue(queue).layout)["paused"]
    return found


def test_the_list_has_the_numbers_of_every_queue(delayq: Broker, manager: Client) -> None:
    manager.get(LIST)  # the first request of a process takes long; a lag of a second would be shown
    yard = every_place(delayq)
    yard.put("done")
    yard.queue.settle([ack(job, 1, 2) for job in yard.take() if job.id == "done"])
    Yard(delayq, "crm", shards=3).add("customer-1", {})
    rows = {row[0].split()[0]: row[1:] for row in cells(manager.get(LIST).content)}
    assert rows == {
        "crm": ["0", "1", "0", "0", "0", "0", "–", "1", "0", "0", "3"],
        "orders": ["2", "0", "3", "1", "1", "1", "–", "8", "1", "2", "1"],
    }


def test_the_lag_of_a_queue_is_marked(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("old", due_ms=int(delayq.now_ms()) - 125_000, delay_ms=None)
    assert cells(manager.get(LIST).content)[0][7] == "2 min 5 s"


def test_the_page_of_a_queue_has_the_lag_of_each_priority(delayq: Broker, manager: Client) -> None:
    yard, now_ms = Yard(delayq), int(delayq.now_ms())
    yard.put("patient", due_ms=now_ms - 725_000, delay_ms=None, priority=7)
    page = " ".join(manager.get(f"{LIST}orders/change/").content.decode().split())
    assert "Lag by priority" not in page, "it has used one only"
    yard.put("urgent", due_ms=now_ms + 60_000, delay_ms=None, priority=0)
    page = " ".join(manager.get(f"{LIST}orders/change/").content.decode().split())
    assert 'Lag by priority</dt><dd>0: <span>0 s</span>, 7: <span class="dq-pill dq-late">12 min' in page


def test_pauses_and_limits_are_named(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    delayq.pause("orders", "out")
    delayq.limit("orders", max_length=50, morgue_ttl=86_400, priorities="weighted")
    assert cells(manager.get(LIST).content)[0][0] == (
        "orders paused for workers python, Maximum of live jobs: 50, Kept in the morgue for: 1 d, Priorities: weighted"
    )


def test_without_queues_the_page_says_so(delayq: Broker, manager: Client) -> None:
    page = manager.get(LIST).content.decode()
    assert "No queue yet" in page
    assert "No worker is running" in page


def test_workers_are_listed_with_what_they_last_said(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    delayq.announce("w1", {"host": "h1", "queues": ["orders"], "threads": 4, "running": 2, "dispatcher": True})
    delayq.announce("w2", {"host": "h2", "queues": ["crm"], "threads": 8, "running": 0, "stopping": True})
    delayq.announce("w3", {"host": "h2", "queues": ["crm"], "threads": 1, "running": 1, "quarantine": True})
    assert cells(manager.get(LIST).content, "dq-workers") == [
        ["w1", "h1", "2 of 4 dispatcher", "now"],
        ["w2", "h2", "0 of 8 stopping", "now"],
        ["w3", "h2", "1 of 1 quarantine", "now"],
    ]
    assert [row[0] for row in cells(manager.get(f"{LIST}orders/change/").content, "dq-workers")] == ["w1"]


def test_the_page_of_a_queue_shows_its_shards(delayq: Broker, manager: Client) -> None:
    yard = Yard(delayq, shards=2)
    for number in range(10):
        yard.put(f"job-{number}")
    delayq.reshard("orders", 3)
    answer = manager.get(f"{LIST}orders/change/")
    tags_of(answer.content)
    rows = cells(answer.content, "dq-shards")
    assert [row[:2] for row in rows] == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"], ["1", "2"]]
    assert sum(int(row[3]) for row in rows) == 10
    assert "epoch 0 with 2 shards is being drained" in answer.content.decode()


def test_a_queue_of_many_shards_costs_no_round_trip_for_each(delayq: Broker, manager: Client) -> None:
    delayq.queue("wide", shards=200)
    calls: list[str] = []
    delayq.observe(lambda verb, seconds, failed: calls.append(verb))
    answer = manager.get(f"{LIST}wide/change/")
    delayq.observe(None)
    assert len(answer.context["shards"]) == queues.MOST_SHARDS
    # of the queue, of the shards that are shown, and of the limits: one pipeline each
    assert calls == ["stats", "stats", "waiting", "limit"]


@pytest.mark.parametrize(
    ("direction", "words"),
    [
        ("in", "Paused for new jobs"),
        ("out", "Paused for workers"),
        ("both", "Paused: new jobs are refused"),
    ],
)
def test_a_queue_is_paused_and_resumed(delayq: Broker, manager: Client, direction: str, words: str) -> None:
    every_place(delayq)
    (said,) = press(manager, "pause", direction=direction)
    assert said.startswith(words)
    assert paused(delayq) == direction
    assert press(manager, "resume") == ["The queue is no longer paused."]
    assert paused(delayq) == ""


def test_what_is_paused_already_is_not_offered_again(delayq: Broker, manager: Client) -> None:
    every_place(delayq)
    words = ("Resume", "Pause workers", "Pause new jobs", "Pause both")

    def offered() -> list[str]:
        page = manager.get(f"{LIST}orders/change/").content.decode()
        return [word for word in words if f'"{word}"' in page or f">{word}<" in page]

    seen = [offered()]
    for direction in ("out", "in"):
        delayq.pause("orders", direction)
        seen.append(offered())
    assert seen == [
        ["Pause workers", "Pause new jobs", "Pause both"],
        ["Resume", "Pause new jobs", "Pause both"],
        ["Resume"],
    ]


def test_a_pause_of_nothing_is_refused(delayq: Broker, manager: Client) -> None:
    every_place(delayq)
    assert press(manager, "pause", direction="sideways") == ["Nothing was paused. Choose new jobs, workers or both."]
    assert paused(delayq) == ""


def test_run_all_asks_and_then_makes_all_due(delayq: Broker, manager: Client) -> None:
    every_place(delayq)
    page = manager.get(f"{LIST}orders/run/").content.decode()
    assert "Make all 2 delayed jobs of orders due now?" in page
    assert counts(delayq)["delayed"] == 2
    assert press(manager, "run") == ["2 jobs are due now."]
    assert counts(delayq) == {"delayed": 0, "ready": 3, "reserved": 2, "gated": 1, "failed": 1, "morgue": 1}


def test_purge_needs_the_name_of_the_queue(delayq: Broker, manager: Client) -> None:
    every_place(delayq)
    before = counts(delayq)
    page = manager.get(f"{LIST}orders/purge/").content.decode()
    assert "Cancel all 3 waiting jobs of orders, for good?" in page
    assert "<code>delayq_jobs cancel --all</code>" in page
    for typed in ("", "order", "ORDERS"):
        answer = manager.post(f"{LIST}orders/purge/", {"typed": typed, "morgue": "on"})
        assert answer.status_code == 200
        assert "errorlist" in answer.content.decode()
        tags_of(answer.content)
    assert counts(delayq) == before


@pytest.mark.parametrize("morgue", [False, True])
def test_purge_cancels_what_waits_and_the_morgue_if_wanted(delayq: Broker, manager: Client, morgue: bool) -> None:
    every_place(delayq)
    said = press(manager, "purge", typed="orders", **({"morgue": "on"} if morgue else {}))
    thrown = " 1 job in the morgue was discarded." if morgue else ""
    assert said == [f"3 waiting jobs were cancelled.{thrown}"]
    assert counts(delayq) == {"delayed": 0, "ready": 0, "reserved": 2, "gated": 1, "failed": 0, "morgue": 1 - morgue}


def test_a_purge_that_takes_too_long_stops_and_says_how_far_it_came(
    delayq: Broker, manager: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard = Yard(delayq)
    for number in range(600):
        yard.put(f"job-{number}", delay_ms=60_000)
    monkeypatch.setattr(queues, "LONGEST_SWEEP", 0.0)
    assert press(manager, "purge", typed="orders", morgue="on") == [
        "Stopped after 0 s: 250 of 600 jobs were processed. Repeat the action to continue."
    ]
    assert counts(delayq)["delayed"] == 350
    monkeypatch.undo()
    assert press(manager, "purge", typed="orders") == ["350 waiting jobs were cancelled."]


def test_who_did_what_to_a_queue_is_in_the_history(delayq: Broker, manager: Client) -> None:
    every_place(delayq)
    press(manager, "pause", direction="in")
    press(manager, "resume")
    press(manager, "run")
    press(manager, "purge", typed="orders")
    told = [(entry.object_id, entry.change_message) for entry in LogEntry.objects.order_by("pk")]
    assert told == [
        ("orders", "pause in"),
        ("orders", "resume"),
        ("orders", "run all now: {'moved': 2}"),
        ("orders", "purge: {'cancelled': 3}"),
    ]


@pytest.mark.parametrize("address", ["queueentry/orders/", "livejob/orders:a_2Fb/"])
def test_the_address_of_an_object_leads_to_its_page(
    delayq: Broker, client: Client, staff: Callable[..., Any], address: str
) -> None:
    base = "/admin/django_delayq/"
    assert client.get(f"{base}{address}").headers["Location"].startswith("/admin/login/")
    client.force_login(staff("view_queueentry", "view_livejob"))
    answer = client.get(f"{base}{address}")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"{base}{address}change/".replace(":", "_3A"))
    client.force_login(staff())
    assert client.get(f"{base}{address}").status_code == 403


# -- switches of operators ---------------------------------------------------------------------------------------------


def test_the_buttons_of_a_queue_let_workers_ignore_and_watch_it(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    delayq.announce("w1", {"queues": ["orders"], "threads": 2})
    delayq.announce("w2", {"queues": ["mail"], "threads": 2})
    page = manager.get(f"{LIST}orders/change/").content
    assert [row[0] for row in cells(page, "dq-workers")] == ["w1"]
    assert [row[0] for row in cells(page, "dq-workers-others")] == ["w2"]
    (said,) = press(manager, "worker", worker="w1", word="ignore")
    assert "next heartbeat" in said
    press(manager, "worker", worker="w2", word="watch")
    assert delayq.announce("w1", {}).choices == {"orders": "ignore"}
    assert delayq.announce("w2", {}).choices == {"orders": "watch"}
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"ignore by w1", "watch by w2"}
    for wrong in ({"worker": "gone", "word": "watch"}, {"worker": "w1", "word": "stop"}):
        assert press(manager, "worker", **wrong) == ["There is no such worker any more. Nothing was changed."]


def test_a_queue_is_paused_for_a_time_that_the_page_offers(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    before = delayq.now_ms()
    press(manager, "pause", direction="out", **{"for": "10m"})
    end = delayq.queue("orders").layout["paused"]["out"]
    assert 600_000 <= end - before < 660_000
    assert "paused for workers, ends at 20" in manager.get(f"{LIST}orders/change/").content.decode()
    assert LogEntry.objects.get().change_message == "pause out for 600 s"
    press(manager, "pause", direction="out", **{"for": "?"})
    assert delayq.queue("orders").layout["paused"] == {"out": 0}, "a pause without a known length has no end"


def test_one_button_pauses_all_producers(delayq: Broker, manager: Client) -> None:
    Yard(delayq).put("one")
    assert b"Pause all producers" in manager.get(LIST).content
    answer = manager.post(f"{LIST}pause_producers/", follow=True)
    assert b"No queue takes new jobs any more" in answer.content
    assert delayq.producers_paused_since() is not None
    assert b"Producers are paused" in manager.get(LIST).content
    manager.post(f"{LIST}resume_producers/")
    assert delayq.producers_paused_since() is None
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "pause all producers",
        "resume all producers",
    ]
