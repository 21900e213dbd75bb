"""Acts of tests about quotas: a queue with a ``max_length`` and several shards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from django_delayq.core import Broker, NewJob, Queue, QueueFull, ack, quotas
from django_delayq.core.quotas import ShardRoom, is_divided, read_room


def held(queue: Queue) -> int:
    return sum(room.length for room in quotas.read_room(queue))


def given(queue: Queue) -> list[int | None]:
    return [room.quota for room in quotas.read_room(queue)]


def ids_of(queue: Queue, *places: int) -> Iterator[str]:
    """Endless ids whose shards have these places."""
    numbers = {queue.present[place].number for place in places}
    return (ident for ident in map("s{}".format, count()) if queue.shard_of(ident) in numbers)


def put(queue: Queue, ident: str) -> bool:
    try:
        return queue.schedule(NewJob(ident, "work")) == "created"
    except QueueFull:
        return False


def run_some(queue: Queue, most: int = 1) -> int:
    jobs = [job for number in queue.numbers for job in queue.reserve(number, most, worker="w").jobs]
    return sum(queue.settle([ack(job, 1, 2) for job in jobs]))


def calls_of(broker: Broker) -> list[str]:
    calls: list[str] = []
    broker.observe(lambda verb, seconds, failed: calls.append(verb))
    return calls


def in_threads(*acts: Callable[[], Any]) -> None:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
