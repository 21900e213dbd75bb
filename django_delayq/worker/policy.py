"""Policy of a job: the options of its task and of its schedule call that decide about the ends of its attempts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..core.errors import JobTimeout, Misconfigured
from ..core.job import Job
from ..core.outcomes import Settlement
from ..core.retry import MAX_DELAY, default_backoff
from ..core.retry import Policy as Backoff
from ..core.retry import policy_of as backoff_of
from ..core.task import Task, TaskOptions

logger: Final = logging.getLogger("django_delayq.worker.decision")

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
    """Return the policy for ``job``: the defaults if its task is not registered, or an override is unusable."""
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
    """Return the options of the schedule call, which checked them; unusable ones were stored by another program."""
    try:
        stored = job.options
        overrides: dict[str, Any] = {}
        if "max_attempts" in stored:
            overrides["max_attempts"] = max(1, int(stored["max_attempts"]))
        if "timeout" in stored:
            overrides["timeout"] = None if stored["timeout"] is None else max(0.001, float(stored["timeout"]))
        if stored.get("retry_in") is not None:
            overrides["retry_in"] = backoff_of(stored["retry_in"])
        return overrides
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, Misconfigured) as error:
        logger.warning("%s: its own options cannot be used, so those of task %s apply: %s", job.id, job.task, error)
        return {}


def with_merge_rules(settlement: Settlement, policy: Policy) -> Settlement:
    """Set the rules by which returning payloads are merged with those that arrived meanwhile."""
    if settlement.job.merged:
        settlement.inherit, settlement.score_policy = policy.inherit, policy.score_policy
    return settlement


def clamp(seconds: float) -> float:
    """Return ``seconds`` clamped to 0 … ten years."""
    return min(MAX_DELAY, max(0.0, seconds))


def safe_delay(policy: Backoff, n: int) -> float:
    """Return the pause of ``policy`` for retry ``n``, in seconds, even if ``policy`` misbehaves.

    If it raises or does not return a number, the default back-off is used and the error is logged: a wrong policy must
    not cost a job.
    """
    try:
        # SystemExit too: a policy is user code and must not end the worker that calls it. JobTimeout: it hung.
        answer: object = policy(n)
        if isinstance(answer, timedelta):
            answer = answer.total_seconds()
        if isinstance(answer, int) and not isinstance(answer, bool):
            answer = float(clamp(answer))  # clamped as an int: a huge one has no float
        if isinstance(answer, float) and math.isfinite(answer):
            return float(clamp(answer))
        raise TypeError(f"{type(answer).__name__} is no number of seconds")
    except (Exception, SystemExit, JobTimeout):
        logger.exception("the back-off %r failed for retry %d; the default back-off is used", policy, n)
        return clamp(default_backoff(n))
