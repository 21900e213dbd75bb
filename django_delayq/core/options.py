"""Options of tasks, the check of each one, and the rules for their combination."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final

from . import retry
from .errors import InvalidJob, Misconfigured
from .inputs import (
    check_choice,
    check_flag,
    check_int,
    check_known,
    check_queue_name,
    check_seconds,
    check_task_name,
    exception_classes,
    short,
)
from .job import DEFAULT_PRIORITY, PRIORITIES
from .option_functions import check_derivations, check_takes_two
from .records.keys import MAX_SHARDS
from .retry import Policy, default_backoff
from .times import check_timezone

CONFLICTS: Final = ("merge", "replace", "ignore", "error")
DUE_POLICIES: Final = ("keep", "replace", "earliest", "latest", "inherit")
SCORE_POLICIES: Final = ("min", "max", "first", "last")
PAYLOAD_POLICIES: Final = ("all", "last", "first")
ACKS: Final = ("late", "early")
MISSED: Final = ("once", "skip")
MAX_BATCH: Final = 250
MAX_PAYLOADS: Final = 1_000_000
DEFAULT_MAX_PAYLOADS: Final = 10_000
_MAX_CONCURRENCY: Final = 10_000

#: options that belong to one task and cannot be defaults
OWN: Final = ("merge", "every", "cron", "aliases", "id", "at", "score")
#: options of merged tasks only, and their values for other tasks
_NEUTRAL: Final = {"batch_size": 1, "payloads": "all", "max_payloads": None, "score_policy": "min", "score": None}
#: defaults that a merged task ignores; the last three concern ids and queues of plain tasks
_NOT_MERGED: Final = frozenset(("expires", "timezone", "missed", "queue", "on_conflict", "due_policy"))
_MAX_EVERY: Final = 3653 * 86_400.0
_MIN_EVERY: Final = 1.0

# five fields, six with seconds, or a name like @hourly; the parser of the expression checks the rest
_CRON: Final = re.compile(r"@[a-z]+|\S+(?: +\S+){4,5}")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limit of jobs that run at the same time: in all workers together (``total``), in each process (``local``)."""

    total: int | None = None
    local: int | None = None


