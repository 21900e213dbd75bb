"""Lease, time limit and group that a row's columns give its job hold when the job is reserved (row 40)."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from django_delayq import Queue, limits
from django_delayq.connections import DjangoBroker

WRITTEN = {"short": (5.0, 1.5), "usual": (None, None), "long": (600.0, 90.0)}


def lease_of(broker: DjangoBroker, ident: str) -> float:
    """Seconds for which Redis holds the lease, from now on."""
    view = broker.inspector.get("feed", ident)
    assert view is not None and view.deadline_ms is not None
    return (view.deadline_ms - broker.now_ms()) / 1000


def test_jobs_that_spark_wrote_are_leased_for_the_ttr_of_their_rows(
    spark: SparkSession, delayq: DjangoBroker, redis_url: str, prefix: str, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    df = spark.createDataFrame(
        [(ident, b"x", ttr) for ident, (ttr, _) in WRITTEN.items()], "id string, payload binary, ttr double"
    )
    options = {"queue": "feed", "kind": "pull", "redis": redis_url, "prefix": prefix}
    df.write.format("delayq").options(**options).mode("append").save()
    held = {job.id: job for job in Queue("feed").reserve(max=3)}
    for ident, ttr in (("short", 5), ("usual", 60), ("long", 600)):
        assert ttr - 3 < held[ident].seconds_left <= ttr
        assert ttr - 3 < lease_of(delayq, ident) <= ttr
        assert held[ident].ack()


def test_jobs_that_spark_wrote_are_reserved_with_the_timeout_of_their_rows(
    spark: SparkSession, delayq: DjangoBroker, redis_url: str, prefix: str
) -> None:
    df = spark.createDataFrame(
        [(ident, [1], ttr, timeout) for ident, (ttr, timeout) in WRITTEN.items()],
        "id string, args array<int>, ttr double, timeout double",
    )
    options = {"queue": "q", "task": "app.send", "redis": redis_url, "prefix": prefix, "timeout": "30"}
    df.write.format("delayq").options(**options).mode("append").save()
    queue = delayq.queue("q")
    jobs = {job.id: job for number in queue.numbers for job in queue.reserve(number, 3, worker="w").jobs}
    assert {ident: job.options.get("timeout") for ident, job in jobs.items()} == {"short": 1.5, "usual": 30, "long": 90}
    assert {ident: job.ttr_ms for ident, job in jobs.items()} == {"short": 5000, "usual": None, "long": 600_000}
    assert all(json.loads(job.args) == [1] for job in jobs.values())


def test_jobs_that_spark_wrote_share_the_limits_of_the_groups_of_their_rows(
    spark: SparkSession, delayq: DjangoBroker, redis_url: str, prefix: str, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    rows = [(f"{group}{number}", b"x", group) for group in ("acme", "small", None) for number in range(3)]
    df = spark.createDataFrame(rows, "id string, payload binary, group string")
    options = {"queue": "feed", "kind": "pull", "redis": redis_url, "prefix": prefix}
    df.write.format("delayq").options(**options).mode("append").save()
    limits.set("feed", group="acme", concurrency=1)
    queue = Queue("feed")
    held = [job for _ in range(9) for job in queue.reserve(max=1)]
    groups = [job.id[:-1] for job in held]
    assert {group: groups.count(group) for group in groups} == {"acme": 1, "small": 3, "None": 3}
