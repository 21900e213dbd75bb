"""Table of the options of tasks and of jobs: who may set each one, its check, its default, and how it is stored.

The fields of :class:`TaskOptions` are the rows of the options that a task has, some of which a job can override;
:data:`OPTIONS` adds those that only calls have. ``@task``, ``TASK_DEFAULTS``, ``schedule()``, the HTTP API and the
pipeline take names, checks and stored forms from here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Final

from . import retry
from .errors import InvalidJob, Misconfigured
from .inputs import (
    check_choice,
    check_flag,
    check_id,
    check_int,
    check_known,
    check_number,
    check_queue_name,
    check_seconds,
    check_task_name,
    exception_classes,
    plain_seconds,
    score_text,
    short,
)
from .job import DEFAULT_PRIORITY, MAX_ID_BYTES, PRIORITIES
from .records.keys import MAX_SHARDS
from .retry import Policy, default_backoff
from .times import check_timezone, ttr_ms_of

MAX_BATCH: Final = 250
DEFAULT_MAX_PAYLOADS: Final = 10_000
#: longest wait for room in a full queue, s
_LONGEST_WAIT: Final = 3600.0
_MAX_CONCURRENCY: Final = 10_000
_MAX_BURST: Final = 1_000_000
_MAX_WEIGHT: Final = 100
_RATE: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)/(s|m|h|d)")
_RATE_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: starts per second: one in ten days, and what a limiter can count
_LEAST_RATE: Final = 1 / 864_000
_MOST_RATE: Final = 100_000
#: time whose starts are the burst of a rate without one, µs
_BURST_US: Final = 100_000
_MAX_EVERY: Final = 3653 * 86_400.0
_MIN_EVERY: Final = 1.0
# five fields, six with seconds, or a name like @hourly; the parser of the expression checks the rest
_CRON: Final = re.compile(r"@[a-z]+|\S+(?: +\S+){4,5}")
#: kind of an option -> True if it fits beside the given options of a task, and the rule for messages
_KINDS: Final[Mapping[str, tuple[Callable[[Set[str]], bool], str]]] = {
    "both": (lambda given: True, ""),
    "plain": (lambda given: "merge" not in given, "not for merged tasks; leave it out, or leave merge=True out"),
    "merged": (lambda given: "merge" in given, "for merged tasks only; add merge=True or leave it out"),
    "recurring": (
        lambda given: bool(given & {"every", "cron"}),
        "for recurring tasks only; give every= or cron= too, or leave it out",
    ),
    "cron": (lambda given: "cron" in given, "for cron only; ticks of every do not depend on a time zone"),
}


# -- checks: of a name and a value; they return the value in its normal form or raise InvalidJob ---------------------


@dataclass(frozen=True, slots=True)
class Check:
    """Check of a value, and the JSON schema of valid ones."""

    run: Callable[[str, Any], Any]
    schema: Mapping[str, Any]

    def __call__(self, name: str, value: Any) -> Any:
        """Return the value in its normal form.

        Raises:
            InvalidJob: it is not valid; the message begins with ``name``.
        """
        return self.run(name, value)


def _whole(low: int, high: int) -> Check:
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Check(lambda name, value: check_int(name, value, low, high), schema)


def _choice(*choices: str) -> Check:
    return Check(lambda name, value: check_choice(name, value, choices), {"type": "string", "enum": [*choices]})


def backoff_of(name: str, value: object) -> Policy:
    """Return a back-off given in any form as a function from the number of earlier failures to seconds.

    Raises:
        InvalidJob: it is none; the message begins with ``name``.
    """
    try:
        return retry.policy_of(value)
    except Misconfigured as error:
        raise InvalidJob(f"{name}: {error}") from None


def _stored_backoff(name: str, value: object) -> object:
    """Return the JSON form of a back-off. A function is refused, because it can only be an option of the task."""
    if callable(value):
        raise InvalidJob(
            f"{name} of one job is stored with it, so it is seconds, a timedelta, a list of them or the name of a "
            f"preset; a function goes to the task: @task({name}=…)"
        )
    backoff_of(name, value)
    return [plain_seconds(pause) for pause in value] if isinstance(value, (list, tuple)) else plain_seconds(value)


def _timeout(name: str, value: object) -> float:
    """Return a time limit as it is stored: 3 for 3.0 seconds."""
    seconds = check_seconds(name, value)
    return int(seconds) if float(seconds).is_integer() else seconds


def _room_ms(name: str, value: object) -> int:
    return round(check_number(name, plain_seconds(value), 0, _LONGEST_WAIT) * 1000)


def _context(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidJob(f"{name} must be a dict, got {short(value)}")
    for key in value:
        if not isinstance(key, str):
            raise InvalidJob(f"a name in {name} is a text, not {short(key)}")
    return dict(value)


_ANY: Final = Check(lambda name, value: value, {})
_FLAG: Final = Check(check_flag, {"type": "boolean"})
_SECONDS: Final = {"type": "number", "minimum": 0}
_SPAN: Final = {"type": "number", "minimum": 0.001}
_TIMEOUT: Final = Check(_timeout, _SPAN)
_ID: Final = Check(lambda name, value: check_id(value), {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES})
_SCORE: Final = Check(
    lambda name, value: score_text(value), {"oneOf": [{"type": "number"}, {"type": "string", "maxLength": 255}]}
)
_BACKOFF: Final = Check(
    _stored_backoff, {"oneOf": [_SECONDS, {"type": "string"}, {"type": "array", "items": _SECONDS}]}
)


def _id_of_call(name: str, value: object) -> object:
    if callable(value) or (isinstance(value, str) and "{" in value):
        return value
    raise InvalidJob(
        f'{name} must be a function of the call\'s arguments, or a template of them like "order-{{order_id}}", got '
        f"{short(value)}; the id of one job goes to its schedule call"
    )


def _function_of(what: str, *arguments: Any) -> Callable[[str, Any], Any]:
    """Return a check for functions, which can be called with such arguments if some are given."""

    def check(name: str, value: object) -> object:
        if not callable(value):
            raise InvalidJob(f"{name} must be a function of {what}, got {short(value)}")
        try:
            signature = inspect.signature(value) if arguments else None
        except (TypeError, ValueError):
            return value  # a builtin without a signature
        try:
            if signature is not None:
                signature.bind(*arguments)
        except TypeError:
            raise InvalidJob(f"{name} is called with {what}; {short(value)} takes {signature}") from None
        return value

    return check


def _every(name: str, value: object) -> float:
    every = check_seconds(name, value)
    if not _MIN_EVERY <= every <= _MAX_EVERY:
        raise InvalidJob(f"{name} must be one second to ten years, got {every:g} s")
    return every


def _cron(name: str, value: object) -> object:
    if isinstance(value, str) and _CRON.fullmatch(value.strip()):
        return value
    raise InvalidJob(f'{name} must be a text of five fields like "*/5 * * * *", got {short(value)}')


def _retry_for(name: str, value: object) -> object:
    if not isinstance(value, Mapping):
        return exception_classes(name, value)
    policies = {kind: backoff_of(name, pauses) for kind, pauses in value.items()}
    exception_classes(name, tuple(policies))
    return policies


def _aliases(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, (tuple, list)):
        raise InvalidJob(f"{name} must be a tuple of former task names, got {short(value)}")
    return tuple(check_task_name(alias) for alias in value)


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate of starts: as it was given, and the time from one to the next, µs."""

    text: str
    interval_us: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the jobs of a task or a queue.

    Attributes:
        total: most jobs that run at the same time, in all workers together.
        local: the same in each process.
        interval_us: time from one start to the next, in all workers together, µs.
        burst: number of starts that may follow each other at once.
        weight: of a group, its turns for each one of others.
    """

    total: int | None = None
    local: int | None = None
    interval_us: float | None = None
    burst: int = 0
    weight: int = 1

    @property
    def is_shared(self) -> bool:
        """True if there is a limit over all workers."""
        return self.total is not None or self.interval_us is not None

    @property
    def fields(self) -> dict[str, Any]:
        """Numbers over all workers as the limiter takes them."""
        numbers = {"total": self.total, "interval": self.interval_us, "burst": self.burst}
        return {name: value for name, value in numbers.items() if value}

    @classmethod
    def of_fields(cls, numbers: Mapping[str, Any]) -> Limits:
        """Return the limits with these numbers."""
        return cls(numbers.get("total"), None, numbers.get("interval"), numbers.get("burst", 0))


#: member of the stored options of a job with the limits of its group: total, interval in µs, burst, weight; 0 = none
GROUP_LIMITS: Final = "group_limits"
#: options of a task with the limits of a group, in the order of :func:`limits_of_group`
GROUP_OPTIONS: Final = ("group_concurrency", "group_rate", "group_burst", "group_weight")
MAX_GROUP_BYTES: Final = 128


def check_group(name: str, value: object) -> str:
    """Return ``value`` if it is the name of a group.

    Raises:
        InvalidJob: it is not; the message begins with ``name``.
    """
    if not isinstance(value, str) or not 0 < len(value.encode()) <= MAX_GROUP_BYTES or "\0" in value:
        raise InvalidJob(
            f"{name} is a text of 1 to {MAX_GROUP_BYTES} bytes without zero characters, got {short(value)}"
        )
    return value


def _or_function(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Return a check for values, or functions of the call's arguments that return them."""
    return lambda name, value: value if callable(value) else check(name, value)


