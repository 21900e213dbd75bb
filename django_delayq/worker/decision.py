"""What becomes of a job whose run did not simply return. Pure functions: job, policy and error in, settlement out."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django_delayq.core.errors import Bury, JobTimeout, Release, Retry
from django_delayq.core.job import STARTED, Job, Settlement, bury, fail, release
from django_delayq.core.retry import default_backoff, safe_delay
from django_delayq.core.task import Task

ERROR_BYTES: Final = 4096
_MESSAGE_CHARS: Final = 1000
_UNKNOWN_FIRST: Final = 30.0
_UNKNOWN_LONGEST: Final = 600.0
_UNKNOWN_PATIENCE: Final = 24 * 3600.0
_LONGEST_CRASH_DELAY: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a task's options that decides, with the job's own overrides."""

    max_attempts: int = 26
    crash_limit: int = 3
    timeout: float | None = None
    max_lease: float | None = None
    retry_in: Callable[[int], float] = default_backoff


def policy_of(task: Task | None, job: Job | None = None) -> Policy:
    """The policy for ``job``; without a registered task the defaults count."""
    overrides: dict[str, Any] = job.options if job is not None and job.options_json else {}
    options = task.options if task is not None else Policy()
    return Policy(
        max_attempts=overrides.get("max_attempts", options.max_attempts),
        crash_limit=options.crash_limit,
        timeout=overrides.get("timeout", options.timeout),
        max_lease=options.max_lease,
        retry_in=options.retry_in,
    )


def raised(job: Job, policy: Policy, error: BaseException, started_ms: int, run_ms: int, *,
           timed_out: bool = False) -> Settlement:  # fmt: skip
    """The handler raised ``error``: one of the verdicts, or a failure."""
    if isinstance(error, Release):
        return release(job, delay_ms=None if error.delay is None else _ms(error.delay), reason=str(error)[:200])
    if isinstance(error, Bury):
        return bury(job, started_ms, run_ms, reason=str(error)[:200] or "buried", error_class=class_of(error),
                    error=error_record(error))  # fmt: skip
    own_delay = error.delay if isinstance(error, Retry) else None
    timed_out = timed_out or isinstance(error, JobTimeout)
    return _failed(job, policy, started_ms, run_ms, "timeout" if timed_out else "failed", class_of(error),
                   error_record(error), own_delay)  # fmt: skip


def overran(job: Job, policy: Policy, started_ms: int, run_ms: int) -> Settlement:
    """The handler ignored its time limit until its process was ended."""
    record = record_of("JobTimeout", f"the run did not end although its limit of {policy.timeout} s had passed")
    return _failed(job, policy, started_ms, run_ms, "timeout", "JobTimeout", record, None)


def _failed(job: Job, policy: Policy, started_ms: int, run_ms: int, outcome: str, error_class: str, error: bytes,
            own_delay: float | None) -> Settlement:  # fmt: skip
    if job.failures + 1 >= policy.max_attempts:
        return bury(job, started_ms, run_ms, reason="exhausted", outcome="exhausted",
                    error_class=error_class, error=error)  # fmt: skip
    delay = safe_delay(policy.retry_in, job.failures) if own_delay is None else own_delay
    return fail(job, started_ms, run_ms, delay_ms=_ms(delay), outcome=outcome, error_class=error_class, error=error)


def crashed(job: Job, policy: Policy, why: str, *, started_ms: int = 0, run_ms: int = 0,
            guard: str = "token") -> Settlement:  # fmt: skip
    """The process died under the job. The first crash is tried again at once, later ones after 10 s · 2^n."""
    record = record_of("Crashed", why)
    if job.crashes + 1 >= policy.crash_limit or job.failures + 1 >= policy.max_attempts:
        return bury(job, started_ms, run_ms, reason="poison", outcome="poison", error_class="Crashed", error=record,
                    guard=guard)  # fmt: skip
    # The exponent is bounded before the power, because a stored counter may be anything.
    delay = 0.0 if job.crashes == 0 else min(_LONGEST_CRASH_DELAY, 10.0 * 2.0 ** min(job.crashes - 1, 20))
    return fail(job, started_ms, run_ms, delay_ms=_ms(delay), outcome="crashed", error_class="Crashed", error=record,
                guard=guard)  # fmt: skip


def lost(job: Job, policy: Policy) -> Settlement:
    """The lease ran out unsettled. Only a job that is known to have started pays for it with an attempt."""
    if job.flags & STARTED:
        return crashed(job, policy, f"the lease of worker {job.worker} ran out during the run", guard="expired")
    return release(job, suspect=True, reason="lease ran out before a known start", guard="expired", event=True)


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


def not_prepared(job: Job, error: BaseException) -> Settlement:
    """What has to stand before the handler (a database connection, …) does not; the job is not to blame."""
    delay = growing_delay(give_backs(job), 1.0, 60.0)
    return release(job, delay_ms=_ms(delay), reason=f"not prepared: {class_of(error)}"[:200])


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


# --- the stored form of an error


def class_of(error: BaseException) -> str:
    """Qualified class name, e.g. ``shop.errors.GatewayDown``; builtins without their module."""
    kind = type(error)
    return (kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")[:200]


def error_record(error: BaseException) -> bytes:
    """JSON of class, message and the end of the traceback, at most 4 KiB whatever the exception is made of."""
    return record_of(class_of(error), _text_of(error), _traceback_of(error))


def record_of(name: str, message: str, trace: str = "") -> bytes:
    """The same from its parts. Control characters arrive escaped, by the nature of JSON."""
    record = {"class": name[:200], "message": message[:_MESSAGE_CHARS], "traceback": trace[-ERROR_BYTES:]}
    encoded = _encode(record)
    while len(encoded) > ERROR_BYTES:  # the traceback first, from its beginning: the end tells where it broke
        over = len(encoded) - ERROR_BYTES
        key = "traceback" if record["traceback"] else "message"
        # One character takes one to six bytes here, so this ends after a few rounds without cutting far too much.
        cut = max(1, over // 6)
        record[key] = record[key][cut:] if key == "traceback" else record[key][:-cut]
        encoded = _encode(record)
    return encoded


def _encode(record: dict[str, str]) -> bytes:
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARS]
    except Exception as broken:
        return f"(its message cannot be read: {type(broken).__name__})"


def _traceback_of(error: BaseException) -> str:
    try:
        parts = traceback.format_tb(error.__traceback__, limit=-20)
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            parts.insert(0, f"after {class_of(cause)}: {_text_of(cause)[:300]}\n")
        return "".join(parts)
    except Exception as broken:
        return f"(its traceback cannot be read: {type(broken).__name__})"
