"""Reserve of the first job that matches, where arguments are stored with another codec than JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import InvalidJob, Queue, connections, schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.task import registry


@pytest.fixture(autouse=True)
def _other(delayq: Broker, settings: Any) -> Iterator[None]:
    codec, queues = "django_delayq.messagepack.codec", {"feed": {"kind": "pull"}}
    settings.DELAYQ = {**settings.DELAYQ, "CODEC": codec, "QUEUES": queues}

    @task(name="match.bill", queue="bills")
    def bill(**kwargs: Any) -> None:
        return None

    schedule(bill, id="b-1", customer=17)
    yield
    registry.remove(bill)


def test_a_text_is_refused_and_the_way_that_the_error_names_works() -> None:
    bills = Queue("bills")
    with pytest.raises(
        InvalidJob, match=r"of queue 'bills', which are of codec 'msgpack'.*search for the job and reserve it by its id"
    ):
        bills.reserve_match(text='"customer":17')
    (found,) = connections.broker().inspector.search("bills", '"customer":17')
    job = bills.reserve_id(found.id)
    assert job is not None and job.kwargs == {"customer": 17}


def test_the_other_conditions_and_raw_bytes_are_as_ever() -> None:
    job = Queue("bills").reserve_match(task="match.bill", prefix="b-")
    assert job is not None and job.id == "b-1"
    Queue("feed").put(b"customer: 17")
    raw = Queue("feed").reserve_match(text="customer: 17")
    assert raw is not None and raw.body == b"customer: 17"
