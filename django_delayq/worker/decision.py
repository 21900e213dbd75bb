"""What becomes of a job whose run did not simply return. Pure functions: job, policy and error in, settlement out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django_delayq.core.errors import Bury, JobTimeout, Misconfigured, PartialFailure, Release, Retry
from django_delayq.core.job import PRIORITIES, STARTED, Job, Settlement, bury, fail, release
from django_delayq.core.retry import Policy as Backoff
from django_delayq.core.retry import clamp, default_backoff, safe_delay
from django_delayq.core.retry import policy_of as backoff_of
from django_delayq.core.task import Task, TaskOptions

from .record import class_of, error_record, name_of, record_of, text_of

logger: Final = logging.getLogger(__name__)

_UNKNOWN_FIRST: Final = 30.0
_UNKNOWN_LONGEST: Final = 600.0
_UNKNOWN_PATIENCE: Final = 24 * 3600.0
_LONGEST_CRASH_DELAY: Final = 3600.0
_REASON_CHARS: Final = 200
_NO_TASK: Final = TaskOptions()


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a task's options that decides, with the job's own overrides."""

    max_attempts: int = 26
    crash_limit: int = 3
    timeout: float | None = None
    max_lease: float | None = None
    retry_in: Backoff = default_backoff
    #: exception class → back-off of its own
    retry_for: Mapping[type[BaseException], Backoff] = field(default_factory=dict)
    #: what ``retry_for`` does not name is not tried again
    only_these: bool = False
    give_up_on: tuple[type[BaseException], ...] = ()
    #: acked before the handler begins
    early: bool = False
    #: merged: new content does not shorten the back-off
    inherit: bool = False
    #: merged: between a payload that comes back and its twin that came meanwhile
    score_policy: str = "min"


def policy_of(task: Task | None, job: Job | None = None) -> Policy:
    """The policy for ``job``; without a registered task the defaults count, and so for an override that is unusable."""
    options = task.options if task is not None else _NO_TASK
    own = _overrides(job) if job is not None and job.options_json else {}
    retry_in = own.get("retry_in", options.retry_in)
    rules: Mapping[type[BaseException], Any] | tuple[type[BaseException], ...] = options.retry_for or ()
    return Policy(
        max_attempts=own.get("max_attempts", options.max_attempts),
        crash_limit=options.crash_limit,
        timeout=own.get("timeout", options.timeout),
        max_lease=options.max_lease,
        retry_in=retry_in,
        retry_for=rules if isinstance(rules, Mapping) else dict.fromkeys(rules, retry_in),
        only_these=bool(rules) and not isinstance(rules, Mapping),
        give_up_on=options.give_up_on,
        early=options.ack == "early",
        inherit=options.due_policy == "inherit",
        score_policy=options.score_policy,
    )


def _overrides(job: Job) -> dict[str, Any]:
    """What the schedule call asked for. It was checked there; what is unusable here was stored by somebody else."""
    try:
        given = job.options
        found: dict[str, Any] = {}
        if "max_attempts" in given:
            found["max_attempts"] = max(1, int(given["max_attempts"]))
        if "timeout" in given:
            found["timeout"] = None if given["timeout"] is None else max(0.001, float(given["timeout"]))
        if given.get("retry_in") is not None:
            found["retry_in"] = backoff_of(given["retry_in"])
        return found
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, Misconfigured) as error:
        logger.warning("%s: its own options cannot be used, those of task %s count: %s", job.id, job.task, error)
        return {}


# --- the handler raised


def raised(job: Job, policy: Policy, error: BaseException, started_ms: int, run_ms: int, *, timed_out: bool = False,
           record: Callable[[BaseException], bytes] = error_record,
           retry_delay: Callable[[BaseException, int], float | None] | None = None) -> Settlement:  # fmt: skip
    """The handler raised ``error``: one of the verdicts, or a failure.

    Args:
        timed_out: the time limit made it do so.
        record: makes the stored form of the error.
        retry_delay: knows errors that say themselves when to try again (:attr:`Hooks.retry_delay`).
    """
    if isinstance(error, Release):
        delay = None
        if error.delay is not None and (delay := asked_delay(job, error.delay)) is None:
            delay = growing_delay(give_backs(job), 1.0, 60.0)  # at its old place it would run without a pause
        return give_back(job, policy, delay_ms=None if delay is None else _ms(delay), reason=_reason(error),
                         priority=asked_priority(job, error.priority))  # fmt: skip
    if isinstance(error, Bury):
        return bury(job, started_ms, run_ms, reason=_reason(error) or "buried", error_class=class_of(error),
                    error=record(error))  # fmt: skip
    own_delay = asked_delay(job, error.delay) if isinstance(error, Retry) and error.delay is not None else None
    kind = JobTimeout if timed_out else type(error)
    rule = policy.retry_in if isinstance(error, Retry) else _rule(policy, kind)
    if isinstance(rule, str):
        return bury(job, started_ms, run_ms, reason=f"{rule}: {name_of(kind)}"[:_REASON_CHARS],
                    error_class=class_of(error), error=record(error))  # fmt: skip
    if own_delay is None and retry_delay is not None and rule is policy.retry_in:
        own_delay = retry_delay(error, job.failures)
    return _failed(job, policy, started_ms, run_ms, "timeout" if issubclass(kind, JobTimeout) else "failed",
                   class_of(error), record(error), own_delay, rule)  # fmt: skip


