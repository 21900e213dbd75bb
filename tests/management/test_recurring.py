"""``delayq_recurring``, and recurring tasks in ``delayq_status``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError

from django_delayq import task
from django_delayq.connections import DjangoBroker
from django_delayq.core.registry import pause_recurring
from django_delayq.core.task import registry
from tests.management import stage

pytestmark = pytest.mark.django_db(transaction=True)
run = partial(stage.run, "delayq_recurring")


def listed() -> dict[str, Any]:
    """Return the tasks that the command lists."""
    return {one["task"]: one for one in stage.told("delayq_recurring", "list")}


@pytest.fixture
def nightly(delayq: DjangoBroker) -> Iterator[DjangoBroker]:
    """A project with a recurring task that had another name before."""
    options = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "aliases": ("shop.old",)}
    made = task(name="shop.nightly", **options)(lambda: None)
    yield delayq
    registry.remove(made)


def test_tasks_are_listed_paused_and_resumed(nightly: DjangoBroker) -> None:
    before = listed()["shop.nightly"]
    assert (before["schedule"], before["timezone"], before["paused"]) == ("0 3 * * *", "Europe/Berlin", None)
    assert before["next_tick"]
    assert run("pause", "shop.nightly") == "shop.nightly is paused: its ticks do not fire"
    paused = listed()["shop.nightly"]
    assert (bool(paused["paused"]), paused["next_tick"]) == (True, None)
    for lines in (run("list"), stage.run("delayq_status")):
        (line,) = [line for line in lines.splitlines() if line.startswith("shop.nightly ")]
        assert line.endswith("paused")
    assert run("resume", "shop.nightly") == "shop.nightly is not paused"
    assert listed()["shop.nightly"] == before


def test_a_task_is_run_now(nightly: DjangoBroker) -> None:
    assert run("run-now", "shop.nightly") == "shop.nightly runs now (created)"
    assert nightly.inspector.counts("default").ready == 1
    answer = stage.told("delayq_recurring", "run-now", "shop.nightly")
    assert answer == {"task": "shop.nightly", "action": "run-now"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *(([action, "shop.daily"], r"'shop\.daily' is no rec") for action in ("pause", "resume", "run-now")),
        (["pause"], "pause which task"),
        (["list", "shop.nightly"], "list takes no task"),
    ],
)
def test_what_makes_no_sense_is_refused(nightly: DjangoBroker, words: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        run(*words)


def test_a_pause_of_a_renamed_task_is_listed_and_ended_by_either_name(nightly: DjangoBroker) -> None:
    for name in ("shop.old", "shop.nightly"):
        pause_recurring(nightly, "shop.old")
        paused = listed()
        assert "shop.old" not in paused
        assert paused["shop.nightly"]["paused"] and paused["shop.nightly"]["next_tick"] is None
        assert run("resume", name) == "shop.nightly is not paused"
        assert listed()["shop.nightly"]["paused"] is None


def test_a_pause_of_a_task_that_is_gone_is_listed_and_can_be_ended(nightly: DjangoBroker) -> None:
    pause_recurring(nightly, "shop.gone")
    left = listed()["shop.gone"]
    assert left.pop("paused")
    assert {key for key, value in left.items() if value is not None} == {"task"}
    (line,) = [line for line in run("list").splitlines() if line.startswith("shop.gone ")]
    assert "not in this project" in line and line.endswith("paused")
    assert run("resume", "shop.gone") == "shop.gone is not paused"
    assert "shop.gone" not in listed()
