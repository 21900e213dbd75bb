"""Commands to workers from the admin: stop, drain, dump."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client

from django_delayq.core.broker import Broker
from tests.admin.support import Yard, tags_of

pytestmark = pytest.mark.django_db

LIST = "/admin/django_delayq/queueentry/"
DASHBOARD = "/admin/django_delayq/dashboard/"
NAME = "host.example:4711/shop"


def address(word: str, worker: str = NAME) -> str:
    return f"{LIST}workers/{quote(worker)}/{word}/"


@pytest.fixture
def operator(client: Client, staff: Callable[..., Any]) -> Client:
    verbs = ("view_queueentry", "stop_queueentry", "dump_queueentry", "view_dashboard")
    client.force_login(staff(*verbs))
    return client


@pytest.fixture
def worker(delayq: Broker) -> Broker:
    delayq.announce(NAME, {"queues": ["orders"], "threads": 4, "running": 0, "host": "host.example", "pid": 4711})
    return delayq


def pending(broker: Broker) -> set[str]:
    """Return the commands that the worker gets with its next announcement."""
    return set(broker.announce(NAME, {"queues": ["orders"]}).commands)


@pytest.mark.parametrize("word", ["stop", "drain"])
def test_a_worker_is_told_after_a_confirmation(worker: Broker, operator: Client, word: str) -> None:
    page = operator.get(address(word))
    tags_of(page.content)
    assert NAME in html.unescape(page.content.decode())
    assert pending(worker) == set()
    answer = operator.post(address(word), follow=True)
    assert [str(message) for message in answer.context["messages"]] == [
        "The command was sent. The worker receives it with its next heartbeat."
    ]
    assert pending(worker) == {word}
    assert LogEntry.objects.get().change_message == f"worker: {word}"


def test_stacks_are_requested_and_shown(worker: Broker, operator: Client) -> None:
    assert "There are no stacks" in operator.get(address("dump")).content.decode()
    assert pending(worker) == set()
    operator.post(address("dump"))
    assert pending(worker) == {"dump"}
    worker.keep_dump(NAME, 'File "<x>", line 1', worker.now_ms())
    page = operator.get(address("dump")).content
    tags_of(page)
    assert "File &quot;&lt;x&gt;&quot;, line 1" in page.decode()


@pytest.mark.parametrize("word", ["stop", "drain", "dump"])
def test_an_unknown_worker_is_not_found(delayq: Broker, operator: Client, word: str) -> None:
    assert operator.get(address(word, "nobody")).status_code == 404
    assert operator.post(address(word, "nobody")).status_code == 404


@pytest.mark.parametrize(
    ("permissions", "words"),
    [
        ((), []),
        (("stop_queueentry",), ["stop", "drain"]),
        (("dump_queueentry",), ["dump"]),
        (("stop_queueentry", "dump_queueentry"), ["stop", "drain", "dump"]),
    ],
)
def test_the_pages_offer_what_is_permitted(
    worker: Broker, client: Client, staff: Callable[..., Any], permissions: tuple[str, ...], words: list[str]
) -> None:
    Yard(worker).put("one")
    client.force_login(staff("view_queueentry", "view_dashboard", *permissions))
    for page in (LIST, f"{LIST}orders/change/", DASHBOARD):
        text = client.get(page).content.decode()
        assert [word for word in ("stop", "drain", "dump") if f'"{address(word)}"' in text] == words, page


def test_the_dashboard_alone_offers_no_commands(worker: Broker, client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff("view_dashboard", "stop_queueentry", "dump_queueentry"))
    assert "/workers/" not in client.get(DASHBOARD).content.decode()
