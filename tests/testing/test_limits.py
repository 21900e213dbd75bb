"""Limits in the testing kit: they hold on its clock, for jobs that it runs and for pulled ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import Queue, RateLimited, limits, run_now, schedule, schedule_many, task
from django_delayq.core import fsck
from django_delayq.core.task import Task, registry
from django_delayq.testing import Fake, RunReport

refusals: list[RateLimited] = []


@pytest.fixture
def partners() -> Iterator[dict[str, Task]]:
    """Tasks with limits, by name."""
    refusals.clear()

    @task(name="one", queue="partners", concurrency=1)
    def one() -> None: ...

    @task(name="paced", queue="partners", rate="10/s")
    def paced(number: int = 0) -> None:
        if refusals:
            raise refusals.pop()

    @task(name="grouped", queue="partners", group="{customer}", group_rate=lambda customer: "1/m")
    def grouped(customer: str) -> None:
        if refusals:
            raise refusals.pop()

    @task(name="plain", queue="partners")
    def plain() -> None: ...

    @task(name="merged", queue="partners", merge=True, batch_size=10)
    def merged(payloads: dict[str, list[Any]]) -> None: ...

    made = {name: registry.tasks[name] for name in ("one", "paced", "grouped", "plain", "merged")}
    yield made
    for each in made.values():
        registry.remove(each)


def seconds_of(report: RunReport) -> list[float]:
    """Seconds from the first attempt to each."""
    return [(ran.at - report.runs[0].at).total_seconds() for ran in report.runs]


def test_a_rate_lets_jobs_start_when_the_clock_is_moved(delayq_fake: Fake, partners: dict[str, Task]) -> None:
    schedule_many(partners["paced"], [{"args": [number]} for number in range(30)])
    delayq_fake.freeze()
    assert [len(delayq_fake.run_due()) for _ in range(3)] == [1, 0, 0]
    delayq_fake.travel(0.1)
    assert [len(delayq_fake.run_due()) for _ in range(2)] == [1, 0]
    assert seconds_of(delayq_fake.run_due(until=1)) == [round(0.1 * n, 1) for n in range(10)]
    assert len(delayq_fake.run_due(until=timedelta(hours=1))) == 18


def test_a_job_behind_a_limit_holds_up_no_other_one(delayq_fake: Fake, partners: dict[str, Task]) -> None:
    for number in range(15):
        schedule(partners["paced"], number)
        for _ in range(2):
            schedule(partners["grouped"], f"customer-{number}")
    schedule(partners["plain"])
    ran = [one.task for one in delayq_fake.run_due().runs]
    assert {name: ran.count(name) for name in set(ran)} == {"paced": 1, "grouped": 15, "plain": 1}
    report = delayq_fake.run_due(until=60)
    assert {one.task: report.runs.index(one) for one in report.runs}.keys() == {"paced", "grouped"}
    assert len(report) == 14 + 15
    fsck.assert_invariants(delayq_fake.broker)


def test_jobs_of_a_batch_take_no_start_of_a_rate_from_others(delayq_fake: Fake, partners: dict[str, Task]) -> None:
    limits.set(task="paced", rate="1/h", burst=3)
    for number in range(5):
        schedule(partners["merged"], id=str(number), payload=number, priority=0)
    schedule_many(partners["paced"], [{"args": [number]} for number in range(5)])
    assert [ran.task for ran in delayq_fake.run_due().runs] == ["merged"] * 5 + ["paced"] * 3


def test_jobs_behind_a_limit_wait_for_its_slot_and_run(delayq_fake: Fake, partners: dict[str, Task]) -> None:
    for number in range(3):
        schedule(partners["one"], id=str(number))
    (held,) = Queue("partners").reserve(5)
    assert Queue("partners").reserve(5) == []
    assert not delayq_fake.run_due()
    assert delayq_fake.broker.inspector.counts("partners").parked == 2
    assert run_now(partners["one"], id="1")
    fsck.assert_invariants(delayq_fake.broker)
    assert held.ack()
    assert len(delayq_fake.run_due().succeeded) == 2


@pytest.mark.parametrize(("scope", "waits"), [("group", ["b"]), ("task", [])])
def test_what_a_refusal_pauses_waits_on_the_clock_of_the_kit(
    delayq_fake: Fake, partners: dict[str, Task], scope: str, waits: list[str]
) -> None:
    limits.set(task="grouped", concurrency=5)
    refusals.append(RateLimited(retry_after=30, scope=scope))
    for customer in ("a", "b"):
        schedule(partners["grouped"], customer, id=customer)
    report = delayq_fake.run_due()
    assert [(ran.id, ran.outcome) for ran in report.runs] == [
        ("a", "released"),
        *((ident, "succeeded") for ident in waits),
    ]
    delayq_fake.travel(29.9)
    assert not delayq_fake.run_due()
    report = delayq_fake.run_due(until=120)
    assert {ran.id for ran in report.succeeded} == {"a", "b"} - set(waits)


@pytest.mark.parametrize("retry_after", [0, -5, 0.0001, timedelta(0)])
def test_a_refusal_that_is_over_is_no_pause(delayq_fake: Fake, partners: dict[str, Task], retry_after: Any) -> None:
    refusals.append(RateLimited(retry_after=retry_after))
    limits.set(task="paced", burst=5, rate=1)
    schedule(partners["paced"])
    assert [ran.outcome for ran in delayq_fake.run_due(until=1).runs] == ["released", "succeeded"]


def test_a_job_is_asserted_by_its_group(delayq_fake: Fake, partners: dict[str, Task]) -> None:
    schedule(partners["grouped"], "acme")
    schedule(partners["plain"])
    delayq_fake.assert_scheduled("grouped", group="acme", count=1)
    delayq_fake.refute_scheduled("grouped", group="other")
    assert [job.group for job in delayq_fake.scheduled_jobs()] == ["acme", ""]


def test_immediate_jobs_run_whatever_the_limit(delayq_fake: Fake, partners: dict[str, Task]) -> None:
    with delayq_fake.immediate():
        for number in range(5):
            schedule(partners["paced"], number)
    assert delayq_fake.scheduled_jobs() == []
