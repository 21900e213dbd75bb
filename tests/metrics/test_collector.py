"""Prometheus metrics of a real Redis after real attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections as databases, transaction
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from django_delayq import __version__, cancel, connections, metrics, schedule
from django_delayq.core.broker import Broker
from django_delayq.core.counts import Counts
from django_delayq.core.figures import BUCKETS_MS, Figures, Histogram
from django_delayq.core.job import NewJob
from django_delayq.metrics.definitions import METRICS, clock_skew, longest_run_seconds, measure, read, scheduled_total
from django_delayq.status import QueueStatus, RunningJob, Snapshot, WorkerStatus
from tests.support.core_figures import store_violations
from tests.support.worker_stage import eventually

from .deeds import fall, note, samples_of, unite


def scrape() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) → value, as Prometheus reads the text."""
    registry = CollectorRegistry(auto_describe=False)
    metrics.register(registry)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


@pytest.fixture
def scripts_measured(settings: Any, delayq: Broker) -> Broker:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS": {"scripts": True}}
    connections.close_broker()
    return connections.broker()


@pytest.mark.django_db(transaction=True)
def test_parked_jobs_are_counted_with_the_time_that_the_first_has_waited(delayq: Broker) -> None:
    delayq.queue("mail").schedule_many([NewJob(str(number), "work", group=f"g{number}") for number in range(3)])
    delayq.queue("plain").schedule(NewJob("a", "work"))
    found = scrape()
    assert [value(found, "delayq_parked_jobs", queue=queue) for queue in ("mail", "plain")] == [3, 0]
    assert 0 <= value(found, "delayq_parked_seconds", queue="mail") < 60
    assert value(found, "delayq_parked_seconds", queue="plain") == 0


@pytest.mark.django_db(transaction=True)
def test_a_scrape_says_what_happened(delayq: Broker, work_off: Callable[..., None]) -> None:
    schedule(note, "one")
    schedule(note, "two", id="two")
    schedule(note, "again", id="two")
    schedule(fall, "bury")
    schedule(fall, "retry")
    schedule(fall, "release")
    schedule(note, "tomorrow", delay=86_400, id="tomorrow")
    schedule(note, "never", delay=86_400, id="never")
    cancel(note, id="never")
    schedule(unite, id="a", payload=1, delay=60)
    work_off()
    schedule(note, "ready")
    delayq.pause("united", "in")
    found = scrape()
    jobs = {
        (queue, state): value(found, "delayq_jobs", queue=queue, state=state)
        for queue in ("notes", "united")
        for state in ("delayed", "ready", "reserved", "gated", "morgue")
    }
    assert {place: count for place, count in jobs.items() if count} == {
        ("notes", "delayed"): 3,
        ("notes", "ready"): 1,
        ("notes", "morgue"): 1,
        ("united", "delayed"): 1,
    }
    counters = {
        (name, *(text for label, text in labels if label != "queue")): count
        for (name, labels), count in found.items()
        if ("queue", "notes") in labels and name.endswith("_total") and count
    }
    assert counters == {
        ("delayq_scheduled_total", "created"): 8,
        ("delayq_scheduled_total", "changed"): 1,
        ("delayq_reserved_total",): 5,
        ("delayq_settled_total", "acked"): 2,
        ("delayq_settled_total", "buried"): 1,
        ("delayq_settled_total", "failed"): 1,
        ("delayq_settled_total", "released"): 1,
        ("delayq_interventions_total", "cancelled"): 1,
    }
    assert value(found, "delayq_failed_jobs", queue="notes") == 1
    assert value(found, "delayq_queue_paused", queue="united", direction="in") == 1
    assert value(found, "delayq_queue_paused", queue="united", direction="out") == 0
    assert value(found, "delayq_run_seconds_count", queue="notes", task="measured.note") == 2
    assert value(found, "delayq_start_lateness_seconds_count", queue="notes") == 4  # what was released did not end
    assert (value(found, "delayq_up"), value(found, "delayq_info", version=__version__)) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_every_metric_is_in_a_scrape_of_a_deployment_that_has_everything(
    scripts_measured: Broker, work_off: Callable[..., None]
) -> None:
    schedule(note, "one")
    schedule(note, "two", priority=0)
    work_off()
    broker = connections.broker()
    broker.tally.count("redis_error", "transient")
    broker.tally.flush()
    store_violations(broker, 2)
    found = scrape()
    assert {name for name, _ in found} == {sample for metric in METRICS for sample in samples_of(metric)}
    assert value(found, "delayq_redis_errors_total", **{"class": "transient"}) == 1
    assert value(found, "delayq_fsck_violations") == 2
    assert value(found, "delayq_script_seconds_count", script="reserve") >= 1


@pytest.mark.django_db(transaction=True)
def test_a_process_without_a_worker_tells_how_long_it_waited_for_scripts(scripts_measured: Broker) -> None:
    schedule(note, "one")
    assert eventually(lambda: scripts_measured.figures().script.get("schedule"), "its time is told").count == 1
    assert not scripts_measured.tally  # the call that told it is none of its figures


