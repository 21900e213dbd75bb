"""Queues are created, limited, resharded and deleted in the admin."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.core.broker import Broker
from django_delayq.core.layouts import limits_in_force
from django_delayq.models import OutboxJob
from tests.admin.support import Yard, every_place, tags_of

pytestmark = pytest.mark.django_db

LIST = "/admin/django_delayq/queueentry/"
NEW = {"name": "mail", "kind": "python", "shards": "1", "priorities": "strict"}
NO_LIMITS = {"max_length": None, "morgue_max": None, "morgue_ttl": None, "priorities": "strict", "starve_after": None}


@pytest.fixture
def operator(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may do everything with queues."""
    verbs = ("view", "create", "limit", "reshard", "delete")
    client.force_login(staff(*(f"{verb}_queueentry" for verb in verbs)))
    return client


@pytest.fixture
def configured(settings: Any) -> None:
    """The settings name the queue "mail"."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"mail": {"max_length": 50, "shards": 2}}}


def press(client: Client, page: str, **said: Any) -> list[str]:
    """Return the messages after a form was sent; fails if the form was refused."""
    answer = client.post(f"{LIST}{page}/", said, follow=True)
    assert answer.redirect_chain, html.unescape(answer.content.decode())
    tags_of(answer.content)
    return [str(message) for message in answer.context["messages"]]


def refused(client: Client, page: str, **said: Any) -> str:
    """Return the page that comes back with errors."""
    answer = client.post(f"{LIST}{page}/", said)
    assert answer.status_code == 200
    tags_of(answer.content)
    return html.unescape(answer.content.decode())


def limits(broker: Broker, queue: str) -> dict[str, Any]:
    layout = broker.read_layout(queue)[1]
    assert layout is not None
    return limits_in_force(layout)


def test_t90_a_queue_is_created_with_its_kind_shards_and_limits(delayq: Broker, operator: Client) -> None:
    assert "Create a queue…" in operator.get(LIST).content.decode()
    said = {**NEW, "name": "images", "kind": "pull", "shards": "3", "max_length": "100", "morgue_ttl": "60.5"}
    assert press(operator, "create", **said) == ["The queue was created."]
    queue = delayq.known_queue("images")
    assert queue is not None
    assert (queue.kind, queue.shards) == ("pull", 3)
    assert limits(delayq, "images") == {**NO_LIMITS, "max_length": 100, "morgue_ttl": 60.5}
    assert LogEntry.objects.get().object_id == "images"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "1st"}, "queue name '1st' is not usable"),
        ({"name": ""}, "This field is required."),
        ({"name": "orders"}, "There is a queue of this name. Change that one, or take another name."),
        ({"shards": "1025"}, "less than or equal to 1024"),
        ({"kind": "other"}, "Select a valid choice."),
        ({"max_length": "0"}, "greater than or equal to 1"),
        ({"morgue_ttl": "nan"}, "Enter a number."),
        ({"starve_after": "0.5"}, "greater than or equal to 1"),
    ],
)
def test_a_queue_that_cannot_be_is_not_created(
    delayq: Broker, operator: Client, change: dict[str, str], error: str
) -> None:
    delayq.queue("orders")
    assert error in refused(operator, "create", **{**NEW, **change})
    assert delayq.queue_names() == ["orders"]


@pytest.mark.usefixtures("configured")
def test_a_queue_named_in_the_settings_is_created_as_they_say(delayq: Broker, operator: Client) -> None:
    assert press(operator, "create", **{**NEW, "shards": "5"}) == ["The queue was created as the settings say."]
    assert delayq.queue("mail").shards == 2
    assert limits(delayq, "mail") == {**NO_LIMITS, "max_length": 50}


def test_limits_are_changed_and_removed(delayq: Broker, operator: Client) -> None:
    delayq.queue("orders")
    delayq.limit("orders", max_length=10, morgue_max=7)
    assert 'value="10"' in operator.get(f"{LIST}orders/limit/").content.decode()
    said = {"max_length": "", "morgue_max": "8", "morgue_ttl": "3600", "priorities": "weighted", "starve_after": "90"}
    assert press(operator, "orders/limit", **said) == ["The limits were changed."]
    assert limits(delayq, "orders") == {
        "max_length": None,
        "morgue_max": 8,
        "morgue_ttl": 3600.0,
        "priorities": "weighted",
        "starve_after": 90.0,
    }
    assert "Due jobs starve after: 1 min 30 s" in operator.get(LIST).content.decode()


def test_limits_that_cannot_be_change_nothing(delayq: Broker, operator: Client) -> None:
    delayq.queue("orders")
    assert "greater than or equal to 1" in refused(operator, "orders/limit", max_length="-1", priorities="strict")
    assert "This field is required." in refused(operator, "orders/limit", max_length="5")
    assert limits(delayq, "orders") == NO_LIMITS


@pytest.mark.usefixtures("configured")
def test_limits_of_a_queue_that_the_settings_name_follow_the_settings(delayq: Broker, operator: Client) -> None:
    delayq.queue("mail")
    page = html.unescape(operator.get(f"{LIST}mail/limit/").content.decode())
    assert "its limits follow the settings" in page
    assert 'value="Change the limits"' not in page
    assert "its limits follow the settings" in refused(operator, "mail/limit", max_length="9", priorities="strict")
    assert limits(delayq, "mail")["max_length"] == 50


def test_the_number_of_shards_is_changed(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    assert "orders has 1 shard." in operator.get(f"{LIST}orders/reshard/").content.decode()
    assert press(operator, "orders/reshard", shards="4") == [
        "New jobs go to the new shards. Workers empty the old ones."
    ]
    queue = delayq.known_queue("orders")
    assert queue is not None
    assert queue.epochs == ((0, 1), (1, 4))
    for number in ("0", "1025", "x", ""):
        refused(operator, "orders/reshard", shards=number)


@pytest.mark.usefixtures("configured")
def test_a_number_of_shards_that_differs_from_the_settings_is_pointed_out(delayq: Broker, operator: Client) -> None:
    delayq.queue("mail")
    assert "name 2 shards: change the number there, too" in operator.get(f"{LIST}mail/reshard/").content.decode()
    assert press(operator, "mail/reshard", shards="3")[1:] == [
        "The settings, or a task, name 2 shards. Change the number there, too."
    ]


def test_an_empty_queue_is_deleted_after_its_name_was_typed(delayq: Broker, operator: Client) -> None:
    delayq.queue("orders")
    for typed in ("", "Orders", "mail"):
        assert "errorlist" in refused(operator, "orders/delete", typed=typed)
    assert delayq.queue_names() == ["orders"]
    assert press(operator, "orders/delete", typed="orders") == ["The queue orders was deleted."]
    assert delayq.queue_names() == []
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["delete"]


def test_a_queue_with_jobs_is_deleted_only_if_that_is_demanded(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    OutboxJob.objects.create(
        queue="orders", job_id="o", key="6f0dd3a2-0000-4000-8000-000000000001", due_ms=1, record=b""
    )
    page = refused(operator, "orders/delete", typed="orders")
    assert "queue 'orders' holds 5 jobs and 1 morgue records; empty it first, or delete it by ticking this box" in page
    assert delayq.queue_names() == ["orders"]
    assert OutboxJob.objects.count() == 1
    assert press(operator, "orders/delete", typed="orders", force="on") == ["The queue orders was deleted."]
    assert delayq.queue_names() == []
    assert OutboxJob.objects.count() == 0, "a row would create the queue again"


@pytest.mark.parametrize("verb", ["create", "limit", "reshard", "delete"])
def test_each_change_is_offered_to_whom_it_is_permitted(
    delayq: Broker, client: Client, staff: Callable[..., Any], verb: str
) -> None:
    Yard(delayq).put("one")
    client.force_login(staff("view_queueentry", f"{verb}_queueentry"))
    pages = client.get(LIST).content.decode() + client.get(f"{LIST}orders/change/").content.decode()
    offered = [one for one in ("create", "limit", "reshard", "delete") if f'{one}/"' in pages]
    assert offered == [verb]


def test_a_queue_that_is_not_there_is_neither_changed_nor_made(delayq: Broker, admin_client: Client) -> None:
    for verb in ("change", "run", "purge", "limit", "throttle", "reshard", "delete"):
        assert admin_client.get(f"{LIST}nowhere/{verb}/").status_code == 404, verb
    said = {"typed": "nowhere", "shards": "2", "direction": "in"}
    for verb in ("pause", "resume", "run", "purge", "limit", "throttle", "reshard", "delete"):
        assert admin_client.post(f"{LIST}nowhere/{verb}/", said).status_code == 404, verb
    assert delayq.queue_names() == []
