"""delayq_status, delayq_check, delayq_jobs and delayq_fsck on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.core import bulk
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.outcomes import bury, fail
from django_delayq.status.formatting import duration, printable, table
from tests.app.deeds import note, rest, send, sync
from tests.support.redis_box import RedisBox


def run(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def in_morgue(broker: Broker, *ids: str, error_class: str = "ValueError") -> None:
    """Bury jobs, in this order."""
    queue = broker.queue("default")
    for ident in ids:
        schedule(note, f"text of {ident}", id=ident)
        (job,) = queue.reserve(queue.shard_of(ident), 10, worker="w").jobs
        error = json.dumps({"message": f"no {ident}\x1b[31m", "traceback": "Traceback\n  line"}).encode()
        queue.settle([bury(job, 0, 5, reason="exhausted", outcome="exhausted", error_class=error_class, error=error)])


# --- status


@pytest.mark.django_db(transaction=True)
def test_status_counts_every_place(delayq: Broker) -> None:
    in_morgue(delayq, "dead")
    schedule(note, "later", delay=60)
    schedule(note, "now")
    delayq.queue("default").reserve(0, 1, worker="w")
    schedule(rest)
    said = json.loads(run("delayq_status", "--json"))
    by_name = {queue["name"]: queue for queue in said["queues"]}
    assert set(by_name) == {"default", "naps"}
    places = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
    assert {place: by_name["default"][place] for place in places} == {
        "delayed": 1,
        "ready": 0,
        "reserved": 1,
        "gated": 0,
        "failed": 0,
        "morgue": 1,
    }
    assert by_name["naps"]["ready"] == 1
    assert by_name["default"]["lag_seconds"] == 0
    assert said["workers"] == []
    assert said["redis"]["mode"] == ("cluster" if delayq.connection.cluster else "standalone")
    assert {place: said["totals"][place] for place in places} == {
        place: by_name["default"][place] + by_name["naps"][place] for place in places
    }


@pytest.mark.django_db(transaction=True)
def test_status_is_a_table_for_people(delayq: Broker) -> None:
    assert "No queue yet" in run("delayq_status")
    schedule(note, "later", delay=60)
    delayq.announce("host:1:\x1b[2J", {"queues": ["default"], "threads": 5, "running": 2})
    lines = run("delayq_status").splitlines()
    assert " UTC  Redis " in lines[0]
    assert lines[3].split() == ["queue", "delayed", "ready", "reserved", "gated", "failed", "morgue", "lag", "done"]
    assert lines[4].split() == ["default", "1", "0", "0", "0", "0", "0", "0.0s", "0"]
    assert any(line.split() == ["host:1:\\x1b[2J", "default", "busy", "2/5", "0.0s", "ago"] for line in lines)


def test_numbers_for_people() -> None:
    seconds = (0.04, 12, 310, 3 * 3600 + 60, 4 * 86400 + 3600)
    assert [duration(one) for one in seconds] == ["0.0s", "12s", "5m10s", "3h01m", "4d01h"]
    assert printable("a\x1b[0m\nb" + "x" * 100, 8) == "a\\x1b[0m\\nbx…"
    assert table(("name", "n"), [("a", 1), ("long name", 100)]) == [
        "name         n",
        "a            1",
        "long name  100",
    ]


# --- morgue


def test_the_morgue_is_listed_newest_first(delayq: Broker) -> None:
    morgue = ("delayq_jobs", "list", "--place", "morgue")
    assert run(*morgue).strip() == "no job found"
    in_morgue(delayq, "a", "b", "c")
    rows = [line.split() for line in run(*morgue, "--limit", "2").splitlines()]
    assert [row[:4] + row[5:8] for row in rows[1:3]] == [
        ["default", "morgue", "c", "deeds.note", "1", "exhausted", "ValueError"],
        ["default", "morgue", "b", "deeds.note", "1", "exhausted", "ValueError"],
    ]
    listed = json.loads(run(*morgue, "--json", "--id", "a"))
    assert [(one["id"], one["reason"], one["error_class"]) for one in listed] == [("a", "exhausted", "ValueError")]


def test_the_list_of_the_morgue_shows_classes_of_errors_without_their_module(delayq: Broker) -> None:
    in_morgue(delayq, "a", error_class="a.long.path.to.the.project.NotPayable")
    _, row = run("delayq_jobs").splitlines()
    assert row.split()[7] == "NotPayable"


def test_a_buried_job_is_shown_whole_and_harmless_to_a_terminal(delayq: Broker) -> None:
    in_morgue(delayq, "a")
    shown = run("delayq_jobs", "show", "--id", "a")
    assert "text of a" in shown
    assert "no a\\x1b[31m" in shown
    assert "Traceback" in shown
    (told,) = json.loads(run("delayq_jobs", "show", "--id", "a", "--json"))
    assert (told["args"], told["kwargs"], told["error"]["class"]) == (["text of a"], {}, "ValueError")


def test_secrets_of_a_buried_job_are_masked_unless_they_are_asked_for(delayq: Broker) -> None:
    queue = delayq.queue("default")
    schedule(send, "hunter2", id="a", api_key="hunter2", context={"token": "hunter2"})
    (job,) = queue.reserve(queue.shard_of("a"), 10, worker="w").jobs
    trace = "after KeyError:\n    pass: hunter2\n"
    record = json.dumps({"message": "token=hunter2", "traceback": trace, "order": {"pin": "hunter2"}}).encode()
    queue.settle([bury(job, 0, 5, reason="jwt=hunter2", outcome="exhausted", error_class="ValueError", error=record)])
    show = ("show", "--id", "a")
    for words in (["list"], ["list", "--json"], show, (*show, "--json")):
        assert "hunter2" not in run("delayq_jobs", *words)
    assert run("delayq_jobs", *show, "--show-secrets").count("hunter2") == 7
    (told,) = json.loads(run("delayq_jobs", *show, "--json", "--show-secrets"))
    assert (told["args"], told["options"]["context"]) == (["hunter2"], {"token": "hunter2"})


def test_jobs_are_retried_or_discarded_one_by_one_or_all(delayq: Broker) -> None:
    in_morgue(delayq, "a", "b", "c", "d")
    assert run("delayq_jobs", "retry", "--id", "a", "--delay", "60").strip() == "1 retried"
    assert run("delayq_jobs", "discard", "--id", "b", "--queue", "default").strip() == "1 discarded"
    assert run("delayq_jobs", "retry", "--all", "--limit", "1").strip() == "1 retried"
    with pytest.raises(CommandError, match=r"Delete 1 morgue jobs of all queues, for good\? .*with --yes"):
        run("delayq_jobs", "discard", "--all")
    assert len(delayq.inspector.page("default", "morgue").jobs) == 1, "nobody said yes"
    assert run("delayq_jobs", "discard", "--all", "--yes").strip() == "1 discarded"
    counts = delayq.inspector.counts("default")
    assert (counts.delayed, counts.ready, counts.morgue) == (1, 1, 0)


def test_a_live_job_of_the_same_id_is_not_overwritten_by_accident(delayq: Broker) -> None:
    in_morgue(delayq, "a")
    schedule(note, "new life", id="a", delay=60)
    with pytest.raises(CommandError, match="1 of the jobs stay in the morgue"):
        run("delayq_jobs", "retry", "--all")
    assert run("delayq_jobs", "retry", "--all", "--replace").strip() == "1 retried"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["retry"], "retry which jobs"),
        (["discard", "--all", "--id", "a"], "discard which jobs"),
        (["show"], "show needs --id"),
        (["show", "--id", "nobody"], "no such job"),
        (["retry", "--id", "nobody"], "no such job"),
        (["list", "--queue", "nowhere"], "there is no queue 'nowhere'. Known queues: default"),
        (["retry", "--all", "--limit", "0"], "above 0"),
    ],
)
def test_what_the_morgue_does_not_understand_it_says(delayq: Broker, arguments: list[str], text: str) -> None:
    in_morgue(delayq, "a")
    with pytest.raises(CommandError, match=text):
        run("delayq_jobs", *arguments)
    assert delayq.inspector.counts("default").morgue == 1


def test_the_morgue_shows_the_payloads_of_a_merged_job_and_whatever_is_known_of_its_error(delayq: Broker) -> None:
    schedule(sync, id=5, payload={"name": "Ann"}, score=2)
    queue = delayq.queue(sync.options.queue)
    (job,) = queue.reserve(queue.shard_of("5"), 10, worker="w").jobs
    error = json.dumps({"class": "Refused", "message": "no", "hint": "ask the \x1b[31mbank"}).encode()
    queue.settle([bury(job, 0, 5, reason="exhausted", outcome="exhausted", error_class="Refused", error=error)])
    shown = run("delayq_jobs", "show", "--id", "5")
    assert "{'name': 'Ann'}" in shown and "args" not in shown
    assert "hint" in shown and "ask the \\x1b[31mbank" in shown
    (told,) = json.loads(run("delayq_jobs", "show", "--id", "5", "--json"))
    assert told["payloads"] == [{"payload": {"name": "Ann"}, "score": "2"}] and "args" not in told


def test_the_morgue_lists_the_error_of_a_job_that_somebody_killed(delayq: Broker) -> None:
    schedule(note, "text", id="a")
    queue = delayq.queue("default")
    (job,) = queue.reserve(queue.shard_of("a"), 10, worker="w").jobs
    error = json.dumps({"class": "GatewayDown", "message": "no"}).encode()
    queue.settle([fail(job, 0, 5, delay_ms=60_000, error_class="GatewayDown", error=error)])
    assert bulk.change(queue, bulk.KILL_FAILED).counts == {"killed": 1}
    assert "GatewayDown" in run("delayq_jobs")


# --- check and fsck


def levels(*arguments: str) -> dict[str, list[tuple[str, str]]]:
    out = StringIO()
    try:
        call_command("delayq_check", "--json", *arguments, stdout=out, stderr=out)
    except CommandError as error:
        failed = str(error)
    else:
        failed = ""
    found: dict[str, list[tuple[str, str]]] = {"failed": [(failed, "")] if failed else []}
    for one in json.loads(out.getvalue()):
        found.setdefault(one["what"], []).append((one["level"], one["text"]))
    return found


@pytest.mark.django_db
def test_check_finds_a_healthy_deployment_healthy(redis_factory: Callable[..., RedisBox], settings: Any) -> None:
    settings.DELAYQ = {"REDIS": redis_factory(aof="everysec").url}
    lines = run("delayq_check").splitlines()
    assert [line.split()[0] for line in lines] == ["OK"] * len(lines)
    assert {line.split()[1].rstrip(":") for line in lines} == {
        "settings",
        "database",
        "outbox",
        "connection",
        "version",
        "persistence",
        "eviction",
        "scripts",
        "shards",
        "clock",
        "tasks",
        "limits",
        "morgue",
        "workers",
        "idle",
        "pauses",
    }


@pytest.mark.django_db
def test_check_names_what_endangers_jobs(redis_factory: Callable[..., RedisBox], settings: Any) -> None:
    settings.DELAYQ = {"REDIS": redis_factory(maxmemory_policy="allkeys-lru").url}
    found = levels()
    assert found["persistence"][0][0] == "WARN"
    assert found["eviction"][0][0] == "ERROR"
    assert "allkeys-lru deletes jobs" in found["eviction"][0][1]
    assert found["failed"] == [("1 error, 1 warning", "")]


@pytest.mark.django_db
def test_check_finds_jobs_without_a_task(delayq: Broker) -> None:
    delayq.queue("default").schedule(NewJob("1", "gone.task", delay_ms=60_000))
    found = levels("--fail-level", "warning")
    ((level, text),) = found["tasks"]
    assert level == "WARN"
    assert "'gone.task'" in text
    assert found["failed"]
    assert levels()["failed"] == []


@pytest.mark.django_db
def test_check_warns_when_jobs_are_held_and_nobody_would_take_them_back(delayq: Broker) -> None:
    queue = delayq.queue("default")
    queue.schedule(NewJob("1", "task"))
    assert queue.reserve(0, 1, worker="w").jobs
    ((level, text),) = levels()["workers"]
    assert (level, "no dispatcher is running" in text) == ("WARN", True)
    delayq.announce("w", {"dispatcher": True})
    assert [level for level, _ in levels()["workers"]] == ["OK"]


@pytest.mark.django_db
def test_check_without_redis_says_so_and_fails(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://127.0.0.1:1/0"}
    found = levels()
    assert found["connection"][0][0] == "ERROR"
    assert "scripts" not in found
    assert found["failed"]


def test_commands_without_redis_fail_with_one_clear_line(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://127.0.0.1:1/0"}
    for command in ("delayq_status", "delayq_jobs", "delayq_fsck"):
        with pytest.raises(CommandError, match="Is Redis running"):
            run(command)


@pytest.mark.broken_on_purpose
def test_fsck_finds_and_mends(delayq: Broker) -> None:
    schedule(note, "1", id="a", delay=60)
    schedule(note, "2", id="b", delay=60)
    assert run("delayq_fsck").strip().endswith("0 violations, 0 repaired")
    delayq.client.hdel(delayq.queue("default").shard(0).names["body"], "a")
    with pytest.raises(CommandError, match="run the command again with --repair"):
        run("delayq_fsck", "--queues", "default")
    repaired = json.loads(run("delayq_fsck", "--repair", "--json"))
    assert repaired["repaired"] == len(repaired["violations"]) > 0
    assert run("delayq_fsck").strip().endswith("0 violations, 0 repaired")
    with pytest.raises(CommandError, match="there is no queue 'nowhere'"):
        run("delayq_fsck", "--queues", "nowhere")
