"""``delayq_recurring``, and recurring tasks in ``delayq_status``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import task
from django_delayq.connections import DjangoBroker
from django_delayq.core.registry import pause_recurring
from django_delayq.core.task import registry


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def listed() -> dict[str, Any]:
    """Return the tasks that the command lists."""
    return {one["task"]: one for one in json.loads(run("delayq_recurring", "list", "--json"))}


@pytest.fixture
def nightly(delayq: DjangoBroker) -> Iterator[DjangoBroker]:
    """A project with a recurring task."""
    made = task(name="shop.nightly", cron="0 3 * * *", timezone="Europe/Berlin")(lambda: None)
    yield delayq
    registry.remove(made)


def test_tasks_are_listed_paused_and_resumed(nightly: DjangoBroker) -> None:
    before = listed()["shop.nightly"]
    assert (before["schedule"], before["timezone"], before["paused"]) == ("0 3 * * *", "Europe/Berlin", None)
    assert before["next_tick"]
    assert run("delayq_recurring", "pause", "shop.nightly").strip() == "shop.nightly is paused: its ticks do not fire"
    paused = listed()["shop.nightly"]
    assert (bool(paused["paused"]), paused["next_tick"]) == (True, None)
    assert "shop.nightly" in run("delayq_recurring", "list") and "paused" in run("delayq_recurring", "list")
    assert run("delayq_recurring", "resume", "shop.nightly").strip() == "shop.nightly is not paused"
    assert listed()["shop.nightly"] == before


@pytest.mark.django_db(transaction=True)
def test_a_paused_task_is_seen_in_the_status(nightly: DjangoBroker) -> None:
    run("delayq_recurring", "pause", "shop.nightly")
    (line,) = [line for line in run("delayq_status").splitlines() if line.startswith("shop.nightly ")]
    assert line.endswith("paused")


def test_a_task_is_run_now(nightly: DjangoBroker) -> None:
    assert run("delayq_recurring", "run-now", "shop.nightly").strip() == "shop.nightly runs now (created)"
    assert nightly.inspector.counts("default").ready == 1
    assert json.loads(run("delayq_recurring", "run-now", "shop.nightly", "--json")) == {
        "task": "shop.nightly",
        "action": "run-now",
    }


def test_an_unknown_task_is_refused(nightly: DjangoBroker) -> None:
    for action in ("pause", "resume", "run-now"):
        with pytest.raises(CommandError, match=r"'shop\.daily' is no recurring task of this project; these are: "):
            run("delayq_recurring", action, "shop.daily")


@pytest.fixture
def moved(delayq: DjangoBroker) -> Iterator[DjangoBroker]:
    """A project whose recurring task has a new name."""
    made = task(name="shop.tasks.nightly", every=3600, aliases=("shop.nightly",))(lambda: None)
    yield delayq
    registry.remove(made)


def test_a_pause_of_a_renamed_task_is_listed_and_ended_by_either_name(moved: DjangoBroker) -> None:
    for name in ("shop.nightly", "shop.tasks.nightly"):
        pause_recurring(moved, "shop.nightly")
        paused = listed()
        assert "shop.nightly" not in paused
        assert paused["shop.tasks.nightly"]["paused"]
        assert paused["shop.tasks.nightly"]["next_tick"] is None
        assert run("delayq_recurring", "resume", name).strip() == "shop.tasks.nightly is not paused"
        assert listed()["shop.tasks.nightly"]["paused"] is None


def test_a_pause_of_a_task_that_is_gone_is_listed_and_can_be_ended(nightly: DjangoBroker) -> None:
    pause_recurring(nightly, "shop.gone")
    left = listed()["shop.gone"]
    assert left.pop("paused")
    assert {key for key, value in left.items() if value is not None} == {"task"}
    (line,) = [line for line in run("delayq_recurring", "list").splitlines() if line.startswith("shop.gone ")]
    assert "not in this project" in line and line.endswith("paused")
    for action in ("pause", "run-now"):
        with pytest.raises(CommandError, match="is no recurring task of this project"):
            run("delayq_recurring", action, "shop.gone")
    assert run("delayq_recurring", "resume", "shop.gone").strip() == "shop.gone is not paused"
    assert "shop.gone" not in listed()
