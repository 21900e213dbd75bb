"""Order in which a worker visits the shards of several queues: by weights, and by the functions of the docs."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, NewJob, new_id
from tests.support.waiting_stage import DueShard
from tests.support.worker_stage import eventually, put, registry_of, run_dry

AB = ("a", "b")
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def recipe(name: str, **constants: int) -> Any:
    """Return a scheduler as the documents have it, with other constants."""
    names: dict[str, Any] = {}
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", OPERATIONS.read_text(), re.S) if name in block]
    exec(code, names)
    names.update(constants)
    return names[name]


def run_order(broker: Broker, jobs: int, queues: tuple[str, ...] = AB, **changes: Any) -> str:
    """Let a worker run that many jobs of each queue; return their queues in the order of their runs."""
    ran: list[str] = []

    def work() -> None:
        ran.append(current_job().queue)

    for queue in queues:
        broker.queue(queue).count_many(NewJob(new_id(), "work") for _ in range(jobs))
    run_dry(broker, registry_of(work), queues=queues, **{"prefetch_ms": 0.0, **changes})
    assert len(ran) == jobs * len(queues)
    return "".join(ran)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("a", "b"), [(3, 1), (1, 4)])
def test_runs_are_shared_by_the_weights_of_the_queues(broker: Broker, threads: int, a: int, b: int) -> None:
    ran = run_order(broker, 200, threads=threads, weights={"a": float(a), "b": float(b)})
    first = ran[:200]  # both have jobs left
    assert first.count("a") == pytest.approx(200 * a / (a + b), abs=2 * threads * max(a, b))


def test_turns_are_taken_whatever_the_weights(broker: Broker) -> None:
    ran = run_order(broker, 50, ("a", "b", "c"), threads=1, scheduler=recipe("in_turn"), weights={"a": 20.0})
    assert ran == "abc" * 50


def test_the_shard_that_is_overdue_longest_is_first(broker: Broker) -> None:
    delays = {"a": 1500, "b": 900, "c": 1200}
    ran: list[str] = []

    def occupy(until: float) -> None:
        eventually(lambda: time.time() > until)

    def work() -> None:
        ran.append(current_job().queue)

    for queue, delay_ms in delays.items():
        put(broker, "work", queue=queue, delay_ms=delay_ms)
    put(broker, "occupy", time.time() + 1.6, queue="d")  # the worker has looked at the others before
    order = {"queues": ("a", "b", "c", "d"), "threads": 1, "prefetch_ms": 0.0, "weights": {"a": 20.0}}
    run_dry(broker, registry_of(occupy, work), scheduler=recipe("longest_overdue"), **order)
    assert ran == ["b", "c", "a"]


class Turns:
    """A scheduler of a project's own, with state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, due: Sequence[DueShard]) -> DueShard:
        self.calls += 1
        return due[self.calls % len(due)]


def test_a_scheduler_that_counts_is_called_for_reserves_only(broker: Broker) -> None:
    turns = Turns()
    ran = run_order(broker, 50, threads=1, scheduler=turns)
    assert ran[:98] in ("ab" * 49, "ba" * 49) and turns.calls < 110


# --- several machines


def shards_in_order(broker: Broker, **nodes: int) -> list[int]:
    """Let one machine run 20 jobs of each of five shards; return the shards in the order of its jobs."""
    ran: list[int] = []

    def work() -> None:
        ran.append(crc32(current_job().id.encode()) % 5)

    idents: dict[int, list[str]] = {shard: [] for shard in range(5)}
    for number in range(1000):
        idents[crc32(str(number).encode()) % 5].append(str(number))
    jobs = [NewJob(ident, "work") for found in idents.values() for ident in found[:20]]
    broker.queue("default", shards=5).count_many(jobs)
    scheduler = recipe("own_node_first", **nodes)
    run_dry(broker, registry_of(work), threads=1, prefetch_ms=0.0, scheduler=scheduler)
    assert Counter(ran) == dict.fromkeys(range(5), 20), "none is left out"
    return ran


def test_the_shards_of_the_node_come_first_then_all_others(broker: Broker) -> None:
    ran = shards_in_order(broker, NODES=3, NODE=1)
    assert set(ran[:40]) == {1, 4} and set(ran[40:]) == {0, 2, 3}


def test_t17_the_shards_of_a_node_that_is_gone_for_ever_run_elsewhere(broker: Broker) -> None:
    shards_in_order(broker, NODES=4, NODE=2)  # the only one of four
