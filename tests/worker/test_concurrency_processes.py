"""Limits of concurrency over processes: of one machine, after a kill, and on a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from django_delayq.core import Broker
from tests.support.core_figures import taken_permits
from tests.support.supervisor_stage import Program
from tests.support.worker_stage import assert_invariants, config, eventually, put, working

from .test_concurrency import Running, registry_with

MakeProgram = Callable[..., Program]


def numbers_running(trace: list[tuple[str, str, int, int]]) -> list[int]:
    """Return how many attempts ran at each moment; those of a killed process end with it."""
    running: dict[tuple[str, int], int] = {}
    numbers = []
    for word, ident, attempt, pid in trace:
        if word == "begun":
            running[ident, attempt] = pid
        elif word == "ended":
            running.pop((ident, attempt), None)
        elif word == "killed":
            running = {name: one for name, one in running.items() if one != pid}
        numbers.append(len(running))
    return numbers


def test_a_limit_of_three_over_two_processes_is_reached_never_exceeded_and_survives_a_kill(
    program: MakeProgram,
    broker: Broker,
) -> None:
    broker.queue("default", shards=2)
    for _ in range(60):
        put(broker, "few", 0.05)
    running = program(processes=2, threads=4, lease=3000, heartbeat=0.5)
    running.await_words("ended", 20)
    holders = eventually(lambda: [one for one in running.trace() if one[0] == "begun"][-1:])
    victim = holders[0][3]
    os.kill(victim, signal.SIGKILL)
    running.client.rpush("trace", f"killed:-:0:{victim}")
    eventually(lambda: broker.inspector.counts("default").live == 0, "every job runs")
    numbers = numbers_running(running.trace())
    assert max(numbers) == 3, numbers
    eventually(lambda: taken_permits(broker, "task:few") == 0, "the permits of the dead process ran out")
    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    assert_invariants(broker)


def test_a_limit_holds_over_the_nodes_of_a_cluster(cluster_broker: Broker) -> None:
    cluster_broker.queue("default", shards=6)
    running = Running()
    for _ in range(60):
        put(cluster_broker, "limited")
    with (
        working(cluster_broker, registry_with(running, concurrency=2), config(threads=4)),
        working(cluster_broker, registry_with(running, concurrency=2), config(threads=4)),
    ):
        eventually(lambda: running.ended == 60)
    assert running.most == 2
    assert_invariants(cluster_broker)
