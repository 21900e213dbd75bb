"""``delayq_jobs``: lists of jobs, and actions on those of given ids, on those that meet conditions, and on all."""

from __future__ import annotations

import io
import json
import time
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.core.management import CommandError, call_command, load_command_class

from django_delayq import get_job, schedule
from django_delayq.core import bulk
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.job_filter import JobFilter
from django_delayq.core.outcomes import bury
from django_delayq.masking import HIDDEN
from tests.app.deeds import note, send, sync
from tests.management import stage

pytestmark = pytest.mark.django_db(transaction=True)
run, told = partial(stage.run, "delayq_jobs"), partial(stage.told, "delayq_jobs")


def ids(*words: str | int) -> list[str]:
    """Return the ids of a list. Numbers are moments: seconds from now on."""
    now = datetime.now(UTC)
    texts = [(now + timedelta(seconds=one)).isoformat() if isinstance(one, int) else one for one in words]
    return [one["id"] for one in told("list", *texts)]


def waiting(broker: Broker) -> list[str]:
    return [view.id for view in broker.inspector.page("default", "waiting").jobs]


@pytest.fixture
def everywhere(delayq: Broker) -> Broker:
    """``late`` and ``failed`` wait, ``busy`` runs, ``dead`` is in the morgue; ``other`` waits in another queue."""
    stage.ended(delayq, stage.failed, "failed")
    stage.ended(delayq, stage.buried, "dead")
    schedule(note, "x", id="busy")
    queue = delayq.queue("default")
    queue.reserve(queue.shard_of("busy"), 10, worker="w")
    schedule(note, "x", id="late", delay=60)
    delayq.queue("mail").schedule(NewJob("other", "work", delay_ms=60_000))
    return delayq


@pytest.fixture
def three(delayq: Broker) -> Broker:
    """Three jobs that become due after each other."""
    schedule(note, "to north", id="north-1", delay=60)
    schedule(note, "to north", id="north-2", delay=7200)
    schedule(send, "to south", id="south-1", delay=1800, api_key="k", n=5)
    return delayq


# -- lists


def test_without_options_the_jobs_of_all_queues_and_places_are_listed(everywhere: Broker) -> None:
    assert sorted((one["queue"], one["id"], one["state"]) for one in told()) == [
        ("default", "busy", "reserved"),
        ("default", "dead", "morgue"),
        ("default", "failed", "delayed"),
        ("default", "late", "delayed"),
        ("mail", "other", "delayed"),
    ]


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("waiting", ["failed", "late", "other"]),
        ("reserved", ["busy"]),
        ("failed", ["failed"]),
        ("morgue", ["dead"]),
    ],
)
def test_a_place_has_its_jobs_by_id_and_in_a_list(everywhere: Broker, place: str, found: list[str]) -> None:
    assert sorted(ids("--place", place)) == found
    named = [word for ident in ("busy", "dead", "failed", "late", "other") for word in ("--id", ident)]
    assert sorted(ids("--place", place, *named)) == found


def test_a_list_ends_at_its_limit_and_says_so(everywhere: Broker) -> None:
    assert run("list", "--place", "reserved", "--place", "waiting", "--text", "nothing like it") == "no job found"
    words = ("--place", "waiting", "--limit")
    assert run("list", *words, "2").splitlines()[-1].startswith("These are the first 2 jobs; there are more.")
    out, err = stage.printed("delayq_jobs", "list", *words, "1", "--json")
    assert (len(json.loads(out)), err.startswith("These are the first 1 jobs")) == (1, True)
    assert stage.printed("delayq_jobs", "list", *words, "3", "--json")[1] == ""


def test_the_morgue_is_listed_newest_first_with_classes_of_errors_without_their_module(delayq: Broker) -> None:
    stage.ended(delayq, stage.buried, "a", "b")
    stage.ended(delayq, lambda job: stage.buried(job, "a.long.path.to.the.project.NotPayable"), "c")
    head, *rows = [line.split() for line in run("list", "--place", "morgue", "--limit", "2").splitlines()[:3]]
    assert head == ["queue", "state", "id", "task", "time", "failures", "error", "content"]
    assert [row[:4] + row[5:8] for row in rows] == [
        ["default", "morgue", "c", "deeds.note", "1", "exhausted", "NotPayable"],
        ["default", "morgue", "b", "deeds.note", "1", "exhausted", "ValueError"],
    ]


