"""Recurring tasks over HTTP, and in the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq import task
from django_delayq.core.registry import pause_recurring, recurring_pauses
from django_delayq.core.task import registry
from tests.support.api_caller import Caller

NAME = "shop.nightly"


@pytest.fixture(autouse=True)
def _nightly() -> Iterator[None]:
    made = task(name=NAME, every=3600, queue="reports", missed="skip", aliases=("nightly",))(lambda: None)
    yield
    registry.remove(made)


def found(api: Caller) -> dict[str, Any]:
    """Return the task from the list."""
    status, body = api.get("v1/recurring")
    assert status == 200
    return next(one for one in body["recurring"] if one["task"] == NAME)


def test_recurring_tasks_are_listed_paused_and_resumed(api: Caller, delayq: Any) -> None:
    before = found(api)
    assert (before["queue"], before["schedule"], before["missed"]) == ("reports", "every 1h", "skip")
    assert (before["last_tick"], before["paused"]) == (None, None)
    status, paused = api.post(f"v1/recurring/{NAME}/pause")
    assert (status, paused["next_tick"]) == (200, None)
    assert paused == found(api) == {**before, "next_tick": None, "paused": paused["paused"]}
    assert paused["paused"].endswith("Z")
    status, resumed = api.post(f"v1/recurring/{NAME}/resume")
    assert (status, resumed["paused"]) == (200, None)


def test_a_recurring_task_is_run_now(api: Caller, delayq: Any) -> None:
    assert api.post(f"v1/recurring/{NAME}/run-now") == (200, {"outcome": "created"})
    assert delayq.inspector.counts("reports").ready == 1
    delayq.pause("reports", "in")
    delayq.queue("reports").reserve(0, 1, worker="w")
    status, problem = api.post("v1/recurring/shop.daily/run-now")
    assert (status, problem["code"]) == (404, "not_found")
    assert f"these are: {NAME}" in problem["detail"]


def test_by_the_printed_rule_a_user_changes_recurring_tasks_of_queues_of_their_own_and_no_others(
    delayq: Any, settings: Any, caller: Callable[..., Caller]
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": "tests.api.test_permissions.of_the_documentation"}}
    someone = caller("view", "operate")
    own = task(name="own.nightly", every=3600, queue=f"{someone.user.username}.reports")(lambda: None)
    try:
        pause_recurring(delayq, "shop.gone")
        assert NAME not in str(someone.get("v1/recurring")[1])
        for verb in ("pause", "resume", "run-now"):
            assert someone.post(f"v1/recurring/own.nightly/{verb}")[0] == 200
            assert someone.post(f"v1/recurring/{NAME}/{verb}")[0] == 403
            assert someone.post(f"v1/recurring/shop.gone/{verb}")[0] == 403  # of no queue
    finally:
        registry.remove(own)


def test_a_renamed_task_is_found_by_its_old_name(api: Caller, delayq: Any) -> None:
    status, paused = api.post("v1/recurring/nightly/pause")
    assert (status, paused["task"]) == (200, NAME)
    pause_recurring(delayq, "nightly")
    status, resumed = api.post("v1/recurring/nightly/resume")
    assert (status, resumed["task"], resumed["paused"]) == (200, NAME, None)
    assert recurring_pauses(delayq) == {}


def test_a_pause_of_a_task_that_is_gone_is_listed_and_ended(api: Caller, delayq: Any) -> None:
    pause_recurring(delayq, "shop.gone")
    (left,) = [one for one in api.get("v1/recurring")[1]["recurring"] if one["task"] == "shop.gone"]
    assert (left["queue"], left["schedule"], left["missed"], left["next_tick"]) == (None, None, None, None)
    assert left["paused"].endswith("Z")
    assert api.post("v1/recurring/shop.gone/pause")[0] == 404
    assert api.post("v1/recurring/shop.gone/resume") == (200, {**left, "paused": None})
    assert api.post("v1/recurring/shop.gone/resume")[0] == 404