def failures_of(error: BaseException, ids: Iterable[str]) -> dict[str, BaseException]:
    """What each of the ids of a run failed with; an id that is not in it is done.

    Args:
        error: what the handler raised.
        ids: those whose payloads it got.
    """
    ids = list(ids)
    if not isinstance(error, PartialFailure):
        return dict.fromkeys(ids, error)
    failed = {str(ident): _exception(value) for ident, value in error.errors.items()}
    unknown = sorted(failed.keys() - set(ids))
    if not unknown:
        return failed
    names = ", ".join(repr(ident[:60]) for ident in unknown[:5])
    wrong = ValueError(
        f"PartialFailure names {len(unknown)} ids that this call of the handler did not get: {names}; it takes the "
        "keys of the handler's argument. Nobody knows what was meant, so all ids of the batch count as failed"
    )
    wrong.__cause__ = error
    return dict.fromkeys(ids, wrong)


def _exception(value: object) -> BaseException:
    if isinstance(value, BaseException):
        return value
    return Exception(value if isinstance(value, str) else repr(value)[:_REASON_CHARS])


def recorded(job: Job, error: BaseException | None, started_ms: int, run_ms: int, *, timed_out: bool = False,
             record: Callable[[BaseException], bytes] = error_record) -> Settlement:  # fmt: skip
    """The end of a run whose job was acked before: it is told, and changes nothing any more."""
    if error is None:
        return Settlement(job, "record", started_ms, run_ms)
    outcome = "timeout" if timed_out or isinstance(error, JobTimeout) else "failed"
    return Settlement(job, "record", started_ms, run_ms, None, outcome, "acked before it began", class_of(error),
                      record(error))  # fmt: skip


def _rule(policy: Policy, kind: type[BaseException]) -> Backoff | str:
    """The back-off after an exception of this class, or why there is no other attempt. The nearest class counts."""
    if not policy.retry_for and not policy.give_up_on:
        return policy.retry_in
    for base in kind.__mro__:
        if base in policy.give_up_on:
            return "gave up"
        if base in policy.retry_for:
            return policy.retry_for[base]
    return "not retried" if policy.only_these else policy.retry_in


def _failed(job: Job, policy: Policy, started_ms: int, run_ms: int, outcome: str, error_class: str, error: bytes,
            own_delay: float | None, backoff: Backoff) -> Settlement:  # fmt: skip
    if job.failures + 1 >= policy.max_attempts:
        # Of a merged job only the oldest payload has to go: the others may do better without it.
        settlement = bury(job, started_ms, run_ms, reason="exhausted", outcome="exhausted", error_class=error_class,
                          error=error)  # fmt: skip
        settlement.oldest = job.merged
        return _merged(settlement, policy)
    delay = safe_delay(backoff, job.failures) if own_delay is None else own_delay
    return _merged(
        fail(job, started_ms, run_ms, delay_ms=_ms(delay), outcome=outcome, error_class=error_class, error=error),
        policy,
    )


def _merged(settlement: Settlement, policy: Policy) -> Settlement:
    """With what the scripts need to unite payloads that come back with those that came meanwhile."""
    if settlement.job.merged:
        settlement.inherit, settlement.score_policy = policy.inherit, policy.score_policy
    return settlement


# --- the run was not to end like that


def overran(job: Job, policy: Policy, started_ms: int, run_ms: int) -> Settlement:
    """The handler ignored its time limit until its process was ended."""
    record = record_of("JobTimeout", f"the run did not end although its limit of {policy.timeout} s had passed")
    rule = _rule(policy, JobTimeout)
    if isinstance(rule, str):
        return bury(job, started_ms, run_ms, reason=f"{rule}: {name_of(JobTimeout)}", error_class="JobTimeout",
                    error=record)  # fmt: skip
    return _failed(job, policy, started_ms, run_ms, "timeout", "JobTimeout", record, None, rule)


