"""Entries of ``schedule_many``: their keys, their common options, and the schedule middleware around each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..core.errors import InvalidJob
from ..core.inputs import option_hint, short
from ..core.job import NewJob
from .handle import COLLECTED, JobHandle
from .middleware import Chain, Scheduling, chain
from .plans import Plan

_NONE: Final[Mapping[str, Any]] = {}


class EntryReader:
    """Reader of the entries of one call.

    Args:
        options: options for all jobs; those of an entry override them.

    Attributes:
        skipped: number of entries that a schedule middleware did not pass on.
    """

    def __init__(self, plan: Plan, options: Mapping[str, Any]) -> None:
        self._plan = plan
        self._builder = plan.builder
        self._keys = plan.builder.entry_keys
        self._common = {name: value for name, value in options.items() if name in self._keys}
        self.skipped = 0

    def read(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[NewJob]:
        """Yield a record for each entry. Errors carry the entry's index."""
        around = chain()
        for index, entry in enumerate(entries):
            try:
                args, kwargs, options = self._parts(entry)
                if around is None:
                    new: NewJob | None = self._builder.build(args, kwargs, options)
                else:
                    new = self._pass(around, args, kwargs, options)
            except InvalidJob as error:
                raise InvalidJob(f"entry {index}: {error}") from error
            except TypeError as error:
                raise TypeError(f"entry {index}: {error}") from error
            if new is None:
                self.skipped += 1
            else:
                yield new

    def _parts(self, entry: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Mapping[str, Any]]:
        """Return ``(args, kwargs, options)`` of an entry after checking its keys."""
        if type(entry) is not dict and not isinstance(entry, Mapping):
            content = "id, payload, score" if self._builder.task.options.merge else "args, kwargs"
            raise InvalidJob(f"expected a dict with {content} and options, got {short(entry)}")
        if not entry.keys() <= self._keys:
            self._refuse_keys(entry)
        args, kwargs = explicit(entry.get("args"), entry.get("kwargs"))
        if self._common:
            return args, kwargs, {**self._common, **entry}
        return args, kwargs, _NONE if len(entry) == 1 and "args" in entry else entry

    def _refuse_keys(self, entry: Mapping[str, Any]) -> None:
        self._builder.refuse_keys(entry)
        if "durable" in entry:
            raise InvalidJob("durable applies to all jobs of one call; use schedule_many(task, jobs, durable=True)")
        wrong = next(key for key in entry if key not in self._keys)
        raise InvalidJob(
            f"unknown key {short(wrong)}.{option_hint(wrong, self._keys)} Known keys: {', '.join(sorted(self._keys))}"
        )

    def _pass(
        self, around: Chain, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> NewJob | None:
        """Return the record of an entry after the schedule middleware; None if they do not pass it on."""
        task, built = self._builder.task, []

        def end(scheduling: Scheduling) -> object:
            if scheduling.task is not task or not scheduling.options.keys() <= self._keys:
                raise InvalidJob(
                    "in schedule_many a schedule middleware may change the arguments and the options of a job, not its "
                    "task, its queue or its database"
                )
            new = self._builder.build(scheduling.args, scheduling.kwargs, scheduling.options)
            built.append(new)
            return JobHandle(new.id, self._plan.queue, COLLECTED, new.due_ms_here)

        options = {name: value for name, value in options.items() if name not in ("args", "kwargs")}
        around(Scheduling(task, args, kwargs, options, many=True, end=end))
        return built[-1] if built else None


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