def test_the_error_of_a_job_that_somebody_buried_is_listed(delayq: Broker) -> None:
    error = json.dumps({"class": "GatewayDown", "message": "no"}).encode()
    stage.ended(delayq, lambda job: stage.failed(job, error_class="GatewayDown", error=error), "a")
    assert bulk.change(delayq.queue("default"), bulk.KILL_FAILED).counts == {"killed": 1}
    assert "GatewayDown" in run()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), ["north-1", "south-1", "north-2"]),
        (("--prefix", "north"), ["north-1", "north-2"]),
        (("--task", "deeds.note", "--due-before", 3600), ["north-1"]),
        (("--due-from", 900), ["south-1", "north-2"]),
        (("--text", "TO NORTH", "--due-from", 900), ["north-2"]),
        (("--id-from", "north-2", "--id-to", "south-0"), ["north-2"]),
        (("--never-started", "--prefix", "south"), ["south-1"]),
        (("--failures", "1"), []),
        (("--failures-to", "0", "--prefix", "south"), ["south-1"]),
        (("--place", "morgue", "--prefix", "north"), []),
    ],
)
def test_jobs_are_listed_by_conditions(three: Broker, words: tuple[str | int, ...], found: list[str]) -> None:
    assert ids(*words) == found


def test_every_condition_of_a_filter_is_an_option() -> None:
    parser = load_command_class("django_delayq", "delayq_jobs").create_parser("manage.py", "delayq_jobs")
    assert {one.name.removesuffix("_ms") for one in fields(JobFilter)} <= set(vars(parser.parse_args([])))


def test_a_moment_may_be_the_time_since_then(everywhere: Broker) -> None:
    assert ids("--buried-before", "1h") == []
    assert ids("--buried-from", "1h") == ["dead"]


def test_the_payloads_of_merged_jobs_are_searched_and_shown(delayq: Broker) -> None:
    schedule(sync, payload={"who": "carol"}, id=7, delay=60)
    (found,) = told("list", "--text", "carol")
    assert (found["id"], found["payload_count"]) == ("7", 1)
    assert run("list", "--text", "carol").split()[-2:] == ["1", "payloads"]
    ((shown),) = told("show", "--id", "7")
    assert (shown["payloads"][0]["payload"], shown["state"], shown["buried"]) == ({"who": "carol"}, "delayed", None)


def test_what_is_stored_does_not_reach_the_terminal_as_it_is(delayq: Broker) -> None:
    schedule(note, "\x1b[31mred\x1b[0m", id="c", delay=60)
    assert "\x1b" not in run("list", "--text", "red") and "red" in run("list", "--text", "red")
    stage.ended(delayq, stage.buried, "a")
    shown = run("show", "--id", "a")
    assert "text of a" in shown and "no a\\x1b[31m" in shown and "Traceback" in shown
    (job,) = told("show", "--id", "a")
    assert (job["args"], job["kwargs"], job["error"]["class"]) == (["text of a"], {}, "ValueError")


def test_a_buried_merged_job_is_shown_with_whatever_is_known_of_its_error(delayq: Broker) -> None:
    schedule(sync, id=5, payload={"name": "Ann"}, score=2)
    queue = delayq.queue(sync.options.queue)
    (job,) = queue.reserve(queue.shard_of("5"), 10, worker="w").jobs
    error = json.dumps({"class": "Refused", "message": "no", "hint": "ask the \x1b[31mbank"}).encode()
    queue.settle([bury(job, 0, 5, reason="exhausted", outcome="exhausted", error_class="Refused", error=error)])
    shown = run("show", "--id", "5")
    assert "{'name': 'Ann'}" in shown and "args" not in shown
    assert "hint" in shown and "ask the \\x1b[31mbank" in shown
    (one,) = told("show", "--id", "5")
    assert one["payloads"] == [{"payload": {"name": "Ann"}, "score": "2"}] and "args" not in one


