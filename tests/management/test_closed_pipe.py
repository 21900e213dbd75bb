"""Commands whose reader ends before them, like `delayq_status | head`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.management.base import exit_on_closed_pipe

from .conftest import Depot

#: exit code of a program that SIGPIPE ends, as shells show it
CLOSED_PIPE = 141


@pytest.fixture
def full(redis_url: str, prefix: str) -> Any:
    """A queue whose jobs fill more than the buffers of a program and its pipe."""
    connection = connect(RedisConfig.parse(redis_url))
    queue = Broker(connection, prefix=prefix).queue("orders")
    queue.schedule_many(NewJob(f"{n}-{'x' * 200}", "work", delay_ms=n * 60_000) for n in range(2000))
    yield
    connection.close()


@pytest.mark.parametrize(
    "words",
    [
        ("delayq_status", "--watch", "0.05", "--json"),
        ("delayq_jobs", "list", "--limit", "2000"),
    ],
    ids=" ".join,
)
def test_a_command_ends_quietly_when_its_reader_has_read_a_line(
    depot: Depot, full: Any, spawn: Any, words: tuple[str, ...]
) -> None:
    process = spawn(*depot.command(*words), env=depot.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == CLOSED_PIPE
    errors = process.stderr.read()
    assert "Traceback" not in errors and "BrokenPipe" not in errors


def test_a_command_ends_quietly_when_nobody_reads_at_all(depot: Depot, spawn: Any) -> None:
    process = spawn(
        *depot.command("delayq_queue", "list"), env=depot.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    process.stdout.close()
    assert process.wait(30) == CLOSED_PIPE


def test_a_program_without_stdout_ends_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has none if the descriptor was closed before, as some supervisors of processes do."""
    monkeypatch.setattr(sys, "stdout", None)
    with exit_on_closed_pipe():
        pass
