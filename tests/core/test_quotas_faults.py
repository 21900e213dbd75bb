"""Quotas of shards under faults, races and repeated calls, and what a search for room costs."""

from __future__ import annotations

from django_delayq.core.broker import Broker

from .quotas_stage import ids_of, put


def test_the_counter_of_refusals_never_goes_down_and_counts_every_try(broker: Broker) -> None:
    queue = broker.queue("q", shards=4)
    broker.limit("q", max_length=20)
    counted, calls = [0], list[str]()

    def look(verb: str, seconds: float, failed: bool) -> None:
        calls.append(verb)
        shards = (queue.shard(number).names["count"] for number in queue.numbers)
        counted.append(sum(int(broker.client.hget(key, "refused") or 0) for key in shards))

    broker.observe(look)
    idents = ids_of(queue, 2)
    assert [put(queue, next(idents)) for _ in range(21)] == [True] * 20 + [False]
    assert counted == sorted(counted)
    assert counted[-1] == calls.count("schedule") - 20 > 1, "what was sent again with success counts, too"
