"""What becomes of a job: pure functions, so plain tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.core.errors import Bury, JobTimeout, Release, Retry
from django_delayq.core.job import STARTED, Settlement
from django_delayq.worker import decision
from django_delayq.worker.decision import Policy, error_record

from .support import make_job


def policy(**changes: Any) -> Policy:
    return Policy(**{"retry_in": lambda n: 10.0 * (n + 1), **changes})


def said(settlement: Settlement) -> tuple[str, str, str, int | None]:
    return settlement.verb, settlement.outcome, settlement.reason, settlement.delay_ms


@pytest.mark.parametrize(
    ("failures", "error", "expected"),
    [
        (0, ValueError(), ("fail", "failed", "", 10_000)),
        (1, ValueError(), ("fail", "failed", "", 20_000)),
        (2, ValueError(), ("bury", "exhausted", "exhausted", None)),
        (0, JobTimeout(), ("fail", "timeout", "", 10_000)),
        (2, JobTimeout(), ("bury", "exhausted", "exhausted", None)),
        (0, Retry(delay=3), ("fail", "failed", "", 3_000)),
        (0, Retry("busy"), ("fail", "failed", "", 10_000)),
        (2, Retry(delay=3), ("bury", "exhausted", "exhausted", None)),
        (0, Bury("no such order"), ("bury", "buried", "no such order", None)),
        (0, Bury(), ("bury", "buried", "buried", None)),
        (2, Release(delay=1.5), ("release", "released", "", 1_500)),
        (2, Release("not yet"), ("release", "released", "not yet", None)),
        (0, SystemExit(1), ("fail", "failed", "", 10_000)),
    ],
)
def test_the_error_and_the_number_of_failures_decide(failures: int, error: BaseException, expected: object) -> None:
    job = make_job(failures=failures, reserves=failures + 1)
    assert said(decision.raised(job, policy(max_attempts=3), error, 0, 0)) == expected


@pytest.mark.parametrize("max_attempts", [1, 2, 3, 26])
def test_max_attempts_is_exact(max_attempts: int) -> None:
    verbs = []
    for failures in range(max_attempts):
        settlement = decision.raised(make_job(failures=failures), policy(max_attempts=max_attempts), ValueError(), 0, 0)
        verbs.append(settlement.verb)
    assert verbs == ["fail"] * (max_attempts - 1) + ["bury"]


@pytest.mark.parametrize(
    ("crashes", "failures", "expected"),
    [
        (0, 0, ("fail", "crashed", "", 0)),
        (1, 1, ("fail", "crashed", "", 10_000)),
        (2, 2, ("fail", "crashed", "", 20_000)),
        (3, 3, ("bury", "poison", "poison", None)),
        (0, 25, ("bury", "poison", "poison", None)),
    ],
)
def test_a_crash_is_tried_again_at_once_then_later_then_never(crashes: int, failures: int, expected: object) -> None:
    job = make_job(crashes=crashes, failures=failures)
    assert said(decision.crashed(job, policy(crash_limit=4), "died of signal 9")) == expected


def test_a_lost_lease_costs_an_attempt_only_after_a_known_start() -> None:
    quiet, begun = make_job(), make_job(flags=STARTED)
    released, failed = decision.lost(quiet, policy()), decision.lost(begun, policy())
    assert (released.verb, released.suspect, released.guard) == ("release", True, "expired")
    assert (failed.verb, failed.outcome, failed.guard) == ("fail", "crashed", "expired")


def test_an_unknown_task_waits_longer_each_time_and_goes_to_the_morgue_after_a_day() -> None:
    delays, reserves = [], 1
    while (settlement := decision.unknown_task(make_job(reserves=reserves))).verb == "release":
        delays.append((settlement.delay_ms or 0) / 1000)
        reserves += 1
    assert delays[:7] == [30, 60, 120, 240, 480, 600, 600]
    assert sum(delays) >= 24 * 3600 > sum(delays[:-1])
    assert said(settlement) == ("bury", "buried", "unknown task", None)


def test_a_broken_back_off_falls_back_to_the_default() -> None:
    settlement = decision.raised(make_job(), policy(retry_in=lambda n: 1 / 0), ValueError(), 0, 0)
    assert settlement.verb == "fail" and settlement.delay_ms and settlement.delay_ms >= 15_000


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [ValueError("x" * 1_000_000), ValueError("\x00\x1b" * 100_000), ValueError("ü😀" * 100_000), Unreadable(),
     SystemExit(3)],
)  # fmt: skip
def test_an_error_record_is_small_valid_json_whatever_was_raised(error: BaseException) -> None:
    record = error_record(raised(error))
    assert len(record) <= 4096
    assert set(json.loads(record)) == {"class", "message", "traceback"}


def test_an_error_record_names_the_place_and_the_cause() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        record = json.loads(error_record(error))
    assert record["class"] == "ValueError" and record["message"] == "outer"
    assert "after KeyError: 'inner'" in record["traceback"] and __file__ in record["traceback"]
