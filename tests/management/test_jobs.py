"""``delayq_jobs`` on jobs of given ids, in any place, and on those of all queues."""

from __future__ import annotations

import json
from dataclasses import fields
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from django_delayq import get_job, schedule
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.job_filter import JobFilter
from django_delayq.core.outcomes import bury, fail
from tests.app.deeds import note, sync

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_jobs", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


def told(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


@pytest.fixture
def everywhere(delayq: Broker) -> Broker:
    """``late`` and ``failed`` wait, ``busy`` runs, ``dead`` is in the morgue; ``other`` waits in another queue."""
    queue = delayq.queue("default")
    for ident in ("failed", "dead", "busy"):
        schedule(note, "x", id=ident)
        (job,) = queue.reserve(queue.shard_of(ident), 10, worker="w").jobs
        if ident == "failed":
            queue.settle([fail(job, 0, 5, delay_ms=60_000)])
        elif ident == "dead":
            queue.settle([bury(job, 0, 5, reason="exhausted")])
    schedule(note, "x", id="late", delay=60)
    delayq.queue("mail").schedule(NewJob("other", "work", delay_ms=60_000))
    return delayq


def test_without_options_the_jobs_of_all_queues_and_places_are_listed(everywhere: Broker) -> None:
    found = [(one["queue"], one["id"], one["state"]) for one in told()]
    assert sorted(found) == [
        ("default", "busy", "reserved"),
        ("default", "dead", "morgue"),
        ("default", "failed", "delayed"),
        ("default", "late", "delayed"),
        ("mail", "other", "delayed"),
    ]


@pytest.mark.parametrize(
    ("place", "ids"),
    [
        ("waiting", ["failed", "late", "other"]),
        ("reserved", ["busy"]),
        ("failed", ["failed"]),
        ("morgue", ["dead"]),
    ],
)
def test_a_place_has_its_jobs_by_id_and_in_a_list(everywhere: Broker, place: str, ids: list[str]) -> None:
    every = ["busy", "dead", "failed", "late", "other"]
    assert sorted(one["id"] for one in told("list", "--place", place)) == ids
    named = [word for ident in every for word in ("--id", ident)]
    assert sorted(one["id"] for one in told("list", "--place", place, *named)) == ids


def test_a_list_goes_on_in_the_next_queue(everywhere: Broker) -> None:
    out, err = StringIO(), StringIO()
    words = ["delayq_jobs", "list", "--place", "waiting", "--limit", "2", "--json"]
    call_command(*words, stdout=out, stderr=err)
    assert [one["id"] for one in json.loads(out.getvalue())] == ["late", "failed"] or len(
        json.loads(out.getvalue())
    ) == 2
    assert [one["id"] for one in told(*words[1:4], "--cursor", err.getvalue().split()[-1])] == ["other"]


def test_jobs_are_changed_by_their_ids_where_the_action_applies(everywhere: Broker) -> None:
    assert told("run", "--id", "late", "--id", "dead") == {"moved": 1}
    assert told("bury", "--id", "failed", "--id", "late") == {"killed": 1}
    assert told("cancel", "--id", "other") == {"cancelled": 1}
    assert told("retry", "--id", "dead", "--delay", "60") == {"retried": 1}
    states = {ident: job.state for ident in ("late", "failed", "dead") if (job := get_job(ident))}
    assert states == {"late": "ready", "failed": "morgue", "dead": "delayed"}
    with pytest.raises(CommandError, match="no such job in that place"):
        run("cancel", "--id", "busy")


def test_all_queues_are_acted_on_unless_one_is_named(everywhere: Broker) -> None:
    with pytest.raises(CommandError, match=r"Delete 3 waiting jobs of all queues, for good\?"):
        run("cancel", "--all")
    assert told("cancel", "--all", "--yes") == {"cancelled": 3}


def test_a_live_job_is_shown_whole(delayq: Broker) -> None:
    schedule(sync, id=5, payload={"name": "Ann"}, delay=60)
    (shown,) = told("show", "--id", "5")
    ((payload,), *rest) = shown["payloads"], shown["state"], shown["buried"]
    assert (payload["payload"], rest) == ({"name": "Ann"}, ["delayed", None])
    with pytest.raises(CommandError, match="there is no such job"):
        run("show", "--id", "nobody")


def test_a_moment_may_be_the_time_since_then(everywhere: Broker) -> None:
    assert [one["id"] for one in told("list", "--buried-before", "1h")] == []
    assert [one["id"] for one in told("list", "--buried-from", "1h")] == ["dead"]
    with pytest.raises(CommandError, match="'5 weeks' is no moment"):
        run("list", "--buried-from", "5 weeks")


def test_every_condition_of_a_filter_is_an_option() -> None:
    parser = load_command_class("django_delayq", "delayq_jobs").create_parser("manage.py", "delayq_jobs")
    assert {field.name for field in fields(JobFilter)} <= set(vars(parser.parse_args([])))
