"""Decisions about the end of an attempt: from a job, the options of its task and what happened, to a settlement.

They store nothing and never raise: what a project's code returns here may be anything.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from ..core.errors import JobTimeout, Misconfigured
from ..core.job import STARTED, UNRENEWED, Job
from ..core.options import TASK_OPTIONS, TaskOptions
from ..core.outcomes import AttemptOutcome, Settlement, bury, fail, release
from ..core.retry import Policy as Backoff, default_backoff, ms_of, seconds_of
from ..core.verdicts import Bury, PartialFailure, RateLimited, Release, Retry
from .attempt import NO_TASK
from .record import class_of, error_record, name_of, record_of, text_of

if TYPE_CHECKING:
    from ..core.task import Task

logger: Final = logging.getLogger(__name__)

_LONGEST_CRASH_DELAY: Final = 3600.0
#: reason of jobs whose task a worker does not know, and seconds after which they are buried if no worker does
_UNKNOWN: Final = "unknown task"
_UNKNOWN_SECONDS: Final = 24 * 3600.0

#: the end of an attempt whose job was acked before it began
_record: Final = partial(Settlement, verb="record")
#: options that are stored with a job if its schedule call gave them
_OWN: Final = tuple(name for name, row in TASK_OPTIONS.items() if row.member)


# -- options of a job --------------------------------------------------------------------------------------------------


def policy_of(task: Task | None, job: Job | None = None) -> TaskOptions:
    """Return the options that decide about the attempts of ``job``: those of its task, overridden by its own.

    They are the defaults if the task is not registered here. Unusable options of the job are ignored.
    """
    if job is not None and job.options_json:
        try:
            return _overridden(task, job.options_json)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, Misconfigured) as error:
            # The schedule call has checked them, so another program stored these.
            logger.warning("%s: its own options cannot be used, so those of task %s apply: %s", job.id, job.task, error)
    return NO_TASK if task is None else task.options


@lru_cache(maxsize=256)
def _overridden(task: Task | None, own: bytes) -> TaskOptions:
    options = NO_TASK if task is None else task.options
    stored = json.loads(own)
    values = {name: stored.get(name) for name in _OWN if name in stored}
    return replace(options, **values) if values else options


# -- the end of one attempt --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """End of one attempt, to be decided: the job, the options that decide about it, and the times of the attempt."""

    job: Job
    policy: TaskOptions
    started_ms: int = 0
    run_ms: int = 0

    def _settlement(self, verb: Callable[..., Settlement], **fields: Any) -> Settlement:
        return self._returning(verb(self.job, self.started_ms, self.run_ms, **fields))

    def _returning(self, settlement: Settlement) -> Settlement:
        """Add the task's rules for payloads that meet others when they come back."""
        if self.job.merged:
            settlement.inherit = self.policy.due_policy == "inherit"
            settlement.score_policy = self.policy.score_policy
        return settlement

    # --- the handler raised

    def raised(
        self,
        error: BaseException,
        *,
        acked: bool = False,
        timed_out: bool = False,
        record: Callable[[BaseException], bytes] = error_record,
    ) -> Settlement:
        """Return the settlement of an attempt that raised ``error``: one of the verdicts, or a failure.

        Args:
            acked: the job was acked before the attempt began, so its end changes nothing but events and counters.
            timed_out: the time limit ended the attempt.
            record: makes the stored form of the error.
        """
        kind = JobTimeout if timed_out else type(error)
        if acked:
            stored: dict[str, Any] = {"error_class": class_of(error), "error": record(error)}
            return self._settlement(_record, outcome=_outcome_of(kind), reason="acked before it began", **stored)
        if isinstance(error, Release):
            # The attempt ended by itself, as a failed one does, so the job is not suspect any more.
            fields: dict[str, Any] = {"quarantine": False, "priority": error.priority, "began": True}
            if isinstance(error, RateLimited):
                scope = error.scope or ("group" if self.job.group else "task")
                fields["pause"] = scope, max(1, ms_of(error.retry_after))
            return self.give_back(text_of(error), error.delay, **fields)
        stored = {"error_class": class_of(error), "error": record(error)}
        if isinstance(error, Bury):
            return self._settlement(bury, reason=text_of(error) or "buried", **stored)
        if isinstance(error, Retry):
            return self._failed(kind, self.policy.retry_in, error.delay, **stored)
        return self._failed(kind, rule_of(self.policy, kind), **stored)

    def broken(self, error: BaseException, *, acked: bool) -> Settlement:
        """Return the settlement of an attempt whose end could not be decided. It counts: else it might repeat for ever.

        Nothing that may be the cause is called again: the default back-off follows, and the record of the error is
        plain.
        """
        if acked:
            return self.raised(error, acked=True)
        plain = replace(self, policy=TaskOptions(max_attempts=self.policy.max_attempts))
        stored: dict[str, Any] = {"error_class": class_of(error), "error": error_record(error)}
        return plain._failed(type(error), plain.policy.retry_in, **stored)

    def _failed(
        self, kind: type[BaseException], rule: Backoff | str, own_delay: float | None = None, **stored: Any
    ) -> Settlement:
        """Return the settlement of a failed attempt.

        Args:
            kind: class of the failure.
            rule: see :func:`rule_of`.
            own_delay: seconds instead of those of the back-off.
            stored: class and form of the error.
        """
        if isinstance(rule, str):
            return self._settlement(bury, reason=f"{rule}: {name_of(kind)}", **stored)
        outcome, merged = _outcome_of(kind), self.job.merged
        if self.job.failures + 1 >= self.policy.max_attempts:
            # Of a merged job only that payload has to go: the others may do better without it.
            fields = {"outcome": AttemptOutcome.EXHAUSTED, "reason": "exhausted", "oldest": merged}
            return self._settlement(bury, timed_out=outcome == AttemptOutcome.TIMEOUT, **fields, **stored)
        delay = safe_delay(rule, self.job.failures) if own_delay is None else own_delay
        return self._settlement(fail, outcome=outcome, delay_ms=ms_of(delay), **stored)

    # --- it did not end by itself: its process died or was ended, or its lease ran out

    def overran(self, stack: str = "") -> Settlement:
        """Return the settlement of an attempt that ignored its time limit until its process was ended.

        Args:
            stack: what it ran when the limit was enforced, in the form of a stored traceback.
        """
        message = f"the attempt did not end although its limit of {self.policy.timeout} s had passed"
        stored: dict[str, Any] = {"error_class": "JobTimeout", "error": record_of("JobTimeout", message, stack)}
        return self._failed(JobTimeout, rule_of(self.policy, JobTimeout), **stored)

    def crashed(self, why: str, *, beside: int = 0) -> Settlement:
        """Return the settlement of a job whose process died, but not the host: its next attempt is in quarantine.

        Args:
            beside: other jobs that had started in the process. If there were any, the cause is unknown, so none of them
                is buried for it, however often it happened.
        """
        if beside:
            why += f"; {beside} other {'job' if beside == 1 else 'jobs'} ran in the same process"
        return self._end_by_crash(why, own=not beside, quarantine=True, spared=bool(beside))

    def lost(self) -> Settlement:
        """Return the settlement of a job whose lease ran out. It counts as an attempt if a start is known.

        A worker's lease runs out when its host is gone, which is not the job's fault, so it does not count towards
        ``crash_limit``. The lease of a holder without a heartbeat was for that job alone, so it counts.
        """
        job = self.job
        if not job.flags & STARTED:
            reason = f"the lease of worker {job.worker or '?'} ran out before a known start"
            return self.give_back(reason, unclear=True, outcome=AttemptOutcome.LOST, event=True)
        why = f"the lease of worker {job.worker} ran out during the attempt"
        return self._end_by_crash(why, own=bool(job.flags & UNRENEWED), quarantine=job.quarantined)

    def _end_by_crash(self, why: str, *, own: bool, quarantine: bool, spared: bool = False) -> Settlement:
        """Return the settlement of a crash: the first is retried at once, later ones after 10 s · 2^n.

        Args:
            own: the crash is certainly the job's, so it counts towards ``crash_limit``.
            spared: the job is not buried for it.
        """
        job, policy = self.job, self.policy
        crash: dict[str, Any] = {"error_class": "Crashed", "error": record_of("Crashed", why)}
        is_last = job.failures + 1 >= policy.max_attempts or (own and job.own_crashes + 1 >= policy.crash_limit)
        if is_last and not spared:
            # All payloads of a merged job, because the cause may be any of them.
            return self._settlement(bury, reason="poison", outcome=AttemptOutcome.POISON, **crash)
        # The exponent is bounded before the power, because a stored counter may be anything.
        delay = 0.0 if job.crashes == 0 else min(_LONGEST_CRASH_DELAY, 10.0 * 2.0 ** min(job.crashes - 1, 20))
        crash |= {"delay_ms": ms_of(delay), "outcome": AttemptOutcome.CRASHED}
        return self._settlement(fail, quarantine=quarantine, own_crash=own, **crash)

    # --- it did not begin here, or is not to count

    def give_back(self, reason: str = "", delay: float | None = None, **fields: Any) -> Settlement:
        """Return a release that counts no attempt.

        Args:
            reason: why.
            delay: seconds until the job is due; None = at its old place.
            fields: further fields of the settlement.
        """
        delay_ms = None if delay is None else ms_of(delay)
        return self._returning(release(self.job, delay_ms=delay_ms, reason=reason, **fields))

    def not_prepared(self, error: BaseException, now_ms: float) -> Settlement:
        """Postpone a job whose preconditions (a database connection, …) failed; the job is not to blame."""
        reason = f"not prepared: {class_of(error)}"
        delay = min(60.0, max(1.0, _postponed_seconds(self.job, reason, now_ms)))
        return self.give_back(reason, delay, postpone=True)

    def unknown_task(self, now_ms: float, *, jitter: float, is_known: Callable[[], bool]) -> Settlement:
        """Postpone a job of a task that is not registered here, or bury it after a day: the caller may be newer code.

        It is due again after a second or two, later after a quarter of the time that it has waited, so that thousands
        of such jobs are no busy loop.

        Args:
            now_ms: Redis's time.
            jitter: 0 … 1.
            is_known: returns True if a live worker of the queue knows the task, so that the job is not buried.
        """
        job = self.job
        waited = _postponed_seconds(job, _UNKNOWN, now_ms)
        if waited < _UNKNOWN_SECONDS or is_known():
            return self.give_back(_UNKNOWN, min(300.0, max(1.0 + jitter, waited / 4)), postpone=True)
        advice = f"register it, or give the new name aliases=({job.task!r},)"
        record = record_of("UnknownTask", f"no worker knew the task {job.task!r} after 24 hours; {advice}")
        return self._settlement(bury, reason=_UNKNOWN, error_class="UnknownTask", error=record)


