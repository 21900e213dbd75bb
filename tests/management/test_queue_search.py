"""``delayq_jobs list``: jobs by what is in them."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.core.broker import Broker
from django_delayq.masking import HIDDEN
from tests.app.deeds import note, send, sync


def run(queue: str, text: str, *arguments: str) -> str:
    out = StringIO()
    words = ("--queue", queue, "--text", text, *arguments)
    call_command("delayq_jobs", "list", *words, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


def told(queue: str, text: str, *arguments: str) -> Any:
    return json.loads(run(queue, text, *arguments, "--json"))


@pytest.fixture(autouse=True)
def _jobs(delayq: Broker) -> None:
    schedule(note, "mail to ann@example.org", id="a", delay=60)
    schedule(note, "mail to bob@example.org", id="b")
    schedule(note, "\x1b[31mred\x1b[0m", id="c")
    schedule(sync, payload={"who": "carol"}, id=7)


def test_jobs_are_found_by_their_arguments() -> None:
    (found,) = told("default", "ANN@")
    assert (found["state"], found["id"], found["task"], found["failures"]) == ("delayed", "a", "deeds.note", 0)
    assert (found["args"], found["kwargs"]) == (["mail to ann@example.org"], {})
    head, line = run("default", "bob@").splitlines()
    assert head.split() == ["queue", "state", "id", "task", "time", "failures", "error", "content"]
    assert line.split()[:4] == ["default", "ready", "b", "deeds.note"]


def test_payloads_of_merged_jobs_are_searched_too() -> None:
    (found,) = told("deeds.sync", "carol")
    assert (found["id"], found["payload_count"]) == ("7", 1)
    assert run("deeds.sync", "carol").split()[-2:] == ["1", "payloads"]


def test_what_is_stored_does_not_reach_the_terminal_as_it_is() -> None:
    assert "\x1b" not in run("default", "red")
    assert "red" in run("default", "red")


def test_the_search_ends_where_it_is_told_to() -> None:
    assert [found["id"] for found in told("default", "note", "--limit", "2")] == ["b", "c"]
    assert (
        run("default", "note", "--limit", "2")
        .splitlines()[-1]
        .startswith("These are the first 2 jobs; there may be more.")
    )
    assert told("default", "note", "--place", "morgue", "--place", "reserved") == []
    assert run("default", "nothing like it").strip() == "no job found"


def test_a_queue_that_is_not_there_is_told() -> None:
    with pytest.raises(CommandError, match="there is no queue 'nowhere'"):
        run("nowhere", "x")
    with pytest.raises(CommandError, match="search for what"):
        run("default", "")


def test_secrets_in_arguments_are_masked_unless_they_are_asked_for() -> None:
    schedule(note, "dsn redis://:hunter2@host", id="secret")
    schedule(send, "hunter2", id="named", api_key="hunter2", n=5)
    for text in ("secret", "named"):
        assert "hunter2" not in run("default", text) + run("default", text, "--json")
        assert "hunter2" in run("default", text, "--show-secrets")
    (found,) = told("default", "named")
    assert (found["args"], found["kwargs"]) == ([HIDDEN], {"api_key": HIDDEN, "n": 5})
