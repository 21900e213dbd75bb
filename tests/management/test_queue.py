"""``delayq_queue``, what needs a confirmation, and what ``delayq_status`` says of paused and limited queues."""

from __future__ import annotations

import io
import re
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import connections, schedule
from django_delayq.core import layouts
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueFull, QueuePaused
from django_delayq.core.times import iso_of
from tests.app.deeds import note
from tests.management import stage

pytestmark = pytest.mark.django_db(transaction=True)
run, told = partial(stage.run, "delayq_queue"), partial(stage.told, "delayq_queue")


def places(broker: Broker) -> dict[str, int]:
    counts = broker.inspector.counts("default")
    names = ("delayed", "ready", "reserved", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


# --- pause, resume


def test_a_queue_is_paused_and_resumed(delayq: Broker) -> None:
    schedule(note, "1")
    assert run("pause", "default", "--in") == "default is paused: new jobs are refused"
    with pytest.raises(QueuePaused):
        schedule(note, "2")
    assert told("pause", "default", "--out") == {"queue": "default", "paused": "both", "paused_until": {}}
    assert delayq.queue("default").reserve(0, 1, worker="w").jobs == []
    assert run("resume", "default", "--in") == "default is paused: no jobs are started"
    schedule(note, "2")
    assert run("resume", "default") == "default is not paused"
    assert len(delayq.queue("default").reserve(0, 10, worker="w").jobs) == 2


def test_a_queue_is_paused_for_a_time(delayq: Broker) -> None:
    schedule(note, "1")
    before = int(delayq.now_ms())
    assert "default is paused: new jobs are refused until 20" in run("pause", "default", "--in", "--for", "10m")
    end = delayq.queue("default").layout["paused"]["in"]
    assert 600_000 <= end - before < 660_000
    answer = told("pause", "default", "--out", "--for", "3599")
    assert (answer["paused"], answer["paused_until"]["in"]) == ("both", iso_of(end))
    (queue,) = stage.told("delayq_status")["queues"]
    assert queue["paused_until"] == answer["paused_until"]
    assert "out 59 min" in stage.run("delayq_status")


def test_one_command_pauses_the_producers_of_all_queues(delayq: Broker) -> None:
    schedule(note, "1")
    assert told("pause-producers") == {"producers_paused": True}
    with pytest.raises(QueuePaused, match="all producers are paused"):
        schedule(note, "2")
    assert "Producers are paused" in stage.run("delayq_status")
    assert stage.told("delayq_status")["producers_paused"] is not None
    assert run("resume-producers") == "producers are not paused"
    schedule(note, "2")
    assert "Producers are paused" not in stage.run("delayq_status")


def test_workers_are_told_to_watch_and_ignore_a_queue(delayq: Broker) -> None:
    delayq.queue("mail")
    for name in ("w1", "w2"):
        delayq.announce(name, {"queues": ["default"]})
    said = run("watch", "mail", "--worker", "w1", "--worker", "w2")
    assert "mail: w1, w2 and all processes of the same program reserve from it too" in said
    assert [delayq.announce(name, {}).choices for name in ("w1", "w2")] == [{"mail": "watch"}] * 2
    answer = told("ignore", "mail", "--worker", "w1")
    assert answer == {"queue": "mail", "command": "ignore", "workers": ["w1"]}
    with pytest.raises(CommandError, match="delayq_status lists the workers"):
        run("watch", "mail", "--worker", "nobody")
    delayq.announce("w1", {"queues": ["default"], "ignored": ["mail"], "threads": 1})
    assert "default, not mail" in stage.run("delayq_status")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["watch", "default"], "Give --worker NAME"),
        (["pause"], "pause which queue"),
        (["list", "default"], "name is for pause, resume, watch, ignore, delete"),
        (["resume", "default", "--for", "5m"], "for is for pause"),
        (["pause", "default", "--force"], "force is for delete"),
        (["pause", "default", "--for", "0"], "lasts more than 0 seconds"),
        *((["pause", "default", f"--for={wrong}"], "not a time span") for wrong in ("soon", "-5", "5w")),
    ],
)
def test_what_makes_no_sense_is_refused(delayq: Broker, words: list[str], text: str) -> None:
    delayq.queue("default")
    with pytest.raises(CommandError, match=text):
        run(*words)