def joint_limits(concurrency: Limits | None, rate: Rate | None, burst: int | None) -> Limits | None:
    """Return the limits of these options; None if there is none.

    Raises:
        InvalidJob: a burst without a rate.
    """
    if rate is None:
        if burst is not None:
            raise InvalidJob("burst is the number of starts at once of a rate; give rate= too, or leave it out")
        return concurrency
    at_once = max(1, int(_BURST_US / rate.interval_us)) if burst is None else burst
    return replace(concurrency or Limits(), interval_us=rate.interval_us, burst=at_once)


def limits_of_group(*given: Any) -> Limits | None:
    """Return the numbers of a group as its limits, None without any; a burst is of no use without a rate.

    Raises:
        InvalidJob: one of them is not valid.
    """
    rows = [(name, value, TASK_OPTIONS[name].check) for name, value in zip(GROUP_OPTIONS, given, strict=True)]
    total, rate, burst, weight = (
        check(name, value) if check and value is not None else None for name, value, check in rows
    )
    limits = joint_limits(Limits(total, weight=weight or 1), rate, burst if rate else None)
    return None if limits == Limits() else limits


def check_rate(name: str, value: Any) -> Rate:
    """Return a rate given as a number of starts per second, or as a text like "10/s", "1000/m", "5/h" or "100/d".

    Raises:
        InvalidJob: it is neither; the message begins with ``name``.
    """
    if isinstance(value, Rate):
        return value
    if not isinstance(value, str):
        return Rate(f"{value}/s", 1e6 / check_number(name, value, _LEAST_RATE, _MOST_RATE, unit="starts per second"))
    match = _RATE.fullmatch(value.replace(" ", ""))
    per_second = float(match[1]) / _RATE_SECONDS[match[2]] if match else 0.0
    if not _LEAST_RATE <= per_second <= _MOST_RATE:
        raise InvalidJob(f'{name} must be like "10/s", "1000/m", "5/h" or "100/d", got {short(value)}')
    return Rate(value, 1e6 / per_second)


