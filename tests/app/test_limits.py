"""``django_delayq.limits``: limits that are set at run time."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import limits
from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import NewJob
from django_delayq.pull import Queue


def test_a_limit_is_set_read_and_cleared(delayq: Broker) -> None:
    assert limits.get(queue="mail") == {}
    limits.set("mail", concurrency=3, rate="10/s", burst=7)
    assert limits.get(queue="mail") == {"concurrency": 3, "rate": 10.0, "burst": 7}
    limits.set("mail", group="acme", rate=2.5)
    assert limits.get(group="acme", queue="mail") == {"rate": 2.5, "burst": 1}
    limits.set(task="work", concurrency=1)
    limits.clear(queue="mail")
    assert (limits.get(queue="mail"), limits.get(task="work")) == ({}, {"concurrency": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 1},
        {"queue": "a", "task": "b", "concurrency": 1},
        {"group": "a", "rate": 1},
        {"group": "a", "task": "b", "rate": 1},
        {"queue": "a"},
        {"queue": "a", "burst": 3},
        {"queue": "a", "rate": 1, "burst": 0},
        {"queue": "a", "rate": 1, "burst": "3"},
        {"queue": "a b", "rate": 1},
        {"queue": "a", "rate": "often"},
        {"queue": "a", "concurrency": 0},
        {"queue": "a", "group": "", "rate": 1},
    ],
)
def test_a_wrong_limit_is_refused_at_the_call(delayq: Broker, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob):
        limits.set(**wrong)


def test_it_holds_for_pulled_jobs_of_a_group(delayq: Broker) -> None:
    for number in range(3):
        delayq.queue("feed", kind="pull").schedule(NewJob(f"a{number}", "free", group="a"))
    limits.set(queue="feed", group="a", concurrency=2)
    held = Queue("feed").reserve(3)
    assert len(held) == 2
    limits.set(queue="feed", group="a", concurrency=3)
    assert len(Queue("feed").reserve(3)) == 1
