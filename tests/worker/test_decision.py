"""Decisions about a job after an attempt: pure functions, so plain tables."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_delayq import RateLimited
from django_delayq.core import Broker, Bury, Job, JobTimeout, Release, Retry, Settlement, Task, TaskOptions
from tests.support.attempt_stage import (
    MAX_DELAY,
    STARTED,
    UNRENEWED,
    end_by_crash,
    end_by_error,
    end_by_lost_lease,
    end_by_overrun,
    end_unbegun,
    end_unknown,
    end_unprepared,
    error_record,
    make_job,
    policy_of,
    safe_delay,
)
from tests.support.worker_stage import eventually, put, registry_of, working


def policy(**changes: Any) -> TaskOptions:
    return TaskOptions(**{"retry_in": lambda n: 10.0 * (n + 1), **changes})


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
    assert said(end_by_error(job, policy(max_attempts=3), error, 0, 0)) == expected


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
    job = make_job(crashes=crashes, own_crashes=crashes, failures=failures)
    assert said(end_by_crash(job, policy(crash_limit=4), "died of signal 9")) == expected


@pytest.mark.parametrize("beside", [0, 1, 5])
def test_a_job_whose_process_died_runs_in_quarantine_next(beside: int) -> None:
    settlement = end_by_crash(make_job(), policy(), "died of signal 9", beside=beside)
    assert (settlement.quarantine, settlement.own_crash) == (True, beside == 0)


def test_a_crash_beside_other_jobs_never_buries_whatever_the_limits_say() -> None:
    job = make_job(failures=30, crashes=30, own_crashes=2)
    settlement = end_by_crash(job, policy(crash_limit=1, max_attempts=1), "died of signal 9", beside=2)
    assert (settlement.verb, settlement.outcome, settlement.delay_ms) == ("fail", "crashed", 3_600_000)
    assert json.loads(settlement.error)["message"] == "died of signal 9; 2 other jobs ran in the same process"


def test_crashes_beside_others_do_not_count_towards_the_crash_limit() -> None:
    job = make_job(failures=7, crashes=7, own_crashes=1)
    assert end_by_crash(job, policy(crash_limit=3), "").verb == "fail"
    assert end_by_crash(job, policy(crash_limit=2), "").verb == "bury"


def test_the_loss_of_a_host_is_counted_but_neither_proves_nor_suspects_anything() -> None:
    for quarantined in (False, True):
        job = make_job(flags=STARTED, failures=5, crashes=5, own_crashes=2, quarantined=quarantined)
        settlement = end_by_lost_lease(job, policy(crash_limit=3))
        assert (settlement.verb, settlement.own_crash, settlement.quarantine) == ("fail", False, quarantined)
    assert end_by_lost_lease(make_job(flags=STARTED, failures=2), policy(max_attempts=3)).outcome == "poison"


def test_a_lease_that_a_holder_without_heartbeat_lost_counts_towards_the_crash_limit() -> None:
    job = make_job(flags=STARTED | UNRENEWED, failures=1, crashes=1, own_crashes=1)
    assert end_by_lost_lease(job, policy(crash_limit=2)).outcome == "poison"
    settlement = end_by_lost_lease(job, policy(crash_limit=3))
    assert (settlement.verb, settlement.own_crash, settlement.quarantine) == ("fail", True, False)


@pytest.mark.parametrize("error", [ValueError(), Retry(), Release(), Release(delay=5)])
def test_a_run_in_quarantine_that_ends_by_itself_ends_the_suspicion(error: BaseException) -> None:
    assert not end_by_error(make_job(quarantined=True), policy(), error, 0, 0).quarantine


def test_a_job_that_is_given_back_before_it_ran_stays_in_quarantine() -> None:
    job = make_job(quarantined=True)
    assert end_unbegun(job, policy()).quarantine
    assert end_unprepared(job, policy(), OSError(), 0.0).quarantine
    assert end_unknown(job, policy(), 0.0, elsewhere=True, jitter=0.5).quarantine
    assert end_by_lost_lease(job, policy()).quarantine


class Declined(ValueError):
    pass


class Busy(ConnectionError):
    pass


RULES: dict[str, Any] = {
    "retry_for": {OSError: 40, Busy: [1, 2], Declined: "quadratic"},
    "give_up_on": (ValueError, ConnectionRefusedError),
    "retry_in": lambda n: 7.0,
}


@pytest.mark.parametrize(
    ("error", "failures", "expected"),
    [
        (KeyError(), 0, ("fail", "failed", "", 7_000)),  # named nowhere
        (OSError(), 0, ("fail", "failed", "", 40_000)),
        (TimeoutError(), 0, ("fail", "failed", "", 40_000)),  # a kind of OSError
        (Busy(), 0, ("fail", "failed", "", 1_000)),  # nearer than OSError
        (Busy(), 1, ("fail", "failed", "", 2_000)),
        (ConnectionRefusedError(), 0, ("bury", "buried", "gave up: ConnectionRefusedError", None)),
        (UnicodeError(), 0, ("bury", "buried", "gave up: UnicodeError", None)),
        (Declined(), 1, ("fail", "failed", "", 40_000)),  # nearer than ValueError
        (Retry(), 0, ("fail", "failed", "", 7_000)),
        (Retry(delay=3), 0, ("fail", "failed", "", 3_000)),
        (OSError(), 2, ("bury", "exhausted", "exhausted", None)),
        (ValueError(), 2, ("bury", "buried", "gave up: ValueError", None)),
    ],
)
def test_the_nearest_class_of_the_exception_decides(error: BaseException, failures: int, expected: object) -> None:
    task = Task(lambda: None, name="work", options=TaskOptions(max_attempts=3, **RULES))
    job = make_job(failures=failures)
    assert said(end_by_error(job, policy_of(task), error, 0, 0)) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), ("fail", "failed", "", 7_000)),
        (Declined(), ("bury", "buried", f"not retried: {__name__}.Declined", None)),
        (ConnectionRefusedError(), ("bury", "buried", "gave up: ConnectionRefusedError", None)),
        (JobTimeout(), ("bury", "buried", "not retried: django_delayq.core.errors.JobTimeout", None)),
        (Retry(), ("fail", "failed", "", 7_000)),
        (Release(), ("release", "released", "", None)),
    ],
)
def test_only_the_classes_of_a_tuple_are_tried_again(error: BaseException, expected: object) -> None:
    options = TaskOptions(retry_for=(OSError,), give_up_on=(ConnectionRefusedError,), retry_in=lambda n: 7.0)
    policy = policy_of(Task(lambda: None, name="work", options=options))
    assert said(end_by_error(make_job(), policy, error, 0, 0)) == expected


def test_a_cancelled_coroutine_whose_time_was_over_counts_as_a_timeout_for_the_rules() -> None:
    timed_out = policy(give_up_on=(JobTimeout,))
    settlement = end_by_error(make_job(), timed_out, asyncio.CancelledError(), 0, 0, timed_out=True)
    assert said(settlement) == ("bury", "buried", "gave up: django_delayq.core.errors.JobTimeout", None)
    assert end_by_overrun(make_job(), timed_out, 0, 0).verb == "bury"
    assert end_by_overrun(make_job(), policy(), 0, 0).outcome == "timeout"


@pytest.mark.parametrize(
    ("own", "delays"),
    [
        (b'{"retry_in":3}', [3_000, 3_000]),
        (b'{"retry_in":[1,60]}', [1_000, 60_000]),
        (b'{"retry_in":"ladder"}', [10_000, 10_000]),
        (b'{"retry_in":null}', [7_000, 7_000]),
        (b"{}", [7_000, 7_000]),
        (b'{"retry_in":"nonsense"}', [7_000, 7_000]),
        (b'{"retry_in":{"a":1}}', [7_000, 7_000]),
        (b'{"max_attempts":"many"}', [7_000, 7_000]),
        (b"not json", [7_000, 7_000]),
        (b"[1]", [7_000, 7_000]),
    ],
)
def test_a_job_may_have_a_back_off_of_its_own_and_an_unusable_one_counts_for_nothing(
    own: bytes, delays: list[int]
) -> None:
    task = Task(lambda: None, name="work", options=TaskOptions(retry_in=lambda n: 7.0))
    jobs = [make_job(failures=n, options_json=own) for n in range(2)]
    settlements = [end_by_error(job, policy_of(task, job), KeyError(), 0, 0) for job in jobs]
    assert [settlement.delay_ms for settlement in settlements] == delays


def test_the_back_off_of_an_exception_counts_more_than_that_of_the_job() -> None:
    task = Task(lambda: None, name="work", options=TaskOptions(**RULES))
    job = make_job(options_json=b'{"retry_in":3}')
    policy = policy_of(task, job)
    assert [end_by_error(job, policy, error, 0, 0).delay_ms for error in (OSError(), KeyError())] == [40_000, 3_000]


@pytest.mark.parametrize(
    ("delay", "ms"), [(timedelta(minutes=1), 60_000), (-5, 0), (2.5, 2_500), (10**400, round(MAX_DELAY * 1000))]
)
def test_a_handler_may_ask_for_any_delay(delay: Any, ms: int) -> None:
    retried = end_by_error(make_job(), policy(), Retry(delay=delay), 0, 0)
    released = end_by_error(make_job(), policy(), Release(delay=delay), 0, 0)
    assert (retried.delay_ms, released.delay_ms) == (ms, ms)


@pytest.mark.parametrize("delay", ["10", math.nan, True, math.inf])
@pytest.mark.parametrize("verdict", [Retry, Release, RateLimited])
def test_what_is_no_delay_is_an_error_of_the_handler(verdict: Callable[..., Exception], delay: object) -> None:
    name = "retry_after" if verdict is RateLimited else "delay"
    with pytest.raises(TypeError, match="is no delay; give seconds or a timedelta"):
        verdict(**{name: delay})


def test_what_comes_of_a_merged_job_carries_the_policies_of_its_task() -> None:
    options = TaskOptions(merge=True, due_policy="inherit", score_policy="max", max_attempts=3, crash_limit=2)
    rules = policy_of(Task(lambda batch: None, name="work", options=options))

    def carried(settlement: Settlement) -> tuple[str, str, bool, bool, str]:
        return (settlement.verb, settlement.outcome, settlement.oldest, settlement.inherit, settlement.score_policy)

    job, last = make_job(merged=True), make_job(merged=True, failures=2, crashes=1, own_crashes=1)
    assert carried(end_by_error(job, rules, ValueError(), 0, 0)) == ("fail", "failed", False, True, "max")
    assert carried(end_by_error(last, rules, ValueError(), 0, 0)) == ("bury", "exhausted", True, True, "max")
    assert carried(end_by_overrun(last, rules, 0, 0)) == ("bury", "exhausted", True, True, "max")
    assert carried(end_by_error(job, rules, Release(), 0, 0)) == ("release", "released", False, True, "max")
    assert carried(end_by_crash(job, rules, "")) == ("fail", "crashed", False, True, "max")
    assert end_by_crash(last, rules, "").outcome == "poison" and not end_by_crash(last, rules, "").oldest
    assert not end_by_error(job, rules, Bury(), 0, 0).oldest
    assert carried(end_by_lost_lease(job, rules)) == ("release", "lost", False, True, "max")
    plain = end_by_error(make_job(failures=2), rules, ValueError(), 0, 0)
    assert carried(plain) == ("bury", "exhausted", False, False, "min")


def test_a_lost_lease_costs_an_attempt_only_after_a_known_start() -> None:
    quiet, begun = make_job(), make_job(flags=STARTED)
    released, failed = end_by_lost_lease(quiet, policy()), end_by_lost_lease(begun, policy())
    assert (released.verb, released.unclear) == ("release", True)
    assert (failed.verb, failed.outcome) == ("fail", "crashed")


def postponements(settle: Callable[[Job, float], Settlement], hours: int) -> tuple[list[float], Settlement]:
    """Return the delays of a job that is settled like this whenever it is due, and the last settlement."""
    job, now_ms, delays = make_job(), 0.0, []
    while (settlement := settle(job, now_ms)).postpone and now_ms < hours * 3_600_000:
        if job.postponed_for != settlement.reason:
            job.postponed_for, job.postponed_at_ms = settlement.reason, int(now_ms)
        delays.append((settlement.delay_ms or 0) / 1000)
        now_ms += settlement.delay_ms or 0
    return delays, settlement


def test_an_unknown_task_waits_longer_each_time_and_goes_to_the_morgue_after_a_day() -> None:
    delays, last = postponements(
        lambda job, now_ms: end_unknown(job, policy(), now_ms, elsewhere=False, jitter=0.5), 48
    )
    assert delays[:6] == [1.5] * 5 + [1.875] and delays == sorted(delays), "a quarter of the time waited so far"
    assert delays[-1] == 300 and sum(delays) >= 24 * 3600 > sum(delays[:-1])
    assert said(last) == ("bury", "buried", "unknown task", None)


@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_a_task_that_another_worker_knows_comes_back_soon_but_makes_no_busy_loop(jitter: float) -> None:
    delays, last = postponements(
        lambda job, now_ms: end_unknown(job, policy(), now_ms, elsewhere=True, jitter=jitter), 48
    )
    assert delays[0] == 1 + jitter and sum(delays[:10]) < 32, "ten older workers in a row cost half a minute"
    assert last.verb == "release", "it is not buried, because a worker knows it"
    assert max(delays) == 300 and len(delays) < 48 * 3600 / 300 + 40


def test_waiting_for_another_reason_begins_anew() -> None:
    job = make_job(postponed_for="not prepared: OSError", postponed_at_ms=0)
    day = 25 * 3_600_000
    assert end_unknown(job, policy(), day, elsewhere=False, jitter=0).delay_ms == 1_000


def test_a_job_whose_surroundings_are_not_prepared_waits_longer_each_time() -> None:
    delays, last = postponements(lambda job, now_ms: end_unprepared(job, policy(), OSError("no database"), now_ms), 1)
    assert delays[:8] == [1, 1, 2, 4, 8, 16, 32, 60]
    assert (last.verb, last.reason) == ("release", "not prepared: OSError")


def test_a_job_that_was_released_a_thousand_times_is_postponed_like_a_new_one() -> None:
    job = make_job(reserves=1_000)
    assert end_unknown(job, policy(), 0, elsewhere=False, jitter=0).delay_ms == 1_000
    assert end_unprepared(job, policy(), OSError(), 0).delay_ms == 1_000


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
    [
        ValueError("x" * 1_000_000),
        ValueError("\x00\x1b" * 100_000),
        ValueError("ü😀" * 100_000),
        Unreadable(),
        SystemExit(3),
    ],
)
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


# --- a release with a priority


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
def test_what_is_no_priority_is_an_error_of_the_handler(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"is no priority; give 0 \(first\) to 7"):
        Release(priority=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("verdict", [Release, Retry])
@pytest.mark.parametrize("wrong", [30, 0.5, timedelta(seconds=30)])
def test_a_pause_in_the_place_of_the_reason_is_an_error_of_the_handler(
    verdict: type[Release] | type[Retry], wrong: object
) -> None:
    with pytest.raises(TypeError, match=rf"the first argument of {verdict.__name__} is the reason.*delay="):
        verdict(wrong)  # type: ignore[arg-type]


# --- back-offs that fail, or return no pause


def _raises(_n: int) -> float:
    raise ValueError("no")


def _exits(_n: int) -> float:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "policy",
    [
        _raises,
        _exits,
        lambda n: None,
        lambda n: "10",
        lambda n: math.nan,
        lambda n: math.inf,
        lambda n: True,
        lambda: 1.0,
        lambda n: -math.inf,
        lambda n: 1j,
    ],
)
def test_a_broken_policy_falls_back_to_the_default_and_is_logged(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert 16 <= safe_delay(policy, 1) <= 76
    assert "the default back-off is used" in caplog.text


def test_the_default_is_clamped_too() -> None:
    assert safe_delay(TaskOptions().retry_in, 10**9) == MAX_DELAY
    assert safe_delay(TaskOptions().retry_in, 10**90) == MAX_DELAY


def test_the_programs_end_is_not_swallowed() -> None:
    def interrupted(_n: int) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        safe_delay(interrupted, 0)