def check_concurrency(name: str, value: Any) -> Limits | None:
    """Return a limit given as an int (over all workers) or as ``{"total": n, "local": n}``; None = no limit.

    Raises:
        InvalidJob: it is neither; the message begins with ``name``.
    """
    if value is None or isinstance(value, Limits):
        return value
    if not isinstance(value, Mapping):
        return Limits(check_int(name, value, 1, _MAX_CONCURRENCY))
    check_known(tuple(value), ("total", "local"), "limit")
    if not value:
        raise InvalidJob(f'{name} is empty; give {{"total": n}}, {{"local": n}} or both, got {short(value)}')
    return Limits(**{part: check_int(f"{name}: {part}", n, 1, _MAX_CONCURRENCY) for part, n in value.items()})


# -- table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Row of the table.

    Attributes:
        check: check of the value that a task has; None = it is no option of tasks.
        default: value of a task that does not set it.
        kind: tasks that it is for: both, plain or merged ones; recurring ones; those with ``cron``.
        merged_only: a value that only merged tasks may have; "" = there is none.
        project: tasks that take it from ``TASK_DEFAULTS``: all that it is for, of these only the plain ones, or none,
            because it belongs to one task.
        job: check of the value that one job has; None = it is no option of one job.
        call: it is an option of a schedule call that concerns all of its jobs.
        field: attribute of :class:`~.job.NewJob` that takes the checked value of a job.
        member: member of the options stored with a job that takes it.
    """

    check: Callable[[str, Any], Any] | None = None
    default: Any = None
    kind: str = "both"
    merged_only: str = ""
    project: str = "all"
    job: Check | None = None
    call: bool = False
    field: str = ""
    member: str = ""

    def refuse_merged_value(self, name: str, value: object) -> None:
        """Raise :class:`InvalidJob` if only merged tasks may have this value."""
        if self.merged_only and self.job and value == self.merged_only:
            others = (choice for choice in self.job.schema["enum"] if choice != value)
            raise InvalidJob(f'{name}="{value}" is for merged tasks; use one of {", ".join(others)}')


def _option(default: Any, check: Callable[[str, Any], Any], *, job: Any = None, **row: Any) -> Any:
    """Declare an option of a task, which a job can override if ``job`` is its check, or True for the same check."""
    row["job"] = check if job is True else job
    return field(default=default, metadata={"row": Option(check=check, default=default, **row)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Policy of a task.

    Every option that does not belong to one task may be a default in ``DELAYQ["TASK_DEFAULTS"]``, for the tasks that it
    fits. Whatever form was given, times are stored as seconds, back-offs as functions and classes as tuples.
    """

    #: queue of its jobs
    queue: str = _option("default", lambda name, value: check_queue_name(value), project="plain", call=True)
    #: exact number of counted attempts (a start followed by failure, timeout or crash) before the morgue
    max_attempts: int = _option(26, _whole(1, 1_000_000), job=True, member="max_attempts")
    #: limit of one attempt in seconds; None = no limit
    timeout: float | None = _option(None, _TIMEOUT, job=True, member="timeout")
    #: delay before the next attempt: a function of the number of failures before this one (0 at first), or seconds, a
    #: timedelta, a list of them, or the name of a preset ("ladder")
    retry_in: Policy = _option(default_backoff, backoff_of, job=_BACKOFF, member="retry_in")
    #: id of a job whose call gives none: a function or a template ("order-{order_id}") of the call's arguments, for
    #: merged tasks of the payload; None = a random one
    id: str | Callable[..., object] | None = _option(None, _id_of_call, project="none", job=_ID)
    #: due time of a job whose call gives neither at= nor delay=: a function of the call's arguments (merged: of the
    #: payload) that returns what at= takes; None, also as its result, = now
    at: Callable[..., object] | None = _option(
        None, _function_of("the call's arguments that returns the due time"), project="none", job=_ANY
    )
    #: merged: score of a payload whose call gives none: a function of the payload; None = the time of its arrival
    score: Callable[[Any], object] | None = _option(
        None, _function_of("the payload"), project="none", kind="merged", job=_SCORE
    )
    #: 0 (first) … 7 (last)
    priority: int = _option(DEFAULT_PRIORITY, _whole(0, PRIORITIES - 1), job=True, field="priority")
    #: action when the id is already live: merge (merged tasks), replace, ignore or error; None = merge for merged
    #: tasks, replace for others
    on_conflict: str | None = _option(
        None,
        _choice("merge", "replace", "ignore", "error"),
        project="plain",
        merged_only="merge",
        job=True,
        field="on_conflict",
    )
    #: due time of a job whose id was already waiting: keep, replace, earliest, latest, or (merged tasks) inherit = keep
    #: even the back-off of failed content; None = keep for merge, replace for replace
    due_policy: str | None = _option(
        None,
        _choice("keep", "replace", "earliest", "latest", "inherit"),
        project="plain",
        merged_only="inherit",
        job=True,
        field="due_policy",
    )
    #: crashes that are certainly its own (in quarantine, or alone in its process) before the morgue, reason ``poison``
    crash_limit: int = _option(3, _whole(1, 1_000_000))
    #: longest time in seconds for which the heartbeat renews one attempt's lease; None = as long as the process lives
    max_lease: float | None = _option(None, check_seconds)
    #: most jobs that run at the same time: an int over all workers, or {"total": …, "local": … in each process}
    concurrency: int | Mapping[str, int] | Limits | None = _option(None, check_concurrency)
    #: most starts over all workers: "10/s", "1000/m", "5/h", "100/d", or a number per second
    rate: str | float | Rate | None = _option(None, check_rate)
    #: starts that may follow each other at once; None = what the rate grants in a tenth of a second, at least 1
    burst: int | None = _option(None, _whole(1, _MAX_BURST))
    #: group of a job whose call names none: a text, or a function or template ("{customer}") of the call's arguments,
    #: for merged tasks of the payload. The groups of a queue take turns
    group: str | Callable[..., object] | None = _option(
        None,
        _or_function(check_group),
        project="none",
        job=Check(check_group, {"type": "string", "maxLength": MAX_GROUP_BYTES}),
        field="group",
    )
    #: limits of each group, over all workers, as those of a task; or functions of the call's arguments
    group_concurrency: int | Callable[..., object] | None = _option(None, _or_function(_whole(1, _MAX_CONCURRENCY)))
    group_rate: str | float | Rate | Callable[..., object] | None = _option(None, _or_function(check_rate))
    group_burst: int | Callable[..., object] | None = _option(None, _or_function(_whole(1, _MAX_BURST)))
    #: turns of each group for each one of others, or a function of the call's arguments; None = 1
    group_weight: int | Callable[..., object] | None = _option(None, _or_function(_whole(1, _MAX_WEIGHT)))
    #: number of shards with which the queue is created; None = the queue's own setting
    shards: int | None = _option(None, _whole(1, MAX_SHARDS))
    #: the handler gets ``{id: [payload, …]}``; jobs of one id are merged until they run
    merge: bool = _option(False, _FLAG, project="none")
    #: merged: maximum number of ids in one call of the handler
    batch_size: int = _option(1, _whole(1, MAX_BATCH), kind="merged")
    #: merged: which payloads of an id are kept: all, the last (highest scores) or the first (lowest)
    payloads: str = _option("all", _choice("all", "last", "first"), kind="merged")
    #: merged: maximum number of payloads of an id; None = 10,000, or 1 with payloads "last" or "first"
    max_payloads: int | None = _option(None, _whole(1, 1_000_000), kind="merged")
    #: merged: score of a payload that arrives again: min, max, first or last
    score_policy: str = _option("min", _choice("min", "max", "first", "last"), kind="merged")
    #: "early" = the job is done when its attempt starts, so that it never runs twice and a crash loses it
    ack: str = _option("late", _choice("late", "early"))
    #: seconds after its due time from which a job is not started any more; None = never
    expires: float | timedelta | None = _option(None, check_seconds, kind="plain", job=_ANY)
    #: True = a handler that returns False has failed; otherwise every return is a success
    retry_on_false: bool = _option(False, _FLAG)
    #: exception class → back-off of its own, or a tuple of classes: only these are retried, the others are buried
    retry_for: Mapping[type[BaseException], object] | tuple[type[BaseException], ...] | None = _option(None, _retry_for)
    #: exceptions after which another attempt is pointless: the job is buried at once
    give_up_on: tuple[type[BaseException], ...] = _option((), exception_classes)
    #: called with (job, error) when the attempts are used up, before the job is buried
    on_exhausted: Callable[..., object] | None = _option(None, _function_of("(job, error)", None, None))
    #: recurring: the time between two ticks; ticks are multiples of it since 1970-01-01 UTC
    every: float | timedelta | None = _option(None, _every, project="none", kind="plain")
    #: recurring: a cron expression ("*/5 * * * *")
    cron: str | None = _option(None, _cron, project="none", kind="plain")
    #: time zone of ``cron`` ("Europe/Berlin"); None = the project's
    timezone: str | None = _option(None, check_timezone, kind="cron")
    #: ticks that were not fired in time: "once" = one job for all of them, "skip" = none
    missed: str = _option("once", _choice("once", "skip"), kind="recurring")
    #: its jobs are also kept in the database until they are done; None = the queue's own setting
    durable: bool | None = _option(None, _FLAG, call=True)
    #: its schedule calls return when replicas or disks confirm the job (``REDIS``: ``WAIT_…``); None = ``WAIT_DEFAULT``
    wait_for_confirmation: bool | None = _option(None, _FLAG, job=True, field="confirmed")
    #: it may be scheduled over HTTP
    api: bool = _option(False, _FLAG)
    #: former names; jobs stored under them still resolve to the task
    aliases: tuple[str, ...] = _option((), _aliases, project="none")

    def __post_init__(self) -> None:
        for name, row in TASK_OPTIONS.items():
            value = getattr(self, name)
            if row.check is not None and (value is not None or row.default is not None):
                object.__setattr__(self, name, row.check(name, value))
        self._check_together()
        _ = self.limits  # refuses a burst without a rate
        if self.merge and self.max_payloads is None:
            object.__setattr__(self, "max_payloads", DEFAULT_MAX_PAYLOADS if self.payloads == "all" else 1)

    def _check_together(self) -> None:
        given = {name: row for name, row in TASK_OPTIONS.items() if getattr(self, name) != row.default}
        for name, row in given.items():
            fits, rule = _KINDS[row.kind]
            if not fits(given.keys()):
                raise InvalidJob(f"{name} is {rule}")
            if not self.merge:
                row.refuse_merged_value(name, getattr(self, name))
        if self.at is not None and self.recurring:
            raise InvalidJob("at is for tasks that are scheduled; every and cron say when a recurring task runs")
        if self.every is not None and self.cron is not None:
            raise InvalidJob("every and cron both say when the task runs; give one of them")

    @property
    def limits(self) -> Limits | None:
        """Limits of its jobs; None = none."""
        return joint_limits(self.concurrency, self.rate, self.burst)  # type: ignore[arg-type]

    @property
    def group_limits(self) -> Limits | None:
        """Limits of each group of its jobs that are the same for all arguments; None = none."""
        given = [getattr(self, name) for name in GROUP_OPTIONS]
        return limits_of_group(*(None if callable(value) else value for value in given))

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
            check_known((*options, *(defaults or ())), TASK_OPTIONS, "option")
            return cls(**{**_fitting(defaults or {}, options), **options})
        except (InvalidJob, Misconfigured) as error:
            raise Misconfigured(f"{what}: {error}") from None

    @classmethod
    def check_defaults(cls, defaults: Mapping[str, Any], *, what: str) -> None:
        """Check that ``defaults`` can be the defaults of tasks of every kind.

        Raises:
            Misconfigured: an option that belongs to one task, or an unknown or invalid one.
        """
        for name, row in TASK_OPTIONS.items():
            if name in defaults and row.project == "none":
                raise Misconfigured(f"{what}: {name} belongs to one task; put it into its @task(...)")
            if row.merged_only and defaults.get(name) == row.merged_only:
                raise Misconfigured(
                    f"{what}: merged tasks merge by default; on_conflict and due_policy are for plain tasks"
                )
        for kind in ({}, {"merge": True}, {"cron": "@daily"}):
            cls.build(kind, defaults=defaults, what=what)


