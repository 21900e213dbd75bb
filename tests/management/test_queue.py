"""delayq_queue, and what delayq_jobs and delayq_status say of many jobs and of paused and limited queues."""

from __future__ import annotations

import io
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import connections, schedule
from django_delayq.core import layouts
from django_delayq.core.broker import Broker
from django_delayq.core.errors import QueueFull, QueuePaused
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury, fail
from tests.app.deeds import note

pytestmark = pytest.mark.django_db(transaction=True)


def run(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


def told(command: str, *arguments: str) -> Any:
    return json.loads(run(command, *arguments, "--json"))


def settled(broker: Broker, how: Any, n: int) -> None:
    queue = broker.queue("default")
    queue.schedule_many(NewJob(f"j{number}", "deeds.note") for number in range(n))
    jobs = queue.reserve(0, 250, worker="w").jobs
    assert len(jobs) == n
    assert all(queue.settle([how(job) for job in jobs]))


def failed(broker: Broker, n: int) -> None:
    settled(broker, lambda job: fail(job, 1, 2, delay_ms=60_000), n)


def in_morgue(broker: Broker, n: int) -> None:
    settled(broker, lambda job: bury(job, 1, 2, reason="exhausted"), n)


def places(broker: Broker) -> dict[str, int]:
    counts = broker.inspector.counts("default")
    names = ("delayed", "ready", "reserved", "failed", "morgue")
    return {name: getattr(counts, name) for name in names if getattr(counts, name)}


# --- pause, resume


def test_a_queue_is_paused_and_resumed(delayq: Broker) -> None:
    schedule(note, "1")
    assert run("delayq_queue", "pause", "default", "--in").strip() == "default is paused: new jobs are refused"
    with pytest.raises(QueuePaused):
        schedule(note, "2")
    assert told("delayq_queue", "pause", "default", "--out") == {
        "queue": "default",
        "paused": "both",
        "paused_until": {},
    }
    assert delayq.queue("default").reserve(0, 1, worker="w").jobs == []
    assert run("delayq_queue", "resume", "default", "--in").strip() == "default is paused: no jobs are started"
    schedule(note, "2")
    assert run("delayq_queue", "resume", "default").strip() == "default is not paused"
    assert len(delayq.queue("default").reserve(0, 10, worker="w").jobs) == 2


# --- many jobs


def test_all_delayed_jobs_are_made_due_now(delayq: Broker) -> None:
    for number in range(5):
        schedule(note, str(number), delay=60)
    assert run("delayq_jobs", "run", "--all", "--queue", "default", "--yes").strip() == "5 moved"
    assert places(delayq) == {"ready": 5}
    assert run("delayq_jobs", "run", "--all", "--queue", "default", "--yes").strip() == "nothing to do"


def test_failed_jobs_are_killed_or_deleted(delayq: Broker) -> None:
    failed(delayq, 3)
    schedule(note, "never failed", delay=60)
    assert told("delayq_jobs", "bury", "--all", "--queue", "default", "--yes") == {"killed": 3}
    assert places(delayq) == {"delayed": 1, "morgue": 3}
    failed(delayq, 2)
    assert (
        run("delayq_jobs", "discard", "--place", "failed", "--all", "--queue", "default", "--yes").strip()
        == "2 deleted"
    )
    assert places(delayq) == {"delayed": 1, "morgue": 3}


def test_all_waiting_jobs_are_cancelled(delayq: Broker) -> None:
    for number in range(3):
        schedule(note, str(number), delay=number * 60)
    assert run("delayq_jobs", "cancel", "--all", "--queue", "default", "--yes").strip() == "3 cancelled"
    assert places(delayq) == {}


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
    failed(delayq, 2)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(CommandError, match="repeat the command with --yes"):
        run(*words)
    answers = Terminal("no\n\ny\n")
    monkeypatch.setattr("sys.stdin", answers)
    for _ in range(2):
        with pytest.raises(CommandError, match="not confirmed, so nothing was changed"):
            run(*words)
    assert places(delayq) == {"delayed": 2, "failed": 2}
    if words[1] != "delete":
        out, err = StringIO(), StringIO()
        call_command(*words, stdout=out, stderr=err, no_color=True)
        assert " 2 " in err.getvalue().partition("?")[0]
        assert err.getvalue().partition("?")[2] == " [y/N] "
        assert out.getvalue().startswith("2 ")
        assert places(delayq) != {"delayed": 2, "failed": 2}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(delayq: Broker) -> None:
    for number in range(3):
        schedule(note, str(number), delay=60)
    out, watched = StringIO(), Terminal()
    words = ("delayq_jobs", "cancel", "--all", "--queue", "default", "--yes", "--json")
    call_command(*words, stdout=out, stderr=watched, no_color=True)
    assert json.loads(out.getvalue()) == {"cancelled": 3}
    assert "100% 3/3 jobs" in watched.getvalue()
    schedule(note, "4", delay=60)
    out, piped = StringIO(), StringIO()
    call_command(*words, stdout=out, stderr=piped)
    assert (json.loads(out.getvalue()), piped.getvalue()) == ({"cancelled": 1}, "")


# --- delete


@pytest.mark.django_db(transaction=True)
def test_a_queue_with_jobs_is_deleted_only_by_force(delayq: Broker) -> None:
    schedule(note, "1", delay=60)
    with pytest.raises(CommandError, match="delete it with --force"):
        run("delayq_queue", "delete", "default", "--yes")
    assert run("delayq_queue", "delete", "default", "--yes", "--force").strip() == "1 deleted"
    assert delayq.queue_names() == []
    with pytest.raises(CommandError, match="Known queues: none yet"):
        run("delayq_queue", "delete", "default", "--yes")


@pytest.mark.parametrize("action", ["pause", "resume", "run", "cancel", "bury", "retry", "discard", "delete"])
def test_a_queue_that_is_not_there_is_not_made(delayq: Broker, action: str) -> None:
    schedule(note, "1")
    of_queue = action in ("pause", "resume", "delete")
    words = ("delayq_queue", action, "nowhere") if of_queue else ("delayq_jobs", action, "--queue", "nowhere", "--all")
    with pytest.raises(CommandError, match="there is no queue 'nowhere'"):
        run(*words)
    assert delayq.queue_names() == ["default"]


# --- list, status


def test_every_queue_is_listed_with_what_is_ordered_for_it(delayq: Broker) -> None:
    assert run("delayq_queue", "list").strip() == "No queue yet: nothing was ever scheduled."
    in_morgue(delayq, 2)
    schedule(note, "1")
    delayq.queue("raw", kind="pull", shards=3)
    delayq.limit("default", max_length=100, morgue_max=10, morgue_ttl=86_400, priorities="weighted")
    delayq.limit("default", starve_after=90)
    delayq.pause("raw", "in")
    assert told("delayq_queue", "list") == [
        {
            "queue": "default",
            "kind": "python",
            "paused": "",
            "shards": 1,
            "priorities": "weighted",
            "starve_after": 90.0,
            "jobs": 1,
            "max_length": 100,
            "morgue": 2,
            "morgue_max": 10,
            "morgue_ttl": 86400.0,
        },
        {
            "queue": "raw",
            "kind": "pull",
            "paused": "in",
            "shards": 3,
            "priorities": "strict",
            "starve_after": None,
            "jobs": 0,
            "max_length": None,
            "morgue": 0,
            "morgue_max": None,
            "morgue_ttl": None,
        },
    ]
    lines = [line.split() for line in run("delayq_queue", "list").splitlines()]
    assert lines[1] == ["default", "python", "-", "1", "weighted", "1m30s", "1", "100", "2", "10", "1d00h"]
    assert lines[2] == ["raw", "pull", "in", "3", "strict", "-", "0", "-", "0", "-", "-"]


@pytest.mark.django_db(transaction=True)
def test_status_tells_what_is_paused_and_limited(delayq: Broker) -> None:
    schedule(note, "1")
    (queue,) = told("delayq_status")["queues"]
    assert (queue["paused"], queue["limits"]) == ("", {})
    assert "rules" not in run("delayq_status")
    delayq.limit("default", max_length=5, priorities="weighted")
    delayq.pause("default", "out")
    (queue,) = told("delayq_status")["queues"]
    assert (queue["paused"], queue["limits"]) == ("out", {"max_length": 5, "priorities": "weighted"})
    lines = run("delayq_status").splitlines()
    assert lines[3].endswith("rules")
    assert lines[4].endswith("paused out, max_length 5, priorities weighted")


@pytest.mark.django_db
def test_t46_commands_that_only_look_change_nothing(delayq: Broker) -> None:
    in_morgue(delayq, 2)
    schedule(note, "1", delay=60)
    before = sorted((key, delayq.client.dump(key)) for key in delayq.client.scan_iter("*"))
    for command in (
        ["delayq_queue", "list"],
        ["delayq_status"],
        ["delayq_jobs"],
        ["delayq_jobs", "list", "--place", "morgue"],
    ):
        run(*command)
        run(*command, "--json")
    assert sorted((key, delayq.client.dump(key)) for key in delayq.client.scan_iter("*")) == before


# --- limits in the settings


def test_the_limits_of_the_settings_are_in_force_and_may_be_changed_there(delayq: Broker, settings: Any) -> None:
    schedule(note, "1")
    settings.DELAYQ = {
        **settings.DELAYQ,
        "QUEUES": {"default": {"max_length": 2, "morgue_max": 7, "morgue_ttl": 1.5, "starve_after": 60}},
    }
    connections.close_broker()
    schedule(note, "2")
    with pytest.raises(QueueFull, match="max_length"):
        schedule(note, "3")
    layout = connections.broker().queue("default").layout
    assert layouts.queue_policy(layout)["limits"] == {
        "max_length": 2,
        "morgue_max": 7,
        "morgue_ttl": 1.5,
        "starve_after": 60,
    }
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    connections.close_broker()
    schedule(note, "3")
    assert layouts.queue_policy(connections.broker().queue("default").layout) == {
        "paused": "",
        "until": {},
        "limits": {},
    }


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


# --- the morgue


def test_a_whole_morgue_is_retried_at_a_pace(delayq: Broker) -> None:
    in_morgue(delayq, 100)
    assert told("delayq_jobs", "retry", "--all", "--delay", "60", "--per-second", "10") == {"retried": 100}
    dues = sorted(view.due_ms for view in delayq.inspector.page("default", "waiting", limit=250).jobs)
    assert [due - dues[0] for due in dues] == [100 * n for n in range(100)]
    assert dues[0] > delayq.now_ms() + 30_000


def test_only_what_lies_in_the_morgue_for_long_is_discarded(delayq: Broker) -> None:
    in_morgue(delayq, 3)
    assert run("delayq_jobs", "discard", "--yes", "--buried-before", "3600").strip() == "nothing to do"
    before = delayq.now_ms()
    while delayq.now_ms() <= before + 2:
        pass
    assert run("delayq_jobs", "discard", "--yes", "--buried-before", "0.001s").strip() == "3 discarded"
    assert places(delayq) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["discard", "--all", "--per-second", "5"],
        ["discard", "--all", "--delay", "5"],
        ["cancel", "--all", "--replace"],
        ["retry", "--all", "--cursor", "default/morgue:x"],
        ["retry", "--id", "j0", "--per-second", "5"],
        ["retry", "--all", "--limit", "1", "--per-second", "5"],
    ],
)
def test_what_makes_no_sense_for_the_morgue_is_refused(delayq: Broker, arguments: list[str]) -> None:
    in_morgue(delayq, 1)
    with pytest.raises(CommandError, match=r"needs --all or conditions, without --limit|is for (retry|list)"):
        run("delayq_jobs", *arguments)
    assert places(delayq) == {"morgue": 1}


