"""``delayq_jobs``: lists of, and actions on, the jobs that meet conditions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_delayq import get_job, schedule
from django_delayq.core.broker import Broker
from tests.app.deeds import note, send


def run(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("delayq_jobs", *arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def found(*arguments: str) -> list[str]:
    return [one["id"] for one in json.loads(run("list", *arguments, "--json")[0])]


def waiting(broker: Broker) -> list[str]:
    return [view.id for view in broker.inspector.page("default", "waiting").jobs]


def moment(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.fixture(autouse=True)
def _jobs(delayq: Broker) -> None:
    schedule(note, "to north", id="north-1", delay=60)
    schedule(note, "to north", id="north-2", delay=7200)
    schedule(send, "to south", id="south-1", delay=1800, api_key="k", n=5)


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ((), ["north-1", "south-1", "north-2"]),
        (("--prefix", "north"), ["north-1", "north-2"]),
        (("--task", "deeds.note", "--due-before", 3600), ["north-1"]),
        (("--due-from", 900), ["south-1", "north-2"]),
        (("--text", "to north", "--due-from", 900), ["north-2"]),
        (("--never-started", "--prefix", "south"), ["south-1"]),
        (("--failures", "1"), []),
        (("--failures-to", "0", "--prefix", "south"), ["south-1"]),
        (("--place", "morgue", "--prefix", "north"), []),
    ],
)
def test_jobs_are_listed_by_conditions(arguments: tuple[str | int, ...], ids: list[str]) -> None:
    """Numbers are moments: seconds from the test on."""
    assert found(*[moment(one) if isinstance(one, int) else one for one in arguments]) == ids


def test_a_search_is_continued_by_the_cursor_that_it_printed() -> None:
    out, err = run("list", "--queue", "default", "--limit", "1", "--json")
    ids = [json.loads(out)[0]["id"]]
    while "--cursor" in err:
        out, err = run("list", "--queue", "default", "--limit", "1", "--json", "--cursor", err.split()[-1])
        ids += [one["id"] for one in json.loads(out)]
    assert ids == ["north-1", "south-1", "north-2"]
    assert "--cursor default/waiting:" in run("list", "--queue", "default", "--limit", "2")[0].splitlines()[-1]


def test_the_jobs_that_match_are_cancelled(delayq: Broker) -> None:
    assert run("cancel", "--queue", "default", "--prefix", "north", "--due-before", moment(3600), "--yes")[
        0
    ].strip() == ("1 cancelled")
    assert waiting(delayq) == ["south-1", "north-2"]
    assert json.loads(run("cancel", "--queue", "default", "--text", "to north", "--yes", "--json")[0]) == {
        "cancelled": 1
    }
    assert run("cancel", "--queue", "default", "--match", "to north", "--yes")[0].strip() == "nothing to do"
    assert waiting(delayq) == ["south-1"]


def test_the_jobs_that_match_run_now(delayq: Broker) -> None:
    assert run("run", "--queue", "default", "--task", "deeds.note", "--yes")[0].strip() == "2 moved"
    south = get_job("south-1")
    assert south is not None and south.state == "delayed"
    assert delayq.inspector.counts("default").ready == 2


def test_failed_jobs_that_match_are_killed_or_deleted(delayq: Broker) -> None:
    for action in (["bury"], ["discard", "--place", "failed"]):
        assert run(*action, "--failures", "1", "--prefix", "north", "--yes")[0].strip() == "nothing to do"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cancel", "--yes"), "cancel which jobs"),
        (("cancel", "--due-before", "soon", "--yes"), "'soon' is no moment"),
        (("cancel", "--due-from", "2030-01-01T00:00:00", "--yes"), "has no time zone"),
        (("list", "--failures", "-1"), "not a number of failures of 0 or more"),
        (("list", "--failures", "2", "--failures-to", "1"), "exchange failures and failures_to"),
        (("list", "--cursor", "morgue:x", "--place", "waiting"), "not a cursor of this list"),
        (("list", "--cursor", "default/waiting:x"), "is not a cursor"),
        (("run", "--place", "morgue", "--all", "--yes"), "one of these places: waiting"),
    ],
)
def test_a_wrong_option_is_refused(arguments: tuple[str, ...], message: str, delayq: Broker) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments)
    assert len(waiting(delayq)) == 3


def test_without_a_confirmation_nothing_is_changed(delayq: Broker) -> None:
    with pytest.raises(CommandError, match="Delete up to 3 waiting jobs of all queues, for good"):
        run("cancel", "--prefix", "north")
    assert len(waiting(delayq)) == 3
