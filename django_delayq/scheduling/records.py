"""Conversion of a call's arguments and options to the records that the core stores, with checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..core import codec
from ..core.errors import InvalidJob
from ..core.inputs import check_id, short, suggest
from ..core.job import NewJob, new_id
from ..core.task import Task
from ..settings.conf import conf
from .middleware import Chain, Scheduling, chain
from .options import COMMON, JOB_OPTIONS, MERGED_OPTIONS, OPTIONS, JobOptions, check_kind, due, queue_of

_NONE: Final[Mapping[str, Any]] = {}


class NewJobs:
    """Builder of the records of one plain task's jobs; ``options`` are common to all of them.

    Attributes:
        queue: name of the queue that receives the jobs.
        skipped: number of entries of :meth:`make_many` that a schedule middleware did not pass on.
    """

    #: keys allowed in an entry of schedule_many
    entry_keys: frozenset[str] = frozenset((*JOB_OPTIONS, "args", "kwargs"))
    #: description of an entry, for messages
    entry_form = "args, kwargs and options"

    def __init__(self, task: Task, options: Mapping[str, Any]) -> None:
        self.task = task
        self.queue = queue_of(task, options)
        self.skipped = 0
        self._options = options
        self._limit = conf().max_args_bytes
        self._rare = JobOptions(task)

    def make(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]) -> NewJob:
        """Return one record.

        Raises:
            TypeError: the function cannot be called with these arguments.
            InvalidJob: the job cannot be stored.
        """
        task = self.task
        try:
            task.bind(args, kwargs)
        except TypeError as error:
            check_kind(task, options)  # an option of merged tasks explains the mistake better
            raise _with_hint(error, kwargs) from None
        try:
            encoded = codec.encode_args(args, kwargs, limit=self._limit)
        except InvalidJob as error:
            raise InvalidJob(f"task {task.name}: {error}") from None
        policy, common = task.options, self._rare.bytes
        if not options:
            return NewJob(new_id(), task.name, encoded, priority=policy.priority, options=common, fresh=True)
        get = options.get
        delay, at, given_id = get("delay"), get("at"), get("id")
        due_ms, delay_ms = (None, 0) if delay is None and at is None else due(delay, at)
        new = NewJob(
            new_id() if given_id is None else check_id(given_id),
            task.name,
            encoded,
            due_ms,
            delay_ms,
            policy.priority,
            common,
            on_conflict=policy.on_conflict or "replace",
            due_policy=policy.due_policy or "replace",
            fresh=given_id is None,
        )
        if not options.keys() <= COMMON:
            self._rare.apply(new, options)
        return new

    def make_many(
        self, entries: Iterable[Mapping[str, Any]], handle_of: Callable[[NewJob, str], object]
    ) -> Iterator[NewJob]:
        """Yield a record for each entry. Options of an entry override the common ones. Errors carry the entry's index.

        Args:
            handle_of: returns the handle that a schedule middleware receives, from the record and the queue's name.
        """
        common = {name: value for name, value in self._options.items() if name in self.entry_keys}
        around = chain()
        for index, entry in enumerate(entries):
            try:
                new = (
                    self._make_entry(entry, common) if around is None else self._pass(around, entry, common, handle_of)
                )
            except InvalidJob as error:
                raise InvalidJob(f"entry {index}: {error}") from error
            except TypeError as error:
                raise TypeError(f"entry {index}: {error}") from error
            if new is None:
                self.skipped += 1
            else:
                yield new

    def _make_entry(self, entry: Mapping[str, Any], common: Mapping[str, Any]) -> NewJob:
        args, kwargs, options = self._read_entry(entry, common)
        return self.make(args, kwargs, options)

    def _read_entry(
        self, entry: Mapping[str, Any], common: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Mapping[str, Any]]:
        """Return ``(args, kwargs, options)`` of an entry after checking its keys."""
        self._check_entry(entry)
        args, kwargs = explicit(entry.get("args"), entry.get("kwargs"))
        if common:
            return args, kwargs, {**common, **entry}
        return args, kwargs, _NONE if len(entry) == 1 and "args" in entry else entry

    def _check_entry(self, entry: Mapping[str, Any]) -> None:
        if type(entry) is not dict and not isinstance(entry, Mapping):
            raise InvalidJob(f"expected a dict with {self.entry_form}, got {short(entry)}")
        if not entry.keys() <= self.entry_keys:
            self._refuse_keys(entry)

    def _refuse_keys(self, entry: Mapping[str, Any]) -> None:
        check_kind(self.task, entry)
        if "durable" in entry:
            raise InvalidJob("durable is said of all jobs of one call: schedule_many(task, jobs, durable=True)")
        wrong = next(key for key in entry if key not in self.entry_keys)
        raise InvalidJob(
            f"unknown key {short(wrong)}.{suggest(str(wrong), self.entry_keys)} "
            f"Known keys: {', '.join(sorted(self.entry_keys))}"
        )

    def _pass(
        self,
        around: Chain,
        entry: Mapping[str, Any],
        common: Mapping[str, Any],
        handle_of: Callable[[NewJob, str], object],
    ) -> NewJob | None:
        """Return the record of an entry after the schedule middleware; None if they do not pass it on."""
        args, kwargs, options = self._read_entry(entry, common)
        made: list[NewJob] = []

        def end(scheduling: Scheduling) -> object:
            if scheduling.task is not self.task or not scheduling.options.keys() <= self.entry_keys:
                raise InvalidJob(
                    "in schedule_many a schedule middleware may change the arguments and the options of a job, not its "
                    "task, its queue or its database"
                )
            made.append(self.make(scheduling.args, scheduling.kwargs, scheduling.options))
            return handle_of(made[-1], self.queue)

        options = {name: value for name, value in options.items() if name not in ("args", "kwargs")}
        around(Scheduling(self.task, args, kwargs, options, many=True, end=end))
        return made[-1] if made else None


def explicit(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments given as ``args=`` and ``kwargs=``.

    Raises:
        TypeError: they are not a list or tuple and a dict.
    """
    if args is not None and not isinstance(args, (list, tuple)):
        raise TypeError(f"args must be a list or tuple, got {short(args)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, got {short(kwargs)}")
    return tuple(args) if args else (), dict(kwargs) if kwargs else {}


def _with_hint(error: TypeError, kwargs: Mapping[str, Any]) -> TypeError:
    """Return the same error, with the schedule option that a misspelled keyword may have meant."""
    for name in kwargs:
        hint = suggest(name, [option for option in OPTIONS if option not in MERGED_OPTIONS])
        if hint and f"'{name}'" in str(error):
            return TypeError(f"{error}; as a schedule option:{hint}")
    return error
