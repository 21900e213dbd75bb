"""``raise Release(...)`` with a priority, and with what is none."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_delayq.core import Broker, Release, Retry
from tests.support.attempt_stage import end_by_error, make_job, policy_of
from tests.support.worker_stage import eventually, put, registry_of, working


def test_a_handler_gives_its_job_back_with_another_priority(broker: Broker) -> None:
    def work() -> None:
        raise Release(delay=60, priority=1)

    put(broker, "work", id="a")
    with working(broker, registry_of(work)):
        eventually(lambda: broker.inspector.counts("default").delayed, "the job is given back")
    view = broker.inspector.get("default", "a")
    assert view is not None
    assert (view.job.priority, view.job.failures) == (1, 0)


@pytest.mark.parametrize("wrong", [8, -1, True, "urgent", 1.0])
def test_what_is_no_priority_is_logged_and_changes_nothing(wrong: object, caplog: pytest.LogCaptureFixture) -> None:
    error = Release(priority=wrong)  # type: ignore[arg-type]
    settlement = end_by_error(make_job(), policy_of(None), error, 1, 2)
    assert (settlement.verb, settlement.priority) == ("release", None)
    assert "is no priority" in caplog.text


@pytest.mark.parametrize("reserves", [1, 50])
@pytest.mark.parametrize("wrong", ["5", float("nan"), True, [5]])
def test_a_release_after_what_is_no_delay_is_no_endless_loop(
    wrong: object, reserves: int, caplog: pytest.LogCaptureFixture
) -> None:
    error = Release(delay=wrong)  # type: ignore[arg-type]
    settlement = end_by_error(make_job(reserves=reserves), policy_of(None), error, 1, 2)
    assert (settlement.verb, settlement.delay_ms) == ("release", 10_000)
    assert "is no delay" in caplog.text


@pytest.mark.parametrize("verdict", [Release, Retry])
@pytest.mark.parametrize("wrong", [30, 0.5, timedelta(seconds=30)])
def test_a_pause_in_the_place_of_the_reason_is_an_error_of_the_handler(
    verdict: type[Release] | type[Retry], wrong: object
) -> None:
    with pytest.raises(TypeError, match=rf"the first argument of {verdict.__name__} is the reason.*delay="):
        verdict(wrong)  # type: ignore[arg-type]
