"""delayq_status, delayq_check and delayq_fsck on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.status.formatting import duration, printable, table
from tests.app.deeds import note
from tests.management.stage import run, told
from tests.support.redis_box import RedisBox

# --- status


@pytest.mark.django_db(transaction=True)
def test_status_is_a_table_for_people(delayq: Broker) -> None:
    assert "No queue yet" in run("delayq_status")
    schedule(note, "later", delay=60)
    delayq.announce("host:1:\x1b[2J", {"queues": ["default"], "threads": 5, "running": 2})
    lines = run("delayq_status").splitlines()
    assert " UTC  Redis " in lines[0]
    assert lines[3].split() == ["queue", "delayed", "ready", "reserved", "gated", "failed", "morgue", "lag", "done"]
    assert lines[4].split() == ["default", "1", "0", "0", "0", "0", "0", "0", "s", "0"]
    assert any(line.split() == ["host:1:\\x1b[2J", "default", "busy", "2/5", "0", "s", "ago"] for line in lines)


def test_numbers_for_people() -> None:
    seconds = (0.04, 12, 310, 3 * 3600 + 60, 4 * 86400 + 3600)
    assert [duration(one) for one in seconds] == ["0 s", "12 s", "5 min 10 s", "3 h 1 min", "4 d 1 h"]
    assert printable("a\x1b[0m\nb" + "x" * 100, 8) == "a\\x1b[0m\\nbx…"
    assert table({"name": name, "none": "", "n": n} for name, n in (("a\x1b", None), ("long name", 100))) == [
        "name         n",
        "a\\x1b        –",
        "long name  100",
    ]
    assert table([]) == []


# --- check and fsck


def levels(*arguments: str) -> dict[str, list[tuple[str, str]]]:
    out, found = StringIO(), dict[str, list[tuple[str, str]]](failed=[])
    try:
        call_command("delayq_check", "--json", *arguments, stdout=out)
    except CommandError as error:
        found["failed"] = [(str(error), "")]
    for one in json.loads(out.getvalue()):
        found.setdefault(one["what"], []).append((one["level"], one["text"]))
    return found


@pytest.mark.django_db
def test_check_finds_a_healthy_deployment_healthy(redis_factory: Callable[..., RedisBox], settings: Any) -> None:
    settings.DELAYQ = {"REDIS": redis_factory(aof="everysec").url}
    lines = run("delayq_check").splitlines()
    assert [line.split()[0] for line in lines] == ["OK"] * len(lines)
    checks = "settings database outbox connection version persistence eviction scripts shards clock tasks limits morgue"
    assert {line.split()[1].rstrip(":") for line in lines} == {*checks.split(), "workers", "idle", "pauses"}


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
    assert run("delayq_fsck").endswith("0 violations, 0 repaired")
    delayq.client.hdel(delayq.queue("default").shard(0).names["body"], "a")
    with pytest.raises(CommandError, match="run the command again with --repair"):
        run("delayq_fsck", "--queues", "default")
    repaired = told("delayq_fsck", "--repair")
    assert repaired["repaired"] == len(repaired["violations"]) > 0
    assert run("delayq_fsck").endswith("0 violations, 0 repaired")
    with pytest.raises(CommandError, match="there is no queue 'nowhere'"):
        run("delayq_fsck", "--queues", "nowhere")
