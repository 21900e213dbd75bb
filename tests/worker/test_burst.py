"""A burst ends when nothing is ready, also nothing that its own attempts made ready."""

from __future__ import annotations

import pytest

from django_delayq.core.broker import Broker

from .support import places, put, put_payload, registry_of, run_dry


@pytest.fixture
def calls() -> list[object]:
    """The values with which the handlers were called."""
    return []


@pytest.mark.parametrize("threads", [1, 3])
def test_content_that_waited_behind_an_attempt_runs_too(broker: Broker, calls: list[object], threads: int) -> None:
    def work(number: int) -> None:
        calls.append(number)
        if number < 3:
            put(broker, "work", number + 1, id="5")

    put(broker, "work", 1, id="5")
    run_dry(broker, registry_of(work), threads=threads, dispatcher=False)
    assert calls == [1, 2, 3] and not places(broker)


def test_payloads_that_one_attempt_cannot_take_run_too(broker: Broker, calls: list[object]) -> None:
    def work(payloads: dict[str, list[int]]) -> None:
        calls.extend(payloads["5"])

    for number in range(600):
        put_payload(broker, "work", "5", number, score=number)
    run_dry(broker, registry_of(work, merge=True), dispatcher=False)
    assert calls == list(range(600)) and not places(broker)


def test_jobs_that_a_handler_schedules_run_too(broker: Broker, calls: list[object]) -> None:
    def work(number: int) -> None:
        calls.append(number)
        if number < 5:
            put(broker, "work", number + 1, queue="other" if number % 2 else "default")

    broker.queue("other", shards=3)
    put(broker, "work", 1)
    run_dry(broker, registry_of(work), queues=("default", "other"), dispatcher=False)
    assert calls == [1, 2, 3, 4, 5]


def test_a_burst_does_not_wait_for_what_is_due_later(broker: Broker, calls: list[object]) -> None:
    def work(number: int) -> None:
        calls.append(number)
        put(broker, "work", number, id="5", delay_ms=3_600_000)

    put(broker, "work", 1, id="5")
    run_dry(broker, registry_of(work), dispatcher=False)
    assert calls == [1] and places(broker) == {"delayed": 1}