# --- options beside the subcommand


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "list"],
        ["list", "--json"],
        ["list", "--json", "--yes"],
        ["--yes", "list", "--json"],
        ["-v", "0", "list", "--json", "--traceback"],
        ["list", "--verbosity", "0", "--json", "--settings", "tests.settings", "--no-color"],
    ],
)
def test_common_options_stand_before_and_after_the_subcommand(delayq: Broker, words: list[str]) -> None:
    schedule(note, "x", delay=60)
    out = StringIO()
    call_command("delayq_queue", *words, stdout=out, stderr=StringIO())
    assert [queue["queue"] for queue in json.loads(out.getvalue())] == ["default"]


def test_the_help_names_the_button_that_does_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("delayq_jobs", "--help")
    assert "with --all this is the admin's Purge" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [["--yes", "delete", "default"], ["delete", "default", "--yes"]])
def test_a_yes_counts_on_both_sides(delayq: Broker, words: list[str]) -> None:
    delayq.queue("default")
    with pytest.raises(CommandError, match="repeat the command with --yes"):
        call_command("delayq_queue", "delete", "default", stdout=StringIO(), stderr=StringIO())
    call_command("delayq_queue", *words, stdout=StringIO(), stderr=StringIO())
    assert delayq.queue_names() == []


@pytest.mark.parametrize(
    "words", [["--json", "status"], ["status", "--json"], ["status", "-v", "0", "--json", "--traceback"]]
)
@pytest.mark.django_db
def test_the_pipelines_subcommands_take_them_too(delayq: Broker, words: list[str]) -> None:
    out = StringIO()
    call_command("delayq_pipeline", *words, stdout=out, stderr=StringIO())
    told = json.loads(out.getvalue())
    assert (told["last_run"], told["queues"], told["events"]["rows"]) == (None, [], 0)
