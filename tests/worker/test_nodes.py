"""Which shards a process of one of several machines visits first, and that it visits them all."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from django_delayq.core import Broker
from django_delayq.worker.shard_selector import split
from tests.support.worker_stage import WorkerConfig, config, eventually, places, put, registry_of, run_dry, working

PLACES = [("a", shard) for shard in range(5)] + [("b", 0)]


def ordered(**changes: int) -> list[tuple[str, int]]:
    return split(PLACES, WorkerConfig(queues=("a", "b"), splitter="by_node", **changes), "w")


def test_the_shards_of_the_node_come_first_then_all_others() -> None:
    assert ordered(nodes=3, node=1) == [("a", 1), ("a", 4), ("a", 0), ("a", 2), ("a", 3), ("b", 0)]
    assert ordered() == PLACES


def test_the_processes_of_a_node_begin_at_different_shards_of_it() -> None:
    assert ordered(nodes=2, node=0, index=1)[:3] == [("a", 2), ("a", 4), ("a", 0)]


@pytest.mark.parametrize(("nodes", "node"), [(1, 0), (2, 1), (2, 7), (50, 3), (50, 49)])
def test_no_node_however_wrong_leaves_a_shard_out(nodes: int, node: int) -> None:
    assert sorted(ordered(nodes=nodes, node=node, index=4)) == PLACES


def fill(broker: Broker, jobs: int) -> None:
    broker.queue("default", shards=5)
    for n in range(jobs):
        put(broker, "work", n)


def test_t17_the_shards_of_a_node_that_is_gone_for_ever_run_elsewhere(broker: Broker) -> None:
    ran: Counter[int] = Counter()

    def work(n: int) -> None:
        ran[n] += 1

    fill(broker, 100)
    run_dry(broker, registry_of(work), splitter="by_node", nodes=4, node=2)  # the only one of four
    assert ran == Counter(range(100)) and places(broker) == {}


def test_t18_two_nodes_that_are_configured_as_the_same_both_work(broker: Broker) -> None:
    ran: Counter[int] = Counter()

    def work(n: int) -> None:
        ran[n] += 1

    fill(broker, 300)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(working(broker, registry_of(work), config(splitter="by_node", nodes=2, node=1)))
        eventually(lambda: places(broker) == {})
    assert ran == Counter(range(300))
