"""Reserve over HTTP by a caller that holds jobs already (beanstalkd's DEADLINE_SOON); nothing waits here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api_caller import Caller

from .feed import put, take

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("delayq")]
RESERVE = "v1/queues/feed/reserve"


@pytest.fixture
def held(consumer: Caller) -> str:
    """Return the end of the lease of a job."""
    put("held")
    (job,) = take(consumer, ttr=30)
    return str(job["lease_ends"])


@pytest.mark.parametrize("wait", [0, 20])
def test_within_the_margin_of_a_lease_the_answer_comes_at_once_and_says_so(
    consumer: Caller, held: str, wait: int
) -> None:
    asked = {"wait": wait, "holding": [held], "deadline_margin": 60}
    assert consumer.post(RESERVE, asked) == (200, {"jobs": [], "deadline_soon": True})
    assert "Retry-After" not in consumer.response
    put("due")
    status, body = consumer.post("v1/reserve", {"queues": ["wide", "feed"], **asked})
    assert (status, body["jobs"][0]["body"], body["deadline_soon"]) == (200, "due", True)


def test_before_it_nothing_is_said_and_ends_that_are_over_do_not_count(consumer: Caller, held: str) -> None:
    for holding, margin in (([held], 1), (["2020-01-01T00:00:00Z"], 60), ([None], 60), ([], 60)):
        answer = consumer.post(RESERVE, {"holding": holding, "deadline_margin": margin})
        assert answer == (200, {"jobs": []})
        assert consumer.response["Retry-After"] == "1"


@pytest.mark.parametrize(
    ("asked", "pointer", "text"),
    [
        ({"holding": []}, "/holding", "give deadline_margin, too"),
        ({"deadline_margin": 5}, "/deadline_margin", "give holding, too"),
        ({"holding": [], "deadline_margin": 0}, "/deadline_margin", "0.1 to 3600"),
        ({"holding": "soon", "deadline_margin": 5}, "/holding", "Expected a list"),
        ({"holding": [None] * 1001, "deadline_margin": 5}, "/holding", "no more than 1000"),
        ({"holding": [None, "soon"], "deadline_margin": 5}, "/holding/1", "moment"),
        ({"holding": [5], "deadline_margin": 5}, "/holding/0", ""),
        ({"id": "a", "holding": [], "deadline_margin": 5}, "/holding", "without waiting"),
    ],
)
def test_what_makes_no_sense_is_refused(consumer: Caller, asked: dict[str, Any], pointer: str, text: str) -> None:
    status, problem = consumer.post(RESERVE, asked)
    assert status == 400, problem
    assert [(error["pointer"], text in error["detail"]) for error in problem["errors"]] == [(pointer, True)], problem