def _fitting(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that apply to a task with these options."""
    given = {name for name, value in options.items() if value is not None and value is not False}
    return {
        name: value
        for name, value in defaults.items()
        if _KINDS[TASK_OPTIONS[name].kind][0](given)
        and not ("merge" in given and TASK_OPTIONS[name].project == "plain")
    }


TASK_OPTIONS: Final[Mapping[str, Option]] = {one.name: one.metadata["row"] for one in fields(TaskOptions)}
#: all options: those of tasks, and those that only calls have
OPTIONS: Final[Mapping[str, Option]] = {
    **TASK_OPTIONS,
    # the builder checks this one, like ``at`` and ``expires``, by the rules of the deployment
    "delay": Option(job=_ANY),
    "payload": Option(kind="merged", job=_ANY),
    "reset_retries": Option(job=_FLAG, field="reset_retries"),
    # lua/lib/reserve.lua finds the length of a lease as the last member by name
    "ttr": Option(job=Check(lambda name, value: ttr_ms_of(value), _SPAN), member="ttr_ms"),
    "context": Option(job=Check(_context, {"type": "object", "additionalProperties": {}}), member="context"),
    "wait_for_room": Option(job=Check(_room_ms, _SECONDS), field="room_ms"),
    "using_db": Option(call=True),
}
#: options of one job of a plain task, and of a merged one
PLAIN_JOB, MERGED_JOB = (
    frozenset(name for name, row in OPTIONS.items() if row.job and row.kind in ("both", kind))
    for kind in ("plain", "merged")
)
#: options of a schedule call
CALL_OPTIONS: Final = tuple(sorted(PLAIN_JOB | MERGED_JOB | {name for name, row in OPTIONS.items() if row.call}))


def stored_members(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored with a job for its options that are set, by the names of the members."""
    rows = ((OPTIONS.get(name), name, value) for name, value in options.items() if value is not None)
    return {row.member: row.job(name, value) for row, name, value in rows if row is not None and row.member and row.job}