def test_secrets_are_masked_unless_they_are_asked_for(delayq: Broker) -> None:
    queue = delayq.queue("default")
    schedule(send, "hunter2", id="a", api_key="hunter2", context={"token": "hunter2"})
    (job,) = queue.reserve(queue.shard_of("a"), 10, worker="w").jobs
    trace = "after KeyError:\n    pass: hunter2\n"
    record = json.dumps({"message": "token=hunter2", "traceback": trace, "order": {"pin": "hunter2"}}).encode()
    queue.settle([bury(job, 0, 5, reason="jwt=hunter2", outcome="exhausted", error_class="ValueError", error=record)])
    schedule(note, "dsn redis://:hunter2@host", id="text", delay=60)
    show = ("show", "--id", "a")
    for words in (["list"], ["list", "--json"], show, (*show, "--json")):
        assert "hunter2" not in run(*words)
    assert run(*show, "--show-secrets").count("hunter2") == 7
    assert "hunter2" in run("list", "--text", "dsn", "--show-secrets")
    assert [one["args"] for one in told(*show)] == [[HIDDEN]]
    (one,) = told(*show, "--show-secrets")
    assert (one["args"], one["options"]["context"]) == (["hunter2"], {"token": "hunter2"})


# -- actions


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
    assert told("cancel", "--all", "--yes", "--queue", "default") == {"cancelled": 2}
    assert told("cancel", "--all", "--yes") == {"cancelled": 1}


def test_the_jobs_that_match_are_cancelled_or_run_now(three: Broker) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with pytest.raises(CommandError, match="Delete up to 3 waiting jobs of all queues, for good"):
        run("cancel", "--prefix", "north")
    assert run("cancel", "--queue", "default", "--prefix", "north", "--due-before", soon, "--yes") == "1 cancelled"
    assert waiting(three) == ["south-1", "north-2"]
    assert run("bury", "--failures", "1", "--yes") == "nothing to do"
    assert told("run", "--text", "to north", "--yes") == {"moved": 1}
    assert {job.id: job.state for job in map(get_job, ("south-1", "north-2")) if job} == {
        "south-1": "delayed",
        "north-2": "ready",
    }


def test_failed_jobs_are_buried_or_deleted(delayq: Broker) -> None:
    stage.ended(delayq, stage.failed, "a", "b", "c")
    schedule(note, "never failed", id="d", delay=60)
    assert told("bury", "--all", "--queue", "default", "--limit", "1", "--yes") == {"killed": 1}
    assert told("bury", "--id-from", "c", "--yes") in ({"killed": 1}, {})
    assert run("discard", "--place", "failed", "--all", "--yes") in ("1 deleted", "2 deleted")
    assert waiting(delayq) == ["d"]


def test_a_whole_morgue_is_retried_at_a_pace(delayq: Broker) -> None:
    stage.ended(delayq, stage.buried, *(f"j{number}" for number in range(30)))
    assert told("retry", "--all", "--delay", "60", "--per-second", "10") == {"retried": 30}
    dues = sorted(view.due_ms for view in delayq.inspector.page("default", "waiting", limit=250).jobs)
    assert [due - dues[0] for due in dues] == [100 * n for n in range(30)]
    assert dues[0] > delayq.now_ms() + 30_000


def test_jobs_of_the_morgue_are_retried_or_discarded_by_conditions(delayq: Broker) -> None:
    stage.ended(delayq, stage.buried, "north-1", "north-2")
    time.sleep(0.05)
    middle = datetime.fromtimestamp(delayq.now_ms() / 1000, UTC).isoformat()
    time.sleep(0.05)
    stage.ended(delayq, stage.buried, "north-3", "south-1")
    assert ids("--prefix", "north", "--buried-before", middle) == ["north-2", "north-1"]
    assert run("retry", "--buried-before", middle, "--per-second", "10") == "2 retried"
    with pytest.raises(CommandError, match=r"Delete up to 2 morgue jobs of all queues, for good\?"):
        run("discard", "--prefix", "south")
    assert run("discard", "--prefix", "south", "--buried-before", "1h", "--yes") == "nothing to do"
    assert run("discard", "--prefix", "south", "--buried-before", "0.001s", "--yes") == "1 discarded"
    assert run("retry", "--id-from", "north-3", "--queue", "default", "--limit", "5") == "1 retried"


