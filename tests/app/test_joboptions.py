"""Options of one job that travel with it: how long it is worth starting, its own back-off, its context."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_delayq import InvalidJob, retry, schedule, schedule_many
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode_args
from django_delayq.core.options import PLAIN_JOB

from ..support.moments import in_days
from .deeds import brief, note, sync

LATER = in_days(30)
LATER_MS = int(LATER.timestamp() * 1000)


@pytest.fixture(autouse=True)
def _on_redis(delayq: Broker) -> None:
    """Every test here has a Redis of its own."""


def options(broker: Broker, queue: str = "default") -> list[dict[str, Any]]:
    return [view.job.options for view in broker.inspector.page(queue, "waiting").jobs]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"expires": 60}, {"expires_in_ms": 60_000}),
        ({"expires": 0.25}, {"expires_in_ms": 250}),
        ({"expires": timedelta(minutes=2)}, {"expires_in_ms": 120_000}),
        ({"expires": LATER}, {"expires_ms": LATER_MS}),
        ({"expires": LATER, "at": LATER - timedelta(seconds=1)}, {"expires_ms": LATER_MS}),
        ({"expires": None}, {}),
        ({"retry_in": 30}, {"retry_in": 30}),
        ({"retry_in": timedelta(minutes=1)}, {"retry_in": 60.0}),
        ({"retry_in": [10, timedelta(seconds=60), 300.5]}, {"retry_in": [10, 60.0, 300.5]}),
        ({"retry_in": (1, 2)}, {"retry_in": [1, 2]}),
        ({"retry_in": "ladder"}, {"retry_in": "ladder"}),
        (
            {"retry_in": 5, "max_attempts": 3, "context": {"a": 1}},
            {"retry_in": 5, "max_attempts": 3, "context": {"a": 1}},
        ),
    ],
)
def test_an_option_of_a_job_is_stored_with_it(delayq: Broker, given: dict[str, Any], stored: dict[str, Any]) -> None:
    schedule(note, "x", **given)
    assert schedule_many(note, [{"args": ["y"], **given}]) == {"created": 1}
    assert schedule_many(note, [{"args": ["z"]}], **given) == {"created": 1}
    assert options(delayq) == [stored] * 3


def test_no_stored_option_sorts_behind_the_ttr(delayq: Broker) -> None:
    """``lua/lib/reserve.lua`` finds ``ttr_ms`` only as the last member of the JSON."""
    unstored = {"delay", "at", "id", "priority", "on_conflict", "due_policy", "reset_retries"}
    unstored |= {"wait_for_room", "wait_for_confirmation", "group"}
    stored: dict[str, Any] = {
        "max_attempts": 3,
        "retry_in": 5,
        "timeout": 9,
        "ttr": 60,
        "expires": 60,
        "context": {"zone": "z"},
    }
    assert {*unstored, *stored} == PLAIN_JOB, "a new option: give it a value here if it is stored with the job"
    schedule(note, "x", **stored)
    schedule(note, "y", **stored | {"expires": LATER})
    for one in options(delayq):
        assert max(one) == [*one][-1] == "ttr_ms"


def test_the_tasks_own_expiry_is_stored_unless_the_call_says_another(delayq: Broker) -> None:
    schedule(brief)
    brief.schedule(1)
    schedule(brief, expires=60)
    schedule(brief, expires=LATER)
    schedule(brief, context={"a": 1})
    assert schedule_many(brief, [{}, {"args": [1]}]) == {"created": 2}
    default = {"expires_in_ms": 300_000}
    assert sorted(options(delayq), key=str) == sorted(
        [
            default,
            default,
            default,
            default,
            {"expires_in_ms": 60_000},
            {"expires_ms": LATER_MS},
            {"expires_in_ms": 300_000, "context": {"a": 1}},
        ],
        key=str,
    )


def test_a_merged_job_has_its_own_back_off_and_attempts(delayq: Broker) -> None:
    schedule(sync, id=1, retry_in="ladder", max_attempts=2)
    assert options(delayq, "deeds.sync") == [{"retry_in": "ladder", "max_attempts": 2}]


def test_the_presets_are_at_the_front_door() -> None:
    import django_delayq.core.retry

    assert retry is django_delayq.core.retry
    assert retry.steps(10, 60)(5) == 60


@pytest.mark.parametrize("expires", [datetime(2020, 1, 1, tzinfo=UTC), timedelta(seconds=1)])
def test_a_job_that_has_expired_is_handed_to_nobody(delayq: Broker, expires: Any) -> None:
    schedule(note, "stale", expires=expires, at=datetime(2019, 1, 1, tzinfo=UTC))
    schedule(note, "fresh", expires=LATER)
    queue = delayq.queue("default")
    batch = queue.reserve(queue.numbers[0], 10, worker="w")
    assert [decode_args(job.args)[0] for job in batch.jobs] == [["fresh"]]
    assert delayq.inspector.counts("default").reserved == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"expires": 0}, "expires is 0: the job would never run"),
        ({"expires": -1}, "expires is negative"),
        ({"expires": True}, "expires must be a datetime"),
        ({"expires": "1h"}, "expires must be a datetime"),
        ({"expires": float("nan")}, "expires is nan"),
        ({"expires": 1e12}, "expires is more than ten years"),
        ({"expires": datetime(2030, 1, 1)}, "expires=2030-01-01T00:00:00 has no time zone"),
        ({"expires": datetime(2300, 1, 1, tzinfo=UTC)}, "expires= is more than ten years ahead"),
        ({"expires": LATER, "at": LATER}, "is not after the due time, so the job would never run"),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC), "delay": 60}, "is not after the due time"),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "is not after the due time"),
        ({"retry_in": lambda n: 5}, r"a function goes to the task: @task\(retry_in=…\)"),
        ({"retry_in": retry.fixed(5)}, "a function goes to the task"),
        ({"retry_in": "lader"}, "Did you mean 'ladder'"),
        ({"retry_in": -5}, "between 0 and ten years"),
        ({"retry_in": []}, "at least one pause"),
        ({"retry_in": [5, "x"]}, "numbers of seconds"),
        ({"retry_in": {"a": 5}}, "retry_in: a back-off is"),
        ({"retry_in": True}, "retry_in: a back-off is"),
        ({"context": {"a": {1}}}, "context may hold plain JSON values only"),
    ],
)
def test_a_wrong_option_is_refused_at_the_call_and_nothing_is_stored(
    delayq: Broker, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidJob, match=text):
        schedule(note, "x", **given)
    assert delayq.client.dbsize() == 0
