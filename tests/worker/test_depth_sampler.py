"""The dispatcher samples the depth of all queues once a minute."""

from __future__ import annotations

from typing import Any

from django_delayq.core import Broker, NewJob, ack, bury
from django_delayq.worker.dispatcher import SAMPLE_SECONDS, DepthSampler
from tests.support.worker_stage import depths_of


def sample(broker: Broker, name: str = "w1", **options: int) -> DepthSampler:
    sampler = DepthSampler(broker, name, **options)
    assert sampler.run() == SAMPLE_SECONDS
    sampler.run()
    return sampler


def stock(broker: Broker) -> None:
    """Two jobs that wait, one that runs and one in the morgue in "orders"; one done in "mail"."""
    orders, mail = broker.queue("orders", shards=3), broker.queue("mail")
    orders.schedule(NewJob("later", "t", delay_ms=600_000))
    orders.schedule(NewJob("now", "t"))
    for name in ("dead", "held"):
        orders.schedule(NewJob(name, "t"))
        (job,) = orders.reserve_id(name, worker="w", ttr_ms=60_000).jobs
        if name == "dead":
            orders.settle([bury(job, 0, 1, reason="buried")])
    mail.schedule(NewJob("one", "t"))
    (job,) = mail.reserve_id("one", worker="w", ttr_ms=60_000).jobs
    mail.settle([ack(job, 1, 2)])


def points(broker: Broker, *queues: str) -> list[Any]:
    return [series[-1] for series in depths_of(broker, queues).values() if series]


def test_t86_a_sample_has_each_queue_and_all_together(broker: Broker) -> None:
    stock(broker)
    sample(broker)
    assert [
        (one.delayed, one.ready, one.reserved, one.failed, one.morgue) for one in points(broker, "orders", "mail", "")
    ] == [(1, 1, 1, 0, 1), (0, 0, 0, 0, 0), (1, 1, 1, 0, 1)]


def test_a_process_that_ends_within_a_minute_sends_nothing(broker: Broker) -> None:
    stock(broker)
    assert DepthSampler(broker, "w1").run() == SAMPLE_SECONDS
    assert points(broker, "orders") == []


def test_of_several_dispatchers_one_takes_the_sample(broker: Broker) -> None:
    stock(broker)
    sample(broker)
    calls: list[str] = []
    broker.observe(lambda verb, seconds, failed: calls.append(verb))
    sample(broker, "w2")
    broker.observe(None)
    assert calls == [], "neither counted nor stored"


def test_a_sample_takes_one_call_for_all_queues_beside_the_counts(broker: Broker) -> None:
    stock(broker)
    calls: list[str] = []
    broker.observe(lambda verb, seconds, failed: calls.append(verb))
    sample(broker)
    broker.observe(None)
    assert calls[-1] == "depth"
    # On a cluster the counts are a call for each shard, sent together and not observed.
    assert calls[:-1] == ([] if broker.connection.cluster else ["stats"])


def test_the_queues_that_did_most_have_series_and_all_are_in_the_total(broker: Broker) -> None:
    stock(broker)
    sample(broker, most_queues=1)
    assert [bool(points(broker, name)) for name in ("orders", "mail", "")] == [True, False, True]


def test_lateness_is_that_of_the_attempts_since_the_last_sample(broker: Broker) -> None:
    stock(broker)
    sampler = sample(broker)
    (before,) = points(broker, "")
    assert before.p50_ms is None
    broker.queue("mail").schedule(NewJob("two", "t"))
    (job,) = broker.queue("mail").reserve_id("two", worker="w", ttr_ms=60_000).jobs
    broker.tally.ended("mail", [ack(job, job.due_ms + 400, 1)])
    broker.tally.flush()
    broker.client.delete(f"{{{broker.prefix}}}:sampler")
    sampler.run()
    (after,) = points(broker, "mail")
    assert 250 < after.p50_ms <= 500


def test_without_queues_nothing_is_stored(broker: Broker) -> None:
    sample(broker)
    assert points(broker, "") == []
