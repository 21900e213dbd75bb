"""The report of a snapshot as lines of text, and the warnings in it."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core.counts import Counts
from django_delayq.core.figures import TOTAL, DepthPoint
from django_delayq.status import (
    QueueStatus,
    RedisStatus,
    RunningJob,
    Snapshot,
    UnreachablePart,
    WorkerStatus,
    warnings_of,
)
from django_delayq.status.report import report

from .conftest import T0

REDIS = RedisStatus("7.4.1", used_memory=3 * 2**20, aof=True, maxmemory_policy="noeviction")


@pytest.fixture
def drawn() -> Snapshot:
    """Two queues, one of them paused, and two workers, one of them lost."""
    places = {"ready": 2, "delayed": 40, "reserved": 3, "failed": 1, "morgue": 9, "backlog": (2, 30, 10)}
    counters = {"acked": 250, "failed": 10}
    orders = Counts("orders", T0, **places, oldest_due_ms_of={4: T0 - 2500}, counters=counters)
    mails = Counts("mails\x1b[2J", T0, delayed=5, backlog=(0, 0, 5))
    jobs = (
        RunningJob(1, "orders", "id-1", "shop.pay", T0 - 4000),
        RunningJob(2, "orders", "id-2\n", "shop.sync", T0 - 90_000, 3),
    )
    sample = DepthPoint(int(T0 - 20_000), p50_ms=5.0, p99_ms=990.0)
    queues = (
        QueueStatus("mails\x1b[2J", "python", mails, 1, 0, paused="out"),
        QueueStatus("orders", "python", orders, 4, 0),
    )
    lost = WorkerStatus("box:2", T0, 99, threads=5, running=1, jobs=jobs)
    busy = {"threads": 5, "running": 2, "rss_mib": 80, "dispatcher": True, "jobs": jobs}
    workers = (WorkerStatus("box:1", T0, 0.4, queues=("orders", "mails"), **busy), lost)
    return Snapshot(T0, queues, workers, REDIS, samples={TOTAL: sample, "orders": sample})


def test_a_report_shows_what_the_dashboard_shows(drawn: Snapshot) -> None:
    assert report(drawn) == [
        "22:13:20 UTC  Redis 7.4.1, 3.0\xa0MB used, AOF",
        "lag 2 s  busy 2/5  delayed 45  ready 2  reserved 3  gated 0  failed 1  morgue 9  done 12.5/s  failing 0.5/s  "
        "late p50 5 ms  late p99 990 ms",
        "",
        "queue         delayed  ready  reserved  gated  failed  morgue  lag    done  failing  late p50  late p99"
        "       rules",
        "mails\\x1b[2J        5      0         0      0       0       0  0 s       –        –         –         –"
        "  paused out",
        "orders             40      2         3      0       1       9  2 s  12.5/s    0.5/s      5 ms    990 ms",
        "",
        "next hour: 30 due, 15 later, 2 ready now",
        "",
        "WARN  pauses: Queue mails\\x1b[2J is paused and starts no jobs. Resume: manage.py delayq_queue resume "
        "mails\\x1b[2J",
        "WARN  workers: No heartbeat for a while from: box:2",
        "",
        "box:1  orders, mails  busy 2/5  80 MiB  dispatcher  0 s ago",
        "  #1 4 s  shop.pay id-1  orders",
        "  #2 1 min 30 s  shop.sync id-2\\n and 2 more  orders",
        "box:2  busy 1/5  lost",
    ]


def test_jobs_and_workers_in_quarantine_are_named() -> None:
    queues = tuple(
        QueueStatus(name, "python", Counts(name, T0, quarantine=number), 1, 0)
        for name, number in (("crm", 2), ("mails", 0), ("orders", 1))
    )
    worker = WorkerStatus("box:3", T0, 0.4, threads=1, running=1, quarantine=True, payload={"threads": 1, "running": 1})
    lines = report(Snapshot(T0, queues, (worker,), REDIS))
    assert (
        "INFO  quarantine: Jobs of crm (2), orders (1) wait to run alone in a process, because their last one died "
        "while running them."
    ) in lines
    assert "box:3  busy 1/1  quarantine  0 s ago" in lines


def test_nothing_is_reported_in_words() -> None:
    lines = report(Snapshot(T0, redis=REDIS))
    assert "No queue yet: nothing was ever scheduled." in lines
    assert "No worker is running. Start one: manage.py delayq_worker" in lines


def test_without_a_registry_nothing_is_said_of_queues_and_workers() -> None:
    lines = report(Snapshot(T0, redis=REDIS, unreachable=(UnreachablePart("0-99", registry=True),)))
    assert lines[2:] == [
        "",
        "ERROR connection: 0-99: no answer; missing here: the registry of queues and workers",
    ]


# -- warnings ----------------------------------------------------------------------------------------------------------


def test_warnings_say_what_to_do() -> None:
    def said(**redis: Any) -> list[tuple[str, str]]:
        status = RedisStatus(**{"aof": True, "maxmemory_policy": "noeviction", **redis})
        return [(one.level, one.text) for one in warnings_of(Snapshot(0.0, redis=status))]

    assert said() == []
    for redis, level, text in (
        ({"aof": False}, "WARN", "appendonly yes"),
        ({"aof_ok": False}, "ERROR", "check if its disk is full"),
        ({"rdb_ok": False}, "WARN", "could not write its last snapshot"),
        ({"maxmemory_policy": "allkeys-lru"}, "ERROR", "noeviction"),
        ({"role": "replica"}, "ERROR", "replica"),
        ({"loading": True}, "WARN", "loading"),
    ):
        ((found, sentence),) = said(**redis)
        assert (found, text in sentence) == (level, True)
    assert said(maxmemory=1000, used_memory=950) == [
        ("WARN", "95 % of Redis's memory limit is used: new jobs are refused when it is full.")
    ]
    assert said(maxmemory=1000, used_memory=900) == said(used_memory=900) == []


def waiting(lag: float, *workers: WorkerStatus, **queue: Any) -> list[tuple[str, str]]:
    """Return levels and texts of the warnings about a queue with a job that has been due for so long."""
    counts = Counts("orders", T0, ready=1, oldest_due_ms_of={4: T0 - lag * 1000})
    status = QueueStatus("orders", queue.pop("kind", "python"), counts, 1, 0, **queue)
    return [(one.level, one.text) for one in warnings_of(Snapshot(T0, (status,), workers, REDIS))]


def test_due_jobs_without_a_worker_are_a_warning_and_an_error_once_they_are_overdue() -> None:
    alone = "Jobs are due and no worker is running. Start: manage.py delayq_worker"
    overdue = ("WARN", "Queue orders: 1 jobs are due, the oldest for 31 s.")
    alive = WorkerStatus("w", T0, 0.4, queues=("mail",), threads=1)
    assert waiting(1) == [("WARN", alone)]
    assert waiting(31) == [("ERROR", alone), overdue]
    assert waiting(31, alive) == [overdue]
    assert waiting(31, kind="pull") == [overdue]
    assert waiting(31, paused="out", paused_until={"out": int(T0) + 5}) == []
