"""The newest events, read from the ends of the streams."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, NewJob, ack, fail
from django_delayq.core.events import EventFilter, newest

from .events_stage import read_one_entry


def run(broker: Broker, queue: str, ident: str, *, task: str = "work", error: str = "") -> None:
    """Schedule a job and end one attempt of it."""
    opened = broker.queue(queue, shards=3)
    opened.schedule(NewJob(ident, task))
    (job,) = opened.reserve_id(ident, worker="w1", ttr_ms=60_000).jobs
    opened.settle([fail(job, 1, 7, delay_ms=60_000, error_class=error)] if error else [ack(job, 1, 7)])


def found(broker: Broker, *, limit: int = 200, **wanted: str) -> list[tuple[str, str, str]]:
    return [(one.queue, one.id, one.outcome) for one in newest(broker, EventFilter(**wanted), limit)]


@pytest.fixture
def past(broker: Broker) -> Broker:
    """Four attempts of two queues, one of them failed."""
    run(broker, "orders", "a")
    run(broker, "mail", "b", task="send")
    run(broker, "orders", "c", error="LookupError")
    run(broker, "orders", "a")
    return broker


def test_the_latest_event_comes_first_whatever_its_queue(past: Broker) -> None:
    assert found(past) == [
        ("orders", "a", "succeeded"),
        ("orders", "c", "failed"),
        ("mail", "b", "succeeded"),
        ("orders", "a", "succeeded"),
    ]
    assert found(past, limit=1) == [("orders", "a", "succeeded")]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"queue": "orders"}, ["a", "c", "a"]),
        ({"task": "send"}, ["b"]),
        ({"outcome": "failed"}, ["c"]),
        ({"id": "a"}, ["a", "a"]),
        ({"queue": "orders", "id": "c"}, ["c"]),
        ({"queue": "mail", "id": "c"}, []),
        ({"queue": "nowhere"}, []),
    ],
)
def test_events_are_filtered(past: Broker, wanted: dict[str, str], ids: list[str]) -> None:
    assert [ident for _, ident, _ in found(past, **wanted)] == ids


def test_an_event_has_its_error_and_duration(past: Broker) -> None:
    (event,) = newest(past, EventFilter(outcome="failed"))
    assert (event.fields["error"], event.fields["ms"], event.fields["attempt"], event.fields["worker"]) == (
        "LookupError",
        "7",
        "1",
        "w1",
    )


def test_attempts_of_an_id_are_found_after_a_change_of_the_shards(past: Broker) -> None:
    past.reshard("orders", 5)
    run(past, "orders", "a")
    assert len(found(past, queue="orders", id="a")) == 3


def test_a_reading_is_bounded(past: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    read_one_entry(monkeypatch)
    run(past, "orders", "a")
    assert len(newest(past, EventFilter("orders", id="a"))) == 1


def test_a_deleted_queue_and_a_bulk_load_have_no_events(past: Broker) -> None:
    past.delete_queue("orders", force=True)
    assert found(past) == [("mail", "b", "succeeded")]
