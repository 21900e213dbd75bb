"""Drawing as lines of text, and on terminals of many sizes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from django_delayq.core.counts import Counts
from django_delayq.management.screen import draw
from django_delayq.status import Change, QueueStatus, Rates, RedisStatus, RunningJob, Snapshot, WorkerStatus
from django_delayq.status.drawing import report, server_line, spark
from django_delayq.status.json_form import human_bytes
from django_delayq.status.screen import LOOKS, Screen, Trail, backlog_line, screen

from .conftest import T0
from .test_take import lengths


def test_numbers_are_drawn_as_blocks() -> None:
    assert spark([0, 1, 4, 8]) == "▁▂▅█"
    assert spark([0, 0]) == "▁▁"
    assert spark([]) == ""
    assert spark([0.001, 1000]) == "▂█", "what is not nothing is seen"
    assert spark([1, 20], top=10) == "▂█"


def test_bytes_read_as_redis_writes_them() -> None:
    assert [human_bytes(size) for size in (5, 1536, 1.5 * 2**20, 2**30, 2**41)] == [
        "5B",
        "1.50K",
        "1.50M",
        "1.00G",
        "2.00T",
    ]


def test_what_is_wrong_with_redis_is_seen_at_once() -> None:
    redis = RedisStatus("7.4.1", used_memory=2048, aof=True, aof_ok=False, rdb_ok=False, loading=True, nodes=3)
    assert server_line(Snapshot(T0, redis=redis)) == (
        "Redis 7.4.1 on 3 nodes, 2.00K used, AOF, LOADING, AOF WRITES FAIL, SNAPSHOTS FAIL"
    )


def test_the_next_hour_is_a_line() -> None:
    assert backlog_line((3, 0, 5, 10, 7)) == "next hour: 15 due, 7 later, 3 ready now  ▁▅█"


@pytest.fixture
def drawn() -> tuple[Snapshot, Change, Trail]:
    """Two queues, one of them paused, and two workers, one of them lost."""
    orders = Counts(
        "orders",
        T0,
        ready=2,
        delayed=40,
        reserved=3,
        failed=1,
        morgue=9,
        oldest_due_ms_of={4: T0 - 2500},
        backlog=(2, 30, 10),
    )
    mails = Counts("mails\x1b[2J", T0, delayed=5, backlog=(0, 0, 5))
    jobs = (
        RunningJob(1, "orders", "id-1", "shop.pay", T0 - 4000),
        RunningJob(2, "orders", "id-2\n", "shop.sync", T0 - 90_000, 3),
    )
    snapshot = Snapshot(
        T0,
        (
            QueueStatus("mails\x1b[2J", "python", mails, 1, 0, paused="out"),
            QueueStatus("orders", "python", orders, 4, 0),
        ),
        (
            WorkerStatus(
                "box:1",
                T0,
                0.4,
                queues=("orders", "mails"),
                threads=5,
                running=2,
                rss_mib=80,
                dispatcher=True,
                jobs=jobs,
            ),
            WorkerStatus("box:2", T0, 99, threads=5, running=1, jobs=jobs),
        ),
        RedisStatus("7.4.1", used_memory=3 * 2**20, aof=True),
    )
    rates = Rates(1.0, 12.5, 0.5, lengths(5, 5, 1000, 1000), lengths(100))
    trail = Trail()
    for done in (0.0, 4.0, 12.5):
        trail.add(Change(1.0, queues={"orders": Rates(done=done), "mails\x1b[2J": Rates()}))
    return snapshot, Change(1.0, rates, {"orders": rates}), trail


def test_the_screen_shows_what_the_dashboard_shows(drawn: tuple[Snapshot, Change, Trail]) -> None:
    assert screen(*drawn).lines() == [
        "22:13:20 UTC  Redis 7.4.1, 3.00M used, AOF",
        "lag 2.5s  busy 2/5  delayed 45  ready 2  failed 1  morgue 9  done 12.5/s  failing 0.5/s  "
        "late p50 5ms  p99 990ms",
        "",
        "queue         delayed  ready  reserved  gated  failed  morgue   lag  done/s  failing/s  p50 late  p99 late"
        "  trend",
        "mails\\x1b[2J        5      0         0      0       0       0  0.0s     0.0        0.0         -         -"
        "    ▁▁▁",
        "orders             40      2         3      0       1       9  2.5s    12.5        0.5       5ms     990ms"
        "    ▁▃█",
        "",
        "mails\\x1b[2J: paused out",
        "next hour: 30 due, 15 later, 2 ready now  █",
        "",
        "box:1  orders, mails  busy 2/5  80 MiB  dispatcher  0.4s ago",
        "  #1 4.0s  shop.pay id-1  orders",
        "  #2 1m30s  shop.sync id-2\\n and 2 more  orders",
        "box:2  busy 1/5  lost",
    ]


def on_terminal(shown: Screen, width: int, height: int = 100) -> list[str]:
    """Return the lines that a terminal of this size shows."""
    console = Console(file=io.StringIO(), width=width, height=height, markup=False, highlight=False)
    lines = console.render_lines(draw(shown, console), pad=False)
    return ["".join(segment.text for segment in line if not segment.control).rstrip() for line in lines]


def test_jobs_and_workers_in_quarantine_are_named() -> None:
    queues = tuple(
        QueueStatus(name, "python", Counts(name, T0, quarantine=number), 1, 0)
        for name, number in (("crm", 2), ("mails", 0), ("orders", 1))
    )
    worker = WorkerStatus("box:3", T0, 0.4, threads=1, running=1, quarantine=True, payload={"threads": 1, "running": 1})
    snapshot = Snapshot(T0, queues, (worker,))
    line = "quarantine: 2 of crm, 1 of orders wait to run alone in a process, because they ran when one died"
    shown = screen(snapshot, Change(), Trail())
    assert line in report(snapshot) and line in shown.lines()
    assert "box:3 (quarantine)" in report(snapshot)[-1]
    assert "box:3  busy 1/1  quarantine  0.4s ago" in shown.lines()


def test_a_narrow_terminal_keeps_what_matters(drawn: tuple[Snapshot, Change, Trail]) -> None:
    lines = on_terminal(screen(*drawn), 80)
    assert lines[lines.index("") + 1 :][:5] == [
        "queue         delayed  ready  reserved  failed  morgue   lag  done/s  trend",
        "mails\\x1b[2J        5      0         0       0       0  0.0s     0.0  ▁▁▁",
        "orders             40      2         3       1       9  2.5s    12.5  ▁▃█",
        "",
        "mails\\x1b[2J: paused out",
    ]
    lines = on_terminal(screen(*drawn), 60)
    assert lines[lines.index("") + 1 :][:3] == [
        "queue         delayed  ready  reserved   lag  done/s  trend",
        "mails\\x1b[2J        5      0         0  0.0s     0.0  ▁▁▁",
        "orders             40      2         3  2.5s    12.5  ▁▃█",
    ]


def test_a_narrow_terminal_gives_up_columns_before_it_cuts_names(drawn: tuple[Snapshot, Change, Trail]) -> None:
    lines = on_terminal(screen(*drawn), 46)
    assert lines[lines.index("") + 1 :][:3] == [
        "queue      delayed  ready   lag  done/s  trend",
        "mails\\x1…        5      0  0.0s     0.0  ▁▁▁",
        "orders          40      2  2.5s    12.5  ▁▃█",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(drawn: tuple[Snapshot, Change, Trail], width: int) -> None:
    lines = on_terminal(screen(*drawn), width)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("orders") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_what_is_higher_than_the_terminal_is_counted(drawn: tuple[Snapshot, Change, Trail]) -> None:
    lines, all_ = on_terminal(screen(*drawn), 80, 8), on_terminal(screen(*drawn), 80)
    assert (len(lines), lines[-1]) == (8, f"… {len(all_) - 7} more lines: make the terminal higher")
    assert lines[:7] == all_[:7]


def test_a_trail_is_as_long_as_it_is_drawn_and_forgets_queues_that_are_gone() -> None:
    trail = Trail()
    for number in range(LOOKS + 5):
        trail.add(Change(1.0, queues={"a": Rates(done=float(number)), "b": Rates()}))
    assert trail.of("a") == tuple(float(number) for number in range(5, LOOKS + 5))
    trail.add(Change(1.0, queues={"a": Rates()}))
    assert trail.of("b") == ()


def test_nothing_is_drawn_in_words() -> None:
    shown = screen(Snapshot(T0), Change(), Trail())
    lines = shown.lines()
    assert on_terminal(shown, 100)[-4:] == lines[-4:]
    assert "No queue yet: nothing was ever scheduled." in lines
    assert "No worker is running. Start one: manage.py delayq_worker" in lines


def test_a_terminal_without_room_for_a_trend_shows_none(drawn: tuple[Snapshot, Change, Trail]) -> None:
    lines = on_terminal(screen(*drawn), 19)
    assert "queue     delayed" in lines
    assert "orders         40" in lines
    assert "trend" in "".join(on_terminal(screen(*drawn), 24))