def crashed(job: Job, policy: Policy, why: str, *, started_ms: int = 0, run_ms: int = 0,
            guard: str = "token") -> Settlement:  # fmt: skip
    """The process died under the job. The first crash is tried again at once, later ones after 10 s · 2^n."""
    record = record_of("Crashed", why)
    if job.crashes + 1 >= policy.crash_limit or job.failures + 1 >= policy.max_attempts:
        # All payloads of a merged job: nobody knows which of them it was.
        return bury(job, started_ms, run_ms, reason="poison", outcome="poison", error_class="Crashed", error=record,
                    guard=guard)  # fmt: skip
    # The exponent is bounded before the power, because a stored counter may be anything.
    delay = 0.0 if job.crashes == 0 else min(_LONGEST_CRASH_DELAY, 10.0 * 2.0 ** min(job.crashes - 1, 20))
    return _merged(
        fail(job, started_ms, run_ms, delay_ms=_ms(delay), outcome="crashed", error_class="Crashed", error=record,
             guard=guard), policy,
    )  # fmt: skip


def lost(job: Job, policy: Policy) -> Settlement:
    """The lease ran out unsettled. Only a job that is known to have started pays for it with an attempt."""
    if job.flags & STARTED:
        return crashed(job, policy, f"the lease of worker {job.worker} ran out during the run", guard="expired")
    return _merged(
        release(job, suspect=True, reason="lease ran out before a known start", guard="expired", event=True), policy
    )


# --- the run did not begin


def give_back(job: Job, policy: Policy, *, delay_ms: int | None = None, reason: str = "", suspect: bool = False,
              event: bool = False, priority: int | None = None) -> Settlement:  # fmt: skip
    """Back without counting an attempt."""
    return _merged(
        release(job, delay_ms=delay_ms, reason=reason, suspect=suspect, event=event, priority=priority), policy
    )


def give_backs(job: Job) -> int:
    """How often the job was handed out before this time without a counted attempt."""
    return max(0, job.reserves - 1 - job.failures)


def growing_delay(times: int, first: float, longest: float) -> float:
    """``first · 2^times`` seconds, at most ``longest``."""
    return min(longest, first * 2.0 ** min(times, 30))


def unknown_task(job: Job) -> Settlement:
    """No such task here: perhaps this process is older than the caller. Given back uncounted, for a day.

    The job's due time moves with each release, so the day is counted in the delays that were given.
    """
    times = give_backs(job)
    waited, n = 0.0, 0
    while n < times and waited < _UNKNOWN_PATIENCE:
        waited += growing_delay(n, _UNKNOWN_FIRST, _UNKNOWN_LONGEST)
        n += 1
    if waited >= _UNKNOWN_PATIENCE:
        return bury(job, 0, 0, reason="unknown task", error_class="UnknownTask",
                    error=record_of("UnknownTask", f"no worker knew the task {job.task!r} for 24 hours; "
                                    f"register it, or give the new name aliases=({job.task!r},)"))  # fmt: skip
    return release(job, delay_ms=_ms(growing_delay(times, _UNKNOWN_FIRST, _UNKNOWN_LONGEST)), reason="unknown task")


def undecodable(job: Job, error: BaseException) -> Settlement:
    """The stored arguments are not ours; no later attempt could read them."""
    return bury(job, 0, 0, reason="undecodable", outcome="undecodable", error_class=class_of(error),
                error=error_record(error))  # fmt: skip


def not_prepared(job: Job, policy: Policy, error: BaseException) -> Settlement:
    """What has to stand before the handler (a database connection, …) does not; the job is not to blame."""
    delay = growing_delay(give_backs(job), 1.0, 60.0)
    return give_back(job, policy, delay_ms=_ms(delay), reason=f"not prepared: {class_of(error)}"[:_REASON_CHARS])


# --- small things


def asked_delay(job: Job, delay: object) -> float | None:
    """The seconds that a handler asked for in a verdict; None, and a line in the log, if they are none."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if isinstance(delay, int) and not isinstance(delay, bool):
        return float(clamp(delay))
    if isinstance(delay, float) and math.isfinite(delay):
        return clamp(delay)
    logger.error("%s: %.60r is no delay; give seconds or a timedelta. It is passed over", job.id, delay)
    return None


def asked_priority(job: Job, priority: object) -> int | None:
    """The priority that a handler asked for in a verdict; None, and a line in the log, if it is none."""
    if priority is None or (type(priority) is int and 0 <= priority < PRIORITIES):
        return priority
    logger.error("%s: %.60r is no priority; give 0 (first) to 7. It stays as it is", job.id, priority)
    return None


def _reason(error: BaseException) -> str:
    return text_of(error)[:_REASON_CHARS]


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
