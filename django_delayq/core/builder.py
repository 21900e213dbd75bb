"""Builder of new jobs: arguments and options in, checked records out.

The one place that makes a :class:`~.job.NewJob` of what a caller gives: ``schedule()``, the HTTP API, the pull queue,
recurring tasks and edits of failed jobs. The columns of a Spark frame are packed by ``pipeline/columns.py``, which a
test holds to the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

from . import codec
from .errors import InvalidJob
from .inputs import check_id, option_hint, score_text, short
from .job import KEY_BYTES, RAW, NewJob, Payload, id_from, random_block, stamped
from .options import (
    CALL_OPTIONS,
    DEFAULT_MAX_PAYLOADS,
    GROUP_LIMITS,
    GROUP_OPTIONS,
    MERGED_JOB,
    OPTIONS,
    PLAIN_JOB,
    limits_of_group,
    stored_members,
)
from .task import Task, check_kind
from .times import due_of, span_ms_of

#: maximum bytes of one job's encoded options (the stored record has two bytes for their length)
MAX_OPTIONS_BYTES: Final = 65_535
#: options that the builder reads for every job, or that do not concern the job; others take the slower path
_COMMON: Final = frozenset(("delay", "at", "id", "queue", "durable", "using_db", "args", "kwargs"))
_COMMON_MERGED: Final = _COMMON | {"payload", "score"}
_PLAIN_ENTRY: Final = PLAIN_JOB | {"args", "kwargs"}
#: options of a task that are derived from the arguments if the call does not give them
_DERIVED: Final = ("id", "at", "score", "group")
_LONG_DELAY: Final = 86_400 * 365
_NONE: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class JobRules:
    """Rules of a deployment for new jobs.

    Attributes:
        max_args_bytes: largest encoded arguments, payload or body of one job.
        allow_far: accept due times more than ten years ahead.
        zone: zone of naive datetimes; None = they are refused.
        can_confirm: returns False if the deployment has nothing that confirms writes.
    """

    max_args_bytes: int = codec.MAX_BYTES
    allow_far: bool = False
    zone: tzinfo | None = None
    can_confirm: Callable[[], bool] = lambda: True

    def check_confirmed(self, wanted: bool | None) -> None:
        """Raise :class:`InvalidJob` if a confirmation is wanted and the deployment has nothing that confirms writes."""
        if wanted and not self.can_confirm():
            raise InvalidJob(
                "wait_for_confirmation=True needs something that confirms: give the setting REDIS as a dict with "
                "WAIT_REPLICAS or WAIT_AOF, or leave the option out"
            )

    def due(
        self, delay: float | timedelta | None, at: datetime | float | None, what: str = "at"
    ) -> tuple[int | None, int | None]:
        """Return ``(due_ms, delay_ms)``, of which one is None. Messages call the moment ``what``.

        Raises:
            InvalidJob: the time is implausible, or both are given.
        """
        return due_of(delay=delay, at=at, zone=self.zone, allow_far=self.allow_far, what=what)


_DEFAULTS: Final = JobRules()


class JobBuilder:
    """Builder of the jobs of one task.

    Args:
        rules: rules of the deployment.
        context: values for the context of every job.
        next_block: returns the random bytes of one job (:func:`.job.random_block`); see :func:`.job.random_blocks` for
            many jobs. The builder is only as thread-safe as this.

    Attributes:
        entry_keys: keys allowed in an entry of schedule_many.
    """

    def __init__(
        self,
        task: Task,
        rules: JobRules = _DEFAULTS,
        context: Mapping[str, Any] = _NONE,
        next_block: Callable[[], bytes] = random_block,
    ) -> None:
        policy = task.options
        self.task = task
        self.rules = rules
        self.entry_keys = MERGED_JOB if policy.merge else _PLAIN_ENTRY
        self._common = _COMMON_MERGED if policy.merge else _COMMON
        self._next_block = next_block
        self._context = context
        expires = {} if policy.expires is None else {"expires_in_ms": span_ms_of("expires", policy.expires)}
        #: what is stored with a job that has no options of its own
        self._stored: dict[str, Any] = expires | ({"context": context} if context else {})
        self._stored_bytes = encoded_options(self._stored)
        self._limits_groups = any(getattr(policy, name) is not None for name in GROUP_OPTIONS)
        self._conflict = policy.on_conflict or ("merge" if policy.merge else "replace")
        self._max_payloads = policy.max_payloads or DEFAULT_MAX_PAYLOADS
        self._derives = any(getattr(policy, name) is not None for name in _DERIVED)
        rules.check_confirmed(policy.wait_for_confirmation)

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> NewJob:
        """Return one record.

        Raises:
            TypeError: the function cannot be called with these arguments.
            InvalidJob: the job cannot be stored.
        """
        if self._derives:
            options = _with_derived(self.task, args, kwargs, options)
        has_rare = bool(options) and not options.keys() <= self._common
        if has_rare:
            check_kind(self.task, options)
        content, payload = self._content(args, kwargs, options)
        get, policy = options.get, self.task.options
        delay, at, given_id = get("delay"), get("at"), get("id")
        due_ms: int | None = None
        if at is None and (delay is None or (type(delay) is int and 0 <= delay < _LONG_DELAY)):
            delay_ms: int | None = (delay or 0) * 1000
        else:
            due_ms, delay_ms = self.rules.due(delay, at)
        conflict, block = get("on_conflict") or self._conflict, self._next_block()
        new = NewJob(
            id_from(block[KEY_BYTES:]) if given_id is None else check_id(given_id),
            self.task.name,
            content,
            due_ms,
            delay_ms,
            policy.priority,
            self._stored_bytes,
            stamped(block),
            conflict,
            policy.due_policy or ("keep" if conflict == "merge" else "replace"),
            True,
            payload,
            policy.score_policy,
            policy.payloads,
            self._max_payloads,
            given_id is None,
        )
        new.confirmed = policy.wait_for_confirmation
        if has_rare:
            self._apply(new, options)
        if self._limits_groups and new.group:
            self._limit_group(new, args, kwargs, options)
        return new

    def _limit_group(
        self, new: NewJob, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Store the limits of its group with a job, as they are for its arguments."""
        task = self.task
        if task.options.merge:
            args = (options.get("payload"),)
        found = []
        for name in GROUP_OPTIONS:
            value = getattr(task.options, name)
            found.append(_derive(task, name, args, kwargs) if callable(value) else value)
        limits = limits_of_group(*found)
        if limits is not None:
            numbers = [limits.total or 0, limits.interval_us or 0, limits.burst, limits.weight]
            new.options = encoded_options({**(json.loads(new.options) if new.options else {}), GROUP_LIMITS: numbers})

    def build_tick(self, ident: str, tick_ms: int) -> NewJob:
        """Return the job of a tick of a recurring task, which is called without arguments.

        Its options hold the tick itself, and its expiry as a moment, because the due time moves with a retry. A job of
        the id that waits already keeps its position, or a queue that lags would never reach it.
        """
        new = self.build((), {}, {"id": ident, "on_conflict": "replace", "due_policy": "earliest"})
        new.due_ms, new.delay_ms = tick_ms, None
        in_ms = self._stored.get("expires_in_ms")
        new.options = encoded_options({"tick_ms": tick_ms} | ({} if in_ms is None else {"expires_ms": tick_ms + in_ms}))
        return new

    def refuse_keys(self, entry: Mapping[str, Any]) -> None:
        """Raise the error for an entry with keys of the other kind of tasks, if it has such keys."""
        if self.task.options.merge and ("args" in entry or "kwargs" in entry):
            raise _no_arguments(self.task, {})
        check_kind(self.task, entry)

    def _apply(self, new: NewJob, options: Mapping[str, Any]) -> None:
        """Apply the less common options of a call.

        What is stored with the job for its worker is canonical JSON. There the member ``ttr_ms``, for holders without
        a heartbeat, is the last one: ``lua/lib/reserve.lua`` finds it there.
        """
        for name, value in options.items():
            row = OPTIONS.get(name)
            if value is not None and row is not None and row.job is not None and row.field:
                setattr(new, row.field, row.job(name, value))
        self.rules.check_confirmed(new.confirmed)
        own = stored_members(options)
        if self._context and "context" in own:
            own["context"] = {**self._context, **own["context"]}
        stored = self._stored | own
        if options.get("expires") is not None:
            stored.pop("expires_in_ms", None)
            stored |= _expiry(options["expires"], new, self.rules)
        if stored != self._stored:
            new.options = encoded_options(stored)

    def _content(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[bytes, Payload | None]:
        """Return the encoded arguments, and the payload of a merged job."""
        task, merge, limit = self.task, self.task.options.merge, self.rules.max_args_bytes
        if merge and (args or kwargs):
            raise _no_arguments(task, kwargs)
        if merge and options.get("id") is None:
            raise InvalidJob(
                f"task {task.name}: a job of a merged task needs an id=, under which its payloads are united"
            )
        fewest, most = task.arity
        if not merge and (kwargs or not fewest <= len(args) <= most):
            _check_call(task, args, kwargs)
        try:
            if not merge:
                return codec.encode_args(args, kwargs, limit=limit), None
            data = codec.encode(options.get("payload"), limit=limit)
        except InvalidJob as error:
            raise InvalidJob(f"task {task.name}: {error}") from None
        score = options.get("score")
        return b"", Payload(data, "" if score is None else score_text(score), stamped(self._next_block()))


class RawJobBuilder(JobBuilder):
    """Builder of jobs for queues of kind "pull", with :data:`RAW_TASK`: the only argument is the stored bytes."""

    def _content(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[bytes, Payload | None]:
        return args[0], None


#: task of the jobs with raw bytes; no function is ever called for them
RAW_TASK: Final = Task(lambda: None, name=RAW)


def _check_call(task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check the arguments; an error names the schedule option that a keyword may have meant."""
    try:
        task.check_call(args, kwargs)
    except TypeError as error:
        known = [name for name in CALL_OPTIONS if OPTIONS[name].kind != "merged"]
        for name in (name for name in kwargs if f"'{name}'" in str(error)):
            if name in known:  # task.schedule() has arguments only
                hint = f" As an option: schedule(…, {name}=…), or using({name}=…).schedule(…)"
            else:
                hint = option_hint(name, known)
            if hint:
                raise TypeError(f"{error}.{hint}") from None
        raise


def _no_arguments(task: Task, kwargs: Mapping[str, Any]) -> TypeError:
    hints = (f" {short(name)}:{hint}" for name in kwargs if (hint := option_hint(name, CALL_OPTIONS)))
    return TypeError(
        f"task {task.name} is merged: its function takes no arguments of the call but payloads; pass "
        f"schedule(…, id=…, payload=…).{next(hints, '')}"
    )


def _with_derived(
    task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a call with the id, due time, score and group that its task derives, unless it gives them.

    A ``delay`` of the call is a due time, too.

    Raises:
        TypeError: the function cannot be called with these arguments.
        InvalidJob: a function or template of the task failed.
    """
    completed = dict(options)
    if not task.options.merge:
        task.check_call(args, kwargs)
    elif not args:
        args = (options.get("payload"),)
    for name in _DERIVED:
        given = completed.get(name) is not None or (name == "at" and completed.get("delay") is not None)
        if getattr(task.options, name) is not None and not given:
            completed[name] = _derive(task, name, args, kwargs)
    return completed


def _derive(task: Task, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the value of an option that is a function or template of the arguments."""
    derive = getattr(task.options, name)
    try:
        return _fill(task, derive, args, kwargs) if isinstance(derive, str) else derive(*args, **kwargs)
    except Exception as error:
        hint = f", or give {name}= with the call" if name in _DERIVED else ""
        raise InvalidJob(
            f"task {task.name}: its {name}= failed for these arguments ({type(error).__name__}: "
            f"{short(str(error))}); mend {short(derive)}{hint}"
        ) from error


def _fill(task: Task, template: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the template filled with the arguments by name, or with the members of a payload."""
    if task.options.merge:
        (payload,) = args
        return template.format(**{"payload": payload, **(payload if isinstance(payload, Mapping) else {})})
    bound = task.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return template.format(*args, **{**bound.arguments, **kwargs})


def _expiry(expires: object, new: NewJob, rules: JobRules) -> dict[str, int]:
    """Return the expiry as a moment, or as a time counted from the due time."""
    if isinstance(expires, datetime):
        moment, _ = rules.due(None, expires, "expires")
        if moment is None or moment <= new.due_ms_here:
            raise InvalidJob(f"expires={expires.isoformat()} is not after the due time, so the job would never run")
        return {"expires_ms": moment}
    if not isinstance(expires, (int, float, timedelta)) or isinstance(expires, bool):
        raise InvalidJob(f"expires must be a datetime, a timedelta or a number of seconds, not {short(expires)}")
    in_ms = span_ms_of("expires", expires, allow_far=rules.allow_far)
    if in_ms == 0:
        raise InvalidJob("expires is 0: the job would never run; give the time for which it is worth starting")
    return {"expires_in_ms": in_ms}


def encoded_options(options: Mapping[str, Any]) -> bytes:
    """Return canonical JSON; empty bytes if there are no options."""
    if not options:
        return b""
    try:
        encoded = json.dumps(options, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"context may hold plain JSON values only: {error}") from None
    if len(encoded) > MAX_OPTIONS_BYTES:
        raise InvalidJob(
            f"context and the other options of the job take {len(encoded)} bytes, at most {MAX_OPTIONS_BYTES} fit"
        )
    return encoded
