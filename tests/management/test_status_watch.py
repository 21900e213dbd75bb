"""delayq_status --watch as a person sees it: in a real terminal, and through a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.figures import TOTAL, DepthPoint, record_depths
from django_delayq.core.job import NewJob
from django_delayq.core.redis.connection import RedisConfig, connect
from tests.support.processes import wait_until

from .conftest import Depot

CLEARED = "\x1b[H\x1b[2J"


@pytest.fixture
def busy(redis_url: str, prefix: str) -> Any:
    """A deployment with a long queue name, jobs, and a worker that runs something."""
    connection = connect(RedisConfig.parse(redis_url))
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("a-queue-with-a-rather-long-name")
    queue.schedule_many(NewJob(f"j{n}", "work", delay_ms=n * 60_000) for n in range(40))
    jobs = [
        {"slot": n, "queue": queue.name, "id": f"j{n}", "task": "shop.pay", "started_ms": 1, "ids": 1} for n in range(3)
    ]
    broker.announce("box:1", {"queues": [queue.name], "threads": 4, "running": 3, "jobs": jobs})
    yield broker
    connection.close()


def read_into(screen: list[str], terminal: int) -> Callable[[], str]:
    os.set_blocking(terminal, False)

    def read() -> str:
        with contextlib.suppress(OSError):  # nothing there yet, or nobody who writes any more
            screen.append(os.read(terminal, 65536).decode(errors="replace"))
        return "".join(screen)

    return read


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_terminal_shows_one_report_after_the_other_that_fits(
    depot: Depot, busy: Broker, spawn: Any, number: signal.Signals, code: int
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 60, 0, 0))
    env = {**depot.env, "COLUMNS": "", "LINES": "", "TERM": "xterm", "NO_COLOR": "1"}
    process = spawn(
        *depot.command("delayq_status", "--watch", "0.1"), env=env, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    read = read_into([], ours)
    wait_until(lambda: read().count(CLEARED) >= 4, 30, "three whole reports")
    process.send_signal(number)
    assert process.wait(10) == code
    screens = [one.splitlines() for one in read().split(CLEARED)[1:4]]
    os.close(ours)
    for lines in screens:
        assert max(map(len, lines)) <= 60
        assert len(lines) == 7
        assert any(line.startswith("a-queue-with") for line in lines)
        assert lines[-1].endswith("more lines: make the terminal higher")


def test_a_pipe_gets_plain_text_with_every_job_that_runs(depot: Depot, busy: Broker, spawn: Any) -> None:
    process = spawn(
        *depot.command("delayq_status", "--watch", "0.1"), env={**depot.env, "FORCE_COLOR": "1"}, stdout=subprocess.PIPE
    )
    lines = [process.stdout.readline().rstrip("\n") for _ in range(30)]
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(10) == 0
    assert not any("\x1b" in line for line in lines)
    assert [line.split()[:1] for line in lines if line.startswith("  #")][:3] == [["#0"], ["#1"], ["#2"]]
    assert any(line.startswith(busy.queue_names()[0]) for line in lines)


def test_json_is_told_again_and_again_with_rates_since_a_sample(depot: Depot, busy: Broker, spawn: Any) -> None:
    record_depths(busy, {TOTAL: DepthPoint()}, busy.now_ms() - 20_000)
    process = spawn(*depot.command("delayq_status", "--watch", "0.05", "--json"), env=depot.env, stdout=subprocess.PIPE)
    told: list[dict[str, Any]] = []
    lines: list[str] = []
    while len(told) < 2:
        lines.append(process.stdout.readline())
        if lines[-1] == "}\n":
            told.append(json.loads("".join(lines)))
            lines = []
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(10) == 0
    for one in told:
        assert {"scheduled", "done", "failing", "p50_ms", "p99_ms"} == one["totals"]["rates"].keys()
        assert 0 < one["totals"]["rates"]["scheduled"] <= 2
        assert [queue["rates"]["scheduled"] for queue in one["queues"]] == [None]
        assert len(one["workers"][0]["jobs"]) == 3
