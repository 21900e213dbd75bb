"""Builder of new jobs: arguments and options in, checked records out.

The one place that makes a :class:`~.job.NewJob` of what a caller gives: ``schedule()``, the HTTP API, the pull queue,
recurring tasks and edits of failed jobs. The columns of a Spark frame are packed by ``pipeline/columns.py``, which a
test holds to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar, Final

from . import codec
from .errors import InvalidJob
from .inputs import check_flag, check_id, option_hint, score_text, short
from .job import RAW, NewJob, Payload, id_from, random_block, stamped
from .job_options import JOB_OPTIONS, MERGED_OPTIONS, OPTIONS, JobOptions, check_kind
from .option_functions import with_derived
from .options import DEFAULT_MAX_PAYLOADS
from .task import Task
from .times import due_of

#: options that the builder reads itself, or that do not concern the job; others take the slower path
_COMMON: Final = frozenset(("delay", "at", "id", "queue", "durable", "using_db", "args", "kwargs"))
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

    def confirmed(self, value: object) -> bool:
        """Return the checked option ``wait_for_confirmation``.

        Raises:
            InvalidJob: it is no flag, or the deployment has nothing that confirms writes.
        """
        if check_flag("wait_for_confirmation", value) and not self.can_confirm():
            raise InvalidJob(
                "wait_for_confirmation=True needs something that confirms: give the setting REDIS as a dict with "
                "WAIT_REPLICAS or WAIT_AOF, or leave the option out"
            )
        return bool(value)

    def due(self, delay: float | timedelta | None, at: datetime | float | None) -> tuple[int | None, int | None]:
        """Return ``(due_ms, delay_ms)``, of which one is None.

        Raises:
            InvalidJob: the time is implausible, or both are given.
        """
        return due_of(delay=delay, at=at, use_tz=self.zone is None, tz=self.zone, allow_far=self.allow_far)


_DEFAULTS: Final = JobRules()


class JobBuilder:
    """Builder of the jobs of one plain task; :func:`builder_of` chooses the class.

    Args:
        rules: rules of the deployment.
        context: values for the context of every job.
        next_block: returns 16 random bytes, for keys and generated ids; see :func:`.job.random_blocks` for many jobs.
            The builder is only as thread-safe as this.
    """

    #: keys allowed in an entry of schedule_many
    entry_keys: ClassVar[frozenset[str]] = frozenset((*JOB_OPTIONS, "args", "kwargs"))
    #: description of an entry, for messages
    entry_form: ClassVar[str] = "args, kwargs and options"
    _common: ClassVar[frozenset[str]] = _COMMON

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
        self._next_block = next_block
        self._options = JobOptions(task, rules, context)
        self._conflict = policy.on_conflict or ("merge" if policy.merge else "replace")
        self._max_payloads = policy.max_payloads or DEFAULT_MAX_PAYLOADS
        self._derives = any(derive is not None for derive in (policy.id, policy.at, policy.score))
        self._fewest, self._most = task.arity
        self._confirmed = (
            None if policy.wait_for_confirmation is None else rules.confirmed(policy.wait_for_confirmation)
        )

    def build(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> NewJob:
        """Return one record.

        Raises:
            TypeError: the function cannot be called with these arguments.
            InvalidJob: the job cannot be stored.
        """
        if self._derives:
            options = with_derived(self.task, args, kwargs, options)
        content, payload = self._content(args, kwargs, options)
        get, policy = options.get, self.task.options
        delay, at, given_id = get("delay"), get("at"), get("id")
        due_ms: int | None = None
        if at is None and (delay is None or (type(delay) is int and 0 <= delay < _LONG_DELAY)):
            delay_ms: int | None = (delay or 0) * 1000
        else:
            due_ms, delay_ms = self.rules.due(delay, at)
        conflict = get("on_conflict") or self._conflict
        new = NewJob(
            id_from(self._next_block()[:15]) if given_id is None else check_id(given_id),
            self.task.name,
            content,
            due_ms,
            delay_ms,
            policy.priority,
            self._options.bytes,
            stamped(self._next_block()),
            conflict,
            policy.due_policy or ("keep" if conflict == "merge" else "replace"),
            True,
            payload,
            policy.score_policy,
            policy.payloads,
            self._max_payloads,
            given_id is None,
        )
        new.confirmed = self._confirmed
        if not options.keys() <= self._common:
            self._options.apply(new, options)
        return new

    def build_tick(self, ident: str, tick_ms: int) -> NewJob:
        """Return the job of a tick of a recurring task, which is called without arguments.

        Its options hold the tick itself, because the due time moves with a retry. A job of the id that waits already
        keeps its position, or a queue that lags would never reach it.
        """
        new = self.build((), {}, {"id": ident, "on_conflict": "replace", "due_policy": "earliest"})
        new.due_ms, new.delay_ms = tick_ms, None
        new.options = self._options.of_tick(tick_ms)
        return new

    def refuse_keys(self, entry: Mapping[str, Any]) -> None:
        """Raise the error for an entry with keys of the other kind of tasks, if it has such keys."""
        check_kind(self.task, entry)

    def _content(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[bytes, Payload | None]:
        """Return the encoded arguments, and the payload of a merged job."""
        if kwargs or not self._fewest <= len(args) <= self._most:
            self._bind(args, kwargs, options)
        try:
            return codec.encode_args(args, kwargs, limit=self.rules.max_args_bytes), None
        except InvalidJob as error:
            raise InvalidJob(f"task {self.task.name}: {error}") from None

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> None:
        try:
            self.task.bind(args, kwargs)
        except TypeError as error:
            check_kind(self.task, options)  # an option of merged tasks explains the mistake better
            raise _with_hint(error, kwargs) from None


class MergedJobBuilder(JobBuilder):
    """Builder of the jobs of one merged task: an id, a payload and its score."""

    entry_keys = frozenset((*(name for name in JOB_OPTIONS if name != "expires"), *MERGED_OPTIONS))
    entry_form = "id, payload, score and options"
    _common = frozenset((*_COMMON - {"args", "kwargs"}, *MERGED_OPTIONS))

    def refuse_keys(self, entry: Mapping[str, Any]) -> None:
        """See :meth:`JobBuilder.refuse_keys`."""
        if "args" in entry or "kwargs" in entry:
            raise self._no_arguments({})
        super().refuse_keys(entry)

    def _content(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[bytes, Payload | None]:
        if args or kwargs:
            raise self._no_arguments(kwargs)
        if options.get("id") is None:
            raise InvalidJob(
                f"task {self.task.name}: a job of a merged task needs an id=, under which its payloads are united"
            )
        try:
            data = codec.encode(options.get("payload"), limit=self.rules.max_args_bytes)
        except InvalidJob as error:
            raise InvalidJob(f"task {self.task.name}: {error}") from None
        score = options.get("score")
        return b"", Payload(data, "" if score is None else score_text(score), stamped(self._next_block()))

    def _no_arguments(self, kwargs: Mapping[str, Any]) -> TypeError:
        hints = (f" {short(name)}:{hint}" for name in kwargs if (hint := option_hint(name, OPTIONS)))
        return TypeError(
            f"task {self.task.name} is merged: its function takes no arguments of the call but payloads; pass "
            f"schedule(…, id=…, payload=…).{next(hints, '')}"
        )


class RawJobBuilder(JobBuilder):
    """Builder of jobs for queues of kind "pull": the only argument is the stored bytes."""

    def __init__(
        self,
        rules: JobRules = _DEFAULTS,
        context: Mapping[str, Any] = _NONE,
        next_block: Callable[[], bytes] = random_block,
    ) -> None:
        super().__init__(_RAW_TASK, rules, context, next_block)

    def _content(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> tuple[bytes, Payload | None]:
        return args[0], None


def builder_of(
    task: Task,
    rules: JobRules = _DEFAULTS,
    context: Mapping[str, Any] = _NONE,
    next_block: Callable[[], bytes] = random_block,
) -> JobBuilder:
    """Return a builder of jobs of this task. For the arguments see :class:`JobBuilder`."""
    return (MergedJobBuilder if task.options.merge else JobBuilder)(task, rules, context, next_block)


def _raw() -> None:
    """Do nothing: placeholder for the function of jobs with raw bytes."""


_RAW_TASK: Final = Task(_raw, name=RAW)


def _with_hint(error: TypeError, kwargs: Mapping[str, Any]) -> TypeError:
    """Return the same error, with the schedule option that a keyword may have meant."""
    options = [option for option in OPTIONS if option not in MERGED_OPTIONS]
    for name in (name for name in kwargs if f"'{name}'" in str(error)):
        if name in options:  # task.schedule() has arguments only
            return TypeError(f"{error}. As an option: schedule(…, {name}=…), or using({name}=…).schedule(…)")
        if hint := option_hint(name, options):
            return TypeError(f"{error}.{hint}")
    return error