@pytest.mark.django_db(transaction=True)
def test_the_scrape_is_also_valid_openmetrics(delayq: Broker, work_off: Callable[..., None]) -> None:
    schedule(note, "one")
    work_off()
    registry = CollectorRegistry(auto_describe=False)
    metrics.register(registry)
    families = {family.name: family for family in parse_openmetrics(generate_openmetrics(registry).decode())}
    assert families["delayq_settled"].type == "counter"
    assert families["delayq_run_seconds"].type == "histogram"
    assert {family.documentation for family in families.values()} <= {metric.help for metric in METRICS}


@pytest.mark.django_db(transaction=True)
def test_buckets_are_cumulative_and_in_seconds(delayq: Broker) -> None:
    places = len(BUCKETS_MS) + 1
    counts = [0] * places
    counts[0], counts[3], counts[-1] = 2, 1, 4
    delayq.queue("notes")
    delayq.note_figures(Figures(lateness={"notes": Histogram(tuple(counts), 7_200_500)}))
    found = scrape()
    buckets = {
        dict(labels)["le"]: count
        for (name, labels), count in found.items()
        if name == "delayq_start_lateness_seconds_bucket"
    }
    assert list(buckets) == [*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf"]
    assert (buckets["0.001"], buckets["0.005"], buckets["0.01"], buckets["1800.0"], buckets["+Inf"]) == (2, 2, 3, 3, 7)
    assert value(found, "delayq_start_lateness_seconds_sum", queue="notes") == 7200.5
    assert value(found, "delayq_start_lateness_seconds_count", queue="notes") == 7


@pytest.mark.django_db(transaction=True)
def test_workers_are_counted_by_what_they_last_said(delayq: Broker) -> None:
    delayq.queue("notes")
    delayq.queue("mail")
    began = int(delayq.now_ms()) - 60_000
    job = {"slot": 0, "queue": "notes", "id": "5", "task": "t", "started_ms": began, "ids": 1}
    common = {"queues": ["notes"], "threads": 4, "running": 1, "rss_mib": 100}
    delayq.announce("a", {**common, "dispatcher": True, "jobs": [job]})
    delayq.announce("b", {**common, "stopping": True})
    delayq.announce("c", {"queues": [], "threads": 0, "running": 0, "rss_mib": 10, "dispatcher": True})
    delayq.announce("d", {"queues": ["mail"], "threads": 1, "running": 0, "rss_mib": 0, "quarantine": True})
    found = scrape()
    states = [value(found, "delayq_workers", state=state) for state in ("running", "stopping", "lost")]
    assert states == [3, 1, 0]
    assert (value(found, "delayq_worker_threads"), value(found, "delayq_worker_busy")) == (9, 2)
    assert (value(found, "delayq_dispatchers"), value(found, "delayq_worker_resident_bytes")) == (2, 210 * 1024 * 1024)
    assert value(found, "delayq_queue_workers", queue="notes") == 2
    assert value(found, "delayq_queue_workers", queue="mail") == 0, "a quarantine process takes no ordinary job"
    assert 60 <= value(found, "delayq_longest_run_seconds", queue="notes") < 120
    assert value(found, "delayq_longest_run_seconds", queue="mail") == 0


def test_a_run_of_which_nobody_says_when_it_began_is_no_long_one() -> None:
    """A worker of another release may say less."""
    queues = (QueueStatus("notes", "python", Counts("notes", 5_000.0), 1, 0),)
    jobs = (RunningJob(0, "notes", "a", "t", 0), RunningJob(1, "notes", "b", "t", 3_000))
    worker = WorkerStatus("w", 5_000.0, 0.0, jobs=jobs)
    found = [
        read(Snapshot(5_000.0, queues, (one,)))[longest_run_seconds] for one in (worker, replace(worker, jobs=jobs[:1]))
    ]
    assert found == [{("notes",): 2.0}, {("notes",): 0.0}]


@pytest.mark.django_db(transaction=True)
def test_without_redis_there_is_one_answer_and_it_is_quick(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    connections.close_broker()
    found = scrape()
    connections.close_broker()
    assert found == {("delayq_up", ()): 0.0}
    assert "no metrics, Redis does not answer" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_the_outbox_is_counted_by_state(delayq: Broker) -> None:
    with transaction.atomic():
        schedule(note, "durable", durable=True)
        found = scrape()
    assert value(found, "delayq_outbox_rows", state="waiting") == 1
    assert value(found, "delayq_outbox_rows", state="refused") == 0
    assert 0 <= value(found, "delayq_outbox_oldest_age_seconds") < 60


@pytest.mark.django_db(transaction=True)
def test_scrapes_at_the_same_time_do_not_disturb_each_other(delayq: Broker) -> None:
    schedule(note, "one")
    results: list[Any] = []

    def look() -> None:
        results.append(measure()[scheduled_total]["notes", "created"])
        databases.close_all()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [1, 1, 1, 1]


def test_to_register_asks_nothing_of_redis_and_names_are_taken_once() -> None:
    registry = CollectorRegistry(auto_describe=True)
    collector = metrics.register(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(registry)
    registry.unregister(collector)
    metrics.register(registry)


@pytest.mark.parametrize(
    ("redis_clock", "expected"), [(100.5, 0.0), (97.0, 3.0), (105.0, -4.0)], ids=["between", "behind", "ahead"]
)
def test_the_skew_is_what_the_time_of_the_question_cannot_explain(redis_clock: float, expected: float) -> None:
    assert clock_skew(100.0, 101.0, redis_clock) == expected