def test_jobs_are_retried_or_discarded_one_by_one_or_all(delayq: Broker) -> None:
    stage.ended(delayq, stage.buried, "a", "b", "c", "d")
    assert run("retry", "--id", "a", "--delay", "60") == "1 retried"
    assert run("discard", "--id", "b", "--queue", "default") == "1 discarded"
    assert run("retry", "--all", "--limit", "1") == "1 retried"
    with pytest.raises(CommandError, match=r"Delete 1 morgue jobs of all queues, for good\? .*with --yes"):
        run("discard", "--all")
    assert len(delayq.inspector.page("default", "morgue").jobs) == 1, "nobody said yes"
    assert run("discard", "--all", "--yes") == "1 discarded"
    counts = delayq.inspector.counts("default")
    assert (counts.delayed, counts.ready, counts.morgue) == (1, 1, 0)


def test_a_live_job_of_the_same_id_is_not_overwritten_by_accident(delayq: Broker) -> None:
    stage.ended(delayq, stage.buried, "a")
    schedule(note, "new life", id="a", delay=60)
    with pytest.raises(CommandError, match="1 of the jobs stay in the morgue"):
        run("retry", "--all")
    assert run("retry", "--all", "--replace") == "1 retried"


def test_progress_is_shown_on_a_terminal_only(three: Broker) -> None:
    out, watched = io.StringIO(), stage.Terminal()
    call_command("delayq_jobs", "cancel", "--all", "--yes", "--json", stdout=out, stderr=watched, no_color=True)
    assert json.loads(out.getvalue()) == {"cancelled": 3}
    assert "100% 3/3 jobs" in watched.getvalue()
    schedule(note, "4", delay=60)
    assert stage.printed("delayq_jobs", "cancel", "--all", "--yes") == ("1 cancelled\n", "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["retry"], "retry which jobs"),
        (["cancel", "--yes"], "cancel which jobs"),
        (["discard", "--all", "--id", "a"], "discard which jobs"),
        (["retry", "--all", "--prefix", "n"], "retry which jobs"),
        (["show"], "show needs --id"),
        (["show", "--id", "nobody"], "no such job"),
        (["retry", "--id", "nobody"], "no such job"),
        (["list", "--queue", "nowhere"], "there is no queue 'nowhere'. Known queues: default"),
        (["retry", "--all", "--limit", "0"], "above 0"),
        (["discard", "--all", "--per-second", "5"], "per-second is for retry"),
        (["discard", "--all", "--delay", "5"], "delay is for retry"),
        (["cancel", "--all", "--replace"], "replace is for retry"),
        (["retry", "--id", "a", "--per-second", "5"], "needs --all or conditions, without --limit"),
        (["retry", "--all", "--limit", "1", "--per-second", "5"], "needs --all or conditions, without --limit"),
        (["list", "--id", "a", "--task", "n"], "leave the conditions out"),
        (["discard", "--id-from", "b", "--id-to", "a"], "exchange id_from and id_to"),
        (["discard", "--text", ""], "The text is empty"),
        (["list", "--buried-from", "5 weeks"], "'5 weeks' is no moment"),
        (["cancel", "--due-from", "2030-01-01T00:00:00", "--yes"], "has no time zone"),
        (["list", "--failures", "-1"], "not a number of failures of 0 or more"),
        (["list", "--failures", "2", "--failures-to", "1"], "exchange failures and failures_to"),
        (["run", "--place", "morgue", "--all", "--yes"], "one of these places: waiting"),
    ],
)
def test_what_makes_no_sense_is_refused(delayq: Broker, words: list[str], text: str) -> None:
    stage.ended(delayq, stage.buried, "a")
    with pytest.raises(CommandError, match=text):
        run(*words)
    assert delayq.inspector.counts("default").morgue == 1


def test_the_help_names_the_button_that_does_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("delayq_jobs", "--help")
    assert "with --all this is the admin's Purge" in " ".join(capsys.readouterr().out.split())