# --- many jobs


def test_all_delayed_jobs_are_made_due_now(delayq: Broker) -> None:
    for number in range(5):
        schedule(note, str(number), delay=60)
    words = ("delayq_jobs", "run", "--all", "--queue", "default", "--yes")
    assert stage.run(*words) == "5 moved"
    assert places(delayq) == {"ready": 5}
    assert stage.run(*words) == "nothing to do"


@pytest.mark.parametrize(
    "words",
    [
        ("delayq_jobs", "run", "--all", "--queue", "default"),
        ("delayq_jobs", "bury", "--all", "--queue", "default"),
        ("delayq_jobs", "discard", "--all", "--place", "failed"),
        ("delayq_jobs", "cancel", "--all"),
        ("delayq_queue", "delete", "default"),
    ],
    ids=" ".join,
)
def test_nothing_is_done_to_many_jobs_unless_somebody_says_yes(
    delayq: Broker, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.ended(delayq, stage.failed, "a", "b")
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(CommandError, match="repeat the command with --yes"):
        stage.run(*words)
    monkeypatch.setattr("sys.stdin", stage.Terminal("no\n\ny\n"))
    for _ in range(2):
        with pytest.raises(CommandError, match="not confirmed, so nothing was changed"):
            stage.run(*words)
    assert places(delayq) == {"delayed": 2, "failed": 2}
    if words[1] != "delete":
        out, err = stage.printed(*words)
        question, _, answer = err.partition("?")
        assert (" 2 " in question, answer, out.startswith("2 ")) == (True, " [y/N] ", True)
        assert places(delayq) != {"delayed": 2, "failed": 2}


def test_a_queue_with_jobs_is_deleted_only_by_force(delayq: Broker) -> None:
    schedule(note, "1", delay=60)
    with pytest.raises(CommandError, match="delete it with --force"):
        run("delete", "default", "--yes")
    assert run("delete", "default", "--yes", "--force") == "1 deleted"
    assert delayq.queue_names() == []
    with pytest.raises(CommandError, match="Known queues: none yet"):
        run("delete", "default", "--yes")


@pytest.mark.parametrize("action", ["pause", "resume", "run", "cancel", "bury", "retry", "discard", "delete"])
def test_a_queue_that_is_not_there_is_not_made(delayq: Broker, action: str) -> None:
    schedule(note, "1")
    of_queue = action in ("pause", "resume", "delete")
    words = ("delayq_queue", action, "nowhere") if of_queue else ("delayq_jobs", action, "--queue", "nowhere", "--all")
    with pytest.raises(CommandError, match="there is no queue 'nowhere'"):
        stage.run(*words)
    assert delayq.queue_names() == ["default"]


# --- list, status


def test_every_queue_is_listed_with_what_is_ordered_for_it(delayq: Broker) -> None:
    assert run("list") == "No queue yet: nothing was ever scheduled."
    stage.ended(delayq, stage.buried, "a", "b")
    schedule(note, "1")
    delayq.queue("raw", kind="pull", shards=3)
    delayq.limit("default", max_length=100, morgue_max=10, morgue_ttl=86_400, priorities="weighted", starve_after=90)
    delayq.pause("raw", "in")
    names = ("queue", "kind", "paused", "shards", "jobs", "morgue")
    names += ("max_length", "morgue_max", "morgue_ttl", "priorities", "starve_after")
    rows = (
        ("default", "python", "", 1, 1, 2, 100, 10, 86400.0, "weighted", 90.0),
        ("raw", "pull", "in", 3, 0, 0, None, None, None, "strict", None),
    )
    assert told("list") == [dict(zip(names, row, strict=True)) for row in rows]
    lines = [re.split(r"\s{2,}", line) for line in run("list").splitlines()]
    assert lines[1] == ["default", "python", "–", "1", "1", "2", "100", "10", "1 d", "weighted", "1 min 30 s"]
    assert lines[2] == ["raw", "pull", "in", "3", "0", "0", "–", "–", "–", "strict", "–"]


def test_status_tells_what_is_paused_and_limited(delayq: Broker) -> None:
    schedule(note, "1")
    (queue,) = stage.told("delayq_status")["queues"]
    assert (queue["paused"], queue["limits"]) == ("", {})
    assert "rules" not in stage.run("delayq_status")
    delayq.limit("default", max_length=5, priorities="weighted")
    delayq.pause("default", "out")
    (queue,) = stage.told("delayq_status")["queues"]
    assert (queue["paused"], queue["limits"]) == ("out", {"max_length": 5, "priorities": "weighted"})
    lines = stage.run("delayq_status").splitlines()
    assert lines[3].endswith("rules")
    assert lines[4].endswith("paused out, max_length 5, priorities weighted")


def test_t46_commands_that_only_look_change_nothing(delayq: Broker) -> None:
    stage.ended(delayq, stage.buried, "a", "b")
    schedule(note, "1", delay=60)
    before = sorted((key, delayq.client.dump(key)) for key in delayq.client.scan_iter("*"))
    morgue = ["delayq_jobs", "list", "--place", "morgue"]
    for command in (["delayq_queue", "list"], ["delayq_status"], ["delayq_jobs"], morgue):
        stage.run(*command)
        stage.run(*command, "--json")
    assert sorted((key, delayq.client.dump(key)) for key in delayq.client.scan_iter("*")) == before


# --- limits in the settings


def test_the_limits_of_the_settings_are_in_force_and_may_be_changed_there(delayq: Broker, settings: Any) -> None:
    schedule(note, "1")
    limits = {"max_length": 2, "morgue_max": 7, "morgue_ttl": 1.5, "starve_after": 60}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": limits}}
    connections.close_broker()
    schedule(note, "2")
    with pytest.raises(QueueFull, match="max_length"):
        schedule(note, "3")
    layout = connections.broker().queue("default").layout
    assert layouts.queue_policy(layout)["limits"] == limits
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    connections.close_broker()
    schedule(note, "3")
    layout = connections.broker().queue("default").layout
    assert layouts.queue_policy(layout) == {"paused": "", "paused_until": {}, "limits": {}}


def test_limits_of_a_queue_that_the_settings_do_not_name_are_left_alone(delayq: Broker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"max_length": 9}}}
    connections.close_broker()
    assert [connections.is_configured(name) for name in ("orders", "default")] == [True, False]
    schedule(note, "1")
    broker = connections.broker()
    broker.queue("orders")
    for name in ("default", "orders"):
        broker.limit(name, max_length=1, priorities="weighted")
    connections.close_broker()
    with pytest.raises(QueueFull, match="max_length"):
        schedule(note, "2")
    served = connections.broker().served(["default", "orders"])
    assert [layouts.queue_policy(queue.layout)["limits"] for queue in served] == [
        {"max_length": 1, "priorities": "weighted"},
        {"max_length": 9},
    ]


# --- options beside the action


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "list"],
        ["-v", "0", "list", "--json", "--traceback"],
        ["list", "--verbosity", "0", "--json", "--settings", "tests.settings", "--no-color"],
    ],
)
def test_options_stand_before_and_after_the_action(delayq: Broker, words: list[str]) -> None:
    schedule(note, "x", delay=60)
    out = io.StringIO()
    call_command("delayq_queue", *words, stdout=out, stderr=io.StringIO())
    assert '"queue": "default"' in out.getvalue()


@pytest.mark.parametrize("words", [["-v", "0", "status", "--json"], ["status", "-v", "0", "--json", "--traceback"]])
def test_the_pipelines_subcommands_take_them_too(delayq: Broker, words: list[str]) -> None:
    out = io.StringIO()
    call_command("delayq_pipeline", *words, stdout=out, stderr=io.StringIO())
    assert '"last_run": null' in out.getvalue()