def check_concurrency(name: str, value: Any) -> Concurrency | None:
    """Return a limit given as an int (over all workers) or as ``{"total": n, "local": n}``; None = no limit.

    Raises:
        InvalidJob: it is neither; the message begins with ``name``.
    """
    if value is None or isinstance(value, Concurrency):
        return value
    if not isinstance(value, Mapping):
        return Concurrency(check_int(name, value, 1, _MAX_CONCURRENCY))
    check_known(tuple(value), ("total", "local"), "limit")
    if not value:
        raise InvalidJob(f'{name} is empty; give {{"total": n}}, {{"local": n}} or both, got {short(value)}')
    return Concurrency(**{part: check_int(f"{name}: {part}", n, 1, _MAX_CONCURRENCY) for part, n in value.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Policy of a task.

    Every option but those of :data:`OWN` may be a default in ``DELAYQ["TASK_DEFAULTS"]``, for the tasks that it fits.
    Whatever form was given, times are stored as seconds, back-offs as functions and classes as tuples.
    """

    #: queue of its jobs
    queue: str = "default"
    #: exact number of counted attempts (a start followed by failure, timeout or crash) before the morgue
    max_attempts: int = 26
    #: limit of one attempt in seconds; None = no limit
    timeout: float | None = None
    #: delay before the next attempt: a function of the number of failures before this one (0 at first), or seconds, a
    #: timedelta, a list of them, or the name of a preset ("ladder")
    retry_in: Policy = default_backoff
    #: id of a job whose call gives none: a function or a template ("order-{order_id}") of the call's arguments, for
    #: merged tasks of the payload; None = a random one
    id: str | Callable[..., object] | None = None
    #: due time of a job whose call gives neither at= nor delay=: a function of the call's arguments (merged: of the
    #: payload) that returns what at= takes; None, also as its result, = now
    at: Callable[..., object] | None = None
    #: merged: score of a payload whose call gives none: a function of the payload; None = the time of its arrival
    score: Callable[[Any], object] | None = None
    #: 0 (first) … 7 (last)
    priority: int = DEFAULT_PRIORITY
    #: action when the id is already live: merge (merged tasks), replace, ignore or error; None = merge for merged
    #: tasks, replace for others
    on_conflict: str | None = None
    #: due time of a job whose id was already waiting: keep, replace, earliest, latest, or (merged tasks) inherit = keep
    #: even the back-off of failed content; None = keep for merge, replace for replace
    due_policy: str | None = None
    #: crashes that are certainly its own (in quarantine, or alone in its process) before the morgue, reason ``poison``
    crash_limit: int = 3
    #: longest time in seconds for which the heartbeat renews one attempt's lease; None = as long as the process lives
    max_lease: float | None = None
    #: most jobs that run at the same time: an int over all workers, or {"total": …, "local": … in each process}
    concurrency: int | Mapping[str, int] | Concurrency | None = None
    #: number of shards with which the queue is created; None = the queue's own setting
    shards: int | None = None
    #: the handler gets ``{id: [payload, …]}``; jobs of one id are merged until they run
    merge: bool = False
    #: merged: maximum number of ids in one call of the handler
    batch_size: int = 1
    #: merged: which payloads of an id are kept: all, the last (highest scores) or the first (lowest)
    payloads: str = "all"
    #: merged: maximum number of payloads of an id; None = 10,000, or 1 with payloads "last" or "first"
    max_payloads: int | None = None
    #: merged: score of a payload that arrives again: min, max, first or last
    score_policy: str = "min"
    #: "early" = the job is done when its attempt starts, so that it never runs twice and a crash loses it
    ack: str = "late"
    #: seconds after its due time from which a job is not started any more; None = never
    expires: float | timedelta | None = None
    #: True = a handler that returns False has failed; otherwise every return is a success
    retry_on_false: bool = False
    #: exception class → back-off of its own, or a tuple of classes: only these are retried, the others are buried
    retry_for: Mapping[type[BaseException], object] | tuple[type[BaseException], ...] | None = None
    #: exceptions after which another attempt is pointless: the job is buried at once
    give_up_on: tuple[type[BaseException], ...] = ()
    #: called with (job, error) when the attempts are used up, before the job is buried
    on_exhausted: Callable[..., object] | None = None
    #: recurring: the time between two ticks; ticks are multiples of it since 1970-01-01 UTC
    every: float | timedelta | None = None
    #: recurring: a cron expression ("*/5 * * * *")
    cron: str | None = None
    #: time zone of ``cron`` ("Europe/Berlin"); None = the project's
    timezone: str | None = None
    #: ticks that were not fired in time: "once" = one job for all of them, "skip" = none
    missed: str = "once"
    #: its jobs are also kept in the database until they are done; None = the queue's own setting
    durable: bool | None = None
    #: its schedule calls return when replicas or disks confirm the job (``REDIS``: ``WAIT_…``); None = ``WAIT_DEFAULT``
    wait_for_confirmation: bool | None = None
    #: it may be scheduled over HTTP
    api: bool = False
    #: former names; jobs stored under them still resolve to the task
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_queue_name(self.queue)
        check_int("max_attempts", self.max_attempts, 1, 1_000_000)
        check_int("priority", self.priority, 0, PRIORITIES - 1)
        check_int("crash_limit", self.crash_limit, 1, 1_000_000)
        check_choice("ack", self.ack, ACKS)
        for name in ("timeout", "max_lease"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        for name, choices in (("on_conflict", CONFLICTS), ("due_policy", DUE_POLICIES)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), choices)
        if self.shards is not None:
            check_int("shards", self.shards, 1, MAX_SHARDS)
        for name in ("durable", "wait_for_confirmation"):
            if getattr(self, name) is not None:
                check_flag(name, getattr(self, name))
        check_flag("api", self.api)
        check_flag("retry_on_false", self.retry_on_false)
        check_derivations(self.id, self.at, self.score)
        self._set("concurrency", check_concurrency("concurrency", self.concurrency))
        self._set("retry_in", backoff_of("retry_in", self.retry_in))
        self._set("aliases", _aliases(self.aliases))
        self._check_merge()
        self._check_recurrence()
        self._check_failures()

    def _set(self, name: str, value: object) -> None:
        """Set a field of the frozen instance to its normal form."""
        object.__setattr__(self, name, value)

    def _check_merge(self) -> None:
        check_int("batch_size", self.batch_size, 1, MAX_BATCH)
        check_choice("payloads", self.payloads, PAYLOAD_POLICIES)
        check_choice("score_policy", self.score_policy, SCORE_POLICIES)
        if self.max_payloads is not None:
            check_int("max_payloads", self.max_payloads, 1, MAX_PAYLOADS)
        if self.expires is not None:
            self._set("expires", seconds_of("expires", self.expires))
        if check_flag("merge", self.merge):
            for name in ("expires", "every", "cron"):
                if getattr(self, name) is not None:
                    raise InvalidJob(f"{name} is not for merged tasks; leave it out, or leave merge=True out")
            if self.max_payloads is None:
                self._set("max_payloads", DEFAULT_MAX_PAYLOADS if self.payloads == "all" else 1)
            return
        for name, neutral in _NEUTRAL.items():
            if getattr(self, name) != neutral:
                raise InvalidJob(f"{name} is for merged tasks only; add merge=True or leave it out")
        if self.on_conflict == "merge":
            raise InvalidJob('on_conflict="merge" is for merged tasks; add merge=True, or use replace, ignore or error')
        if self.due_policy == "inherit":
            raise InvalidJob('due_policy="inherit" is for merged tasks; use keep, replace, earliest or latest')

    def _check_recurrence(self) -> None:
        check_choice("missed", self.missed, MISSED)
        if self.at is not None and (self.every is not None or self.cron is not None):
            raise InvalidJob("at is for tasks that are scheduled; every and cron say when a recurring task runs")
        if self.every is not None:
            every = seconds_of("every", self.every)
            if not _MIN_EVERY <= every <= _MAX_EVERY:
                raise InvalidJob(f"every must be one second to ten years, got {every:g} s")
            self._set("every", every)
        if self.cron is not None:
            if self.every is not None:
                raise InvalidJob("every and cron both say when the task runs; give one of them")
            if not (isinstance(self.cron, str) and _CRON.fullmatch(self.cron.strip())):
                raise InvalidJob(f'cron must be a text of five fields like "*/5 * * * *", got {short(self.cron)}')
        if self.timezone is not None:
            if self.cron is None:
                raise InvalidJob("timezone is for cron only; ticks of every do not depend on a time zone")
            check_timezone(self.timezone)
        if self.missed != "once" and self.every is None and self.cron is None:
            raise InvalidJob("missed is for recurring tasks only; give every= or cron= too, or leave it out")

    def _check_failures(self) -> None:
        retry_for: object = self.retry_for
        if isinstance(retry_for, Mapping):
            policies = {kind: backoff_of("retry_for", value) for kind, value in retry_for.items()}
            exception_classes("retry_for", tuple(policies))
            self._set("retry_for", policies)
        elif retry_for is not None:
            self._set("retry_for", exception_classes("retry_for", retry_for))
        self._set("give_up_on", exception_classes("give_up_on", self.give_up_on))
        if self.on_exhausted is not None:
            check_takes_two(self.on_exhausted)

    @property
    def recurring(self) -> bool:
        """True if the task runs repeatedly without being scheduled."""
        return self.every is not None or self.cron is not None

    @classmethod
    def build(
        cls, options: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None, what: str = "the task"
    ) -> TaskOptions:
        """Return checked options from a mapping.

        Args:
            defaults: options of the project; those that do not fit this task are left out.

        Raises:
            Misconfigured: an unknown or invalid option; the message begins with ``what`` and suggests the right name.
        """
        try:
            check_known((*options, *(defaults or ())), OPTION_NAMES, "option")
            return cls(**{**_fitting(defaults or {}, options), **options})
        except (InvalidJob, Misconfigured) as error:
            raise Misconfigured(f"{what}: {error}") from None

    @classmethod
    def check_defaults(cls, defaults: Mapping[str, Any], *, what: str) -> None:
        """Check that ``defaults`` can be the defaults of tasks of every kind.

        Raises:
            Misconfigured: an option that belongs to one task, or an unknown or invalid one.
        """
        for name in OWN:
            if name in defaults:
                raise Misconfigured(f"{what}: {name} belongs to one task; put it into its @task(...)")
        if defaults.get("on_conflict") == "merge" or defaults.get("due_policy") == "inherit":
            raise Misconfigured(
                f"{what}: merged tasks merge by default; on_conflict and due_policy are for plain tasks"
            )
        for kind in ({}, {"merge": True}, {"cron": "@daily"}):
            cls.build(kind, defaults=defaults, what=what)


OPTION_NAMES: Final = tuple(field.name for field in fields(TaskOptions))


def _fitting(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that apply to a task with these options."""
    without: set[str] = set(_NOT_MERGED if options.get("merge") is True else _NEUTRAL)
    if options.get("cron") is None:
        without.add("timezone")
        if options.get("every") is None:
            without.add("missed")
    return {name: value for name, value in defaults.items() if name not in without}


def backoff_of(name: str, value: object) -> Policy:
    """Return a back-off given in any form as a function from the number of earlier failures to seconds.

    Raises:
        InvalidJob: it is none; the message begins with ``name``.
    """
    try:
        return retry.policy_of(value)
    except Misconfigured as error:
        raise InvalidJob(f"{name}: {error}") from None


def seconds_of(name: str, value: object) -> float:
    """Return a ``timedelta`` or number above 0 as seconds; otherwise raise :class:`InvalidJob`."""
    return check_seconds(name, value.total_seconds() if isinstance(value, timedelta) else value)


def _aliases(value: object) -> tuple[str, ...]:
    if not isinstance(value, (tuple, list)):
        raise InvalidJob(f"aliases must be a tuple of former task names, got {short(value)}")
    return tuple(check_task_name(alias) for alias in value)
