"""The page of recurring tasks: ticks, pause, resume, run now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq import task
from django_delayq.core.broker import Broker
from django_delayq.core.registry import pause_recurring, recurring_pauses
from django_delayq.core.task import registry
from tests.admin.support import cells, tags_of

from .queue_pages import LIST

pytestmark = pytest.mark.django_db

PAGE = f"{LIST}recurring/"
NAME = "shop.<nightly>"


@pytest.fixture(autouse=True)
def _nightly() -> Iterator[None]:
    made = task(name=NAME, cron="0 3 * * *", timezone="Europe/Berlin", missed="skip")(lambda: None)
    yield
    registry.remove(made)


def row(client: Client) -> list[str]:
    """Return the cells of the task."""
    content = client.get(PAGE).content
    tags_of(content)
    return next(cells for cells in cells(content) if cells[0].startswith(NAME))


def act(client: Client, verb: str, name: str = NAME) -> list[str]:
    """Press a button; return the messages."""
    answer = client.post(PAGE, {"verb": verb, "task": name}, follow=True)
    assert answer.status_code == 200
    return [str(message) for message in answer.context.get("messages", ())]


def test_recurring_tasks_are_shown_with_their_ticks(delayq: Broker, manager: Client) -> None:
    assert f'href="{PAGE}"' in manager.get(LIST).content.decode()
    name, schedule, missed, last, following, _ = row(manager)
    assert name == f"{NAME} default"
    assert (schedule, missed, last) == ("0 3 * * * Europe/Berlin", "are skipped", "–")
    assert following.startswith("in ")


def test_a_task_is_paused_and_resumed(delayq: Broker, manager: Client) -> None:
    assert act(manager, "pause") == [f"Paused: the ticks of {NAME} do not fire until it is resumed."]
    assert NAME in recurring_pauses(delayq)
    cells_of = row(manager)
    assert cells_of[0] == f"{NAME} paused default"
    assert cells_of[4].startswith("paused ")
    assert act(manager, "resume") == [f"The ticks of {NAME} fire again."]
    assert NAME not in recurring_pauses(delayq)
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "pause recurring task",
        "resume recurring task",
    ]


def test_a_task_is_run_now(delayq: Broker, manager: Client) -> None:
    assert act(manager, "run") == [f"A run of {NAME} is due now."]
    assert delayq.inspector.counts("default").ready == 1
    delayq.queue("default").reserve(0, 1, worker="w")
    assert act(manager, "run") == [f"A run of {NAME} begins when the present one ends."]


def test_what_cannot_be_done_is_said(delayq: Broker, manager: Client) -> None:
    (text,) = act(manager, "pause", "shop.daily")
    assert "is no recurring task of this project" in text
    delayq.queue("default")
    delayq.pause("default", "in")
    (text,) = act(manager, "run")
    assert "resume it" in text


@pytest.mark.parametrize(
    ("permission", "allowed"), [("pause", {"pause", "resume"}), ("run", {"run"}), ("purge", set())]
)
def test_each_button_has_the_permission_of_its_verb(
    delayq: Broker, client: Client, staff: Callable[..., Any], permission: str, allowed: set[str]
) -> None:
    client.force_login(staff("view_queueentry", f"{permission}_queueentry"))
    page = client.get(PAGE).content.decode()
    for verb in ("pause", "run"):
        assert (f'value="{verb}"' in page) == (verb in allowed)
    for verb in ("pause", "resume", "run", "other"):
        assert client.post(PAGE, {"verb": verb, "task": NAME}).status_code == (302 if verb in allowed else 403)


def test_a_pause_of_a_task_that_is_gone_is_shown_and_ended(delayq: Broker, manager: Client) -> None:
    pause_recurring(delayq, "shop.gone")
    content = manager.get(PAGE).content
    (gone,) = [one for one in cells(content) if one[0].startswith("shop.gone")]
    assert gone[0] == "shop.gone paused not in this project"
    assert gone[1:4] == ["–", "–", "–"]
    assert gone[5] == "Resume"
    assert act(manager, "resume", "shop.gone") == ["The ticks of shop.gone fire again."]
    assert "shop.gone" not in manager.get(PAGE).content.decode()