def crashed_early(job: Job, why: str, now_ms: float) -> Settlement:
    """Return the end of an attempt whose process died. The job was acked before, so it never begins again."""
    return Settlement(
        job,
        job.deadline_ms,
        max(0, int(now_ms) - job.deadline_ms),
        verb="record",
        outcome=AttemptOutcome.CRASHED,
        reason=why[:200],
        error_class="Crashed",
        error=record_of("Crashed", why),
        once=True,
    )


def undecodable(job: Job, error: BaseException) -> Settlement:
    """Bury a job whose stored arguments cannot be decoded; no later attempt could read them."""
    outcome, record = AttemptOutcome.UNDECODABLE, error_record(error)
    return bury(job, reason="undecodable", outcome=outcome, error_class=class_of(error), error=record)


# -- parts of these decisions -----------------------------------------------------------------------------------------


def failures_of(error: BaseException, ids: Iterable[str]) -> dict[str, BaseException]:
    """Return the error of each failed id of an attempt; an id that is not in it is done.

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
        "keys of the handler's argument. Its meaning is unclear, so all ids of the batch count as failed"
    )
    wrong.__cause__ = error
    return dict.fromkeys(ids, wrong)


def _exception(value: object) -> BaseException:
    if isinstance(value, BaseException):
        return value
    return Exception(value if isinstance(value, str) else repr(value)[:200])


def rule_of(policy: TaskOptions, kind: type[BaseException]) -> Backoff | str:
    """Return the back-off after such an exception, or the reason against another attempt. The nearest class counts."""
    rules = policy.retry_for or ()
    if rules or policy.give_up_on:
        for base in kind.__mro__:
            if base in policy.give_up_on:
                return "gave up"
            if base in rules:
                return rules[base] if isinstance(rules, Mapping) else policy.retry_in  # type: ignore[return-value]
    return policy.retry_in if not rules or isinstance(rules, Mapping) else "not retried"


def _outcome_of(kind: type[BaseException]) -> AttemptOutcome:
    return AttemptOutcome.TIMEOUT if issubclass(kind, JobTimeout) else AttemptOutcome.FAILED


def safe_delay(backoff: Backoff, n: int) -> float:
    """Return the pause of ``backoff`` for retry ``n``, in seconds, even if ``backoff`` misbehaves.

    If it raises or does not return a number, the default back-off is used and the error is logged: a wrong back-off
    must not cost a job.
    """
    try:
        # SystemExit too: a back-off is user code and must not end the worker that calls it. JobTimeout: it hung.
        return seconds_of(backoff(n))
    except (Exception, SystemExit, JobTimeout):
        logger.exception("the back-off %r failed for retry %d; the default back-off is used", backoff, n)
        return seconds_of(default_backoff(n))


def _postponed_seconds(job: Job, reason: str, now_ms: float) -> float:
    """Return for how long the job has been postponed for this reason without a break."""
    return max(0.0, now_ms - job.postponed_at_ms) / 1000 if job.postponed_for == reason else 0.0
