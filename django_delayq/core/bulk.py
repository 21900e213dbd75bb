"""Bulk operations on the jobs of a queue, for operators: a verb applied to all jobs of a place, or to those that match.

An operation walks through an order of the place, so it may run beside producers and workers at full load: other calls
wait for one chunk at most. Only names are read where no condition has to be checked. Each script checks again that a
job still qualifies and changes it as a whole; a job that matches is changed under the key of its generation, so one
that ran or was replaced since it was read is left alone. Jobs that are buried, or fail, after the start of the call are
left alone, so each operation ends whatever the workers do meanwhile. A cursor continues it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, TypeAlias
from zlib import crc32

from . import actions
from .actions import UNCOUNTED, Action, Name
from .counts import count_each_shard
from .job_filter import EVERY_JOB, JobFilter
from .job_view import split_name
from .morgue import Discard, Kick, KickPace
from .reading import (
    INDEXES,
    Accepts,
    IndexEntry,
    PageRequest,
    Range,
    last_scores,
    matching,
    pack_cursor,
    unpack_cursor,
    walk,
)
from .records.frames import CHUNK, encode_id
from .records.keys import number_of
from .registry import ShardSet

#: called with the number of jobs checked so far, and the number at the start
Progress: TypeAlias = Callable[[int, int], None]
#: an id (its generation that was buried last), or an id and the key of a generation
Selected: TypeAlias = str | tuple[str, bytes]

#: ids read from an iterable before they are processed
_NAMED_AT_ONCE: Final = 10_000
#: shards of which a chunk of names is read at once
_SHARDS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Verb:
    """Verb on the jobs of a place.

    Attributes:
        place: where the jobs are.
        begun: returns its action, given the moment (µs) after which a job came too late.
        only_delayed: True = only of jobs that are not due yet.
    """

    place: str
    begun: Callable[[float], Action]
    only_delayed: bool = False

    @property
    def action(self) -> Action:
        """Action for jobs that are named by their generations."""
        return self.begun(math.inf)


#: cancels waiting jobs; reserved ones, and content gated behind them, are left alone: cancelled
CANCEL: Final = Verb("waiting", lambda _: actions.cancel_waiting())
#: makes waiting jobs due now; they keep their order in each priority class of a shard, and their failures: moved
RUN_NOW: Final = Verb("waiting", lambda _: actions.run_waiting_now(), only_delayed=True)
#: moves waiting jobs that failed to the morgue; a merged one with more than 250 payloads gets several records: killed
KILL_FAILED: Final = Verb("failed", actions.kill_failed_before)
#: deletes waiting jobs that failed: deleted
DELETE_FAILED: Final = Verb("failed", actions.delete_failed_before)
#: deletes jobs from the morgue: discarded
DISCARD: Final = Verb("morgue", lambda _: Discard())


def kick(pace: KickPace | None = None, *, replace: bool = False) -> Verb:
    """Return the verb that moves jobs from the morgue back into the queue: kicked, live or gone.

    Args:
        pace: when they fall due; None = now.
        replace: replace live plain jobs of the same ids.
    """
    action = Kick(pace or KickPace.of(0), replace=replace)
    return Verb("morgue", lambda _: action)


@dataclass(slots=True)
class Changed:
    """Result of an operation: numbers of jobs by outcome, and the cursor with which it can be continued."""

    counts: Counter[str] = field(default_factory=Counter)
    #: number of jobs that were read
    examined: int = 0
    #: number of jobs of the place at the start, or of those that were read if these are more
    total: int = 0
    #: "" = all jobs were read
    cursor: str = ""

    def count(self, examined: int, progress: Progress | None) -> None:
        """Count jobs that were read, and report the progress."""
        self.examined += examined
        self.total = max(self.total, self.examined)
        if progress:
            progress(self.examined, self.total)


def change(
    queue: ShardSet,
    verb: Verb,
    where: JobFilter = EVERY_JOB,
    *,
    accepts: Accepts | None = None,
    cursor: str = "",
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Changed:
    """Apply a verb to all jobs of its place that meet the conditions.

    Waiting jobs that arrive meanwhile are changed too if they are due before the last job that waited at the start.

    Args:
        queue: the queue.
        verb: one of this module.
        where: the conditions; without one, all jobs.
        accepts: see :meth:`Inspector.page`.
        cursor: of an earlier call with the same verb and conditions, which it continues.
        seconds: time after which no further chunk is read.
        progress: called after each chunk with the number of jobs that were read, and that of the place at the start.

    Raises:
        InvalidJob: the cursor is not valid.
    """
    give_up = time.monotonic() + seconds
    by = where.best_order(verb.place, tuple(INDEXES[verb.place]))
    start = _Start(queue, verb, by)
    bounds = Range(by, start.low).within(*where.bounds(by))
    request = PageRequest(
        place=verb.place, bounds=bounds, after=unpack_cursor(cursor), most_bytes=0, where=where, accepts=accepts
    )
    # The range of an order may say it all; the name of a morgue record has the key of its generation.
    by_names = request.matches_all or (accepts is None and verb.place == "morgue" and where.is_range_of(by))
    step = CHUNK * min(len(queue.numbers), _SHARDS_AT_ONCE) if by_names else request.at_once
    pending = start.until_end(walk(queue, verb.place, bounds, after=request.after, at_once=CHUNK))
    changed = Changed(total=start.total)
    entries = list(islice(pending, step + 1))
    while entries:
        chunk, entries = entries[:step], entries[step:]
        names = _names(chunk) if by_names else _matching_names(queue, request, chunk)
        for number, mine in names.items():
            changed.counts.update(start.actions[number].in_shard(queue, number, mine))
            if by_names:
                changed.count(len(mine), progress)
        if not by_names:
            changed.count(len(chunk), progress)
        if entries and time.monotonic() >= give_up:
            changed.cursor = pack_cursor(chunk[-1])
            break
        entries += islice(pending, step)
    changed.counts = Counter({outcome: n for outcome, n in changed.counts.items() if n and outcome != UNCOUNTED})
    return changed


class _Start:
    """State of a queue at the start of an operation: what came later is left alone."""

    def __init__(self, queue: ShardSet, verb: Verb, by: str) -> None:
        queue.reload()  # finds shards that were opened meanwhile
        numbers = queue.numbers
        counts = dict(zip(numbers, count_each_shard(queue, numbers), strict=True))
        # Largest possible score of an entry made up to now, µs.
        moments = {number: one.now_ms * 1000 + 999 for number, one in counts.items()}
        #: the action for each shard
        self.actions = {number: verb.begun(moment) for number, moment in moments.items()}
        #: number of jobs of the place
        self.total = sum(
            {"waiting": one.delayed + (0 if verb.only_delayed else one.ready), "failed": one.failed}.get(
                verb.place, one.morgue
            )
            for one in counts.values()
        )
        #: bound of the order before which no job is wanted
        self.low = min(one.now_ms + 1 for one in counts.values()) if verb.only_delayed and by == "due" else None
        self._until: Mapping[int, float] = {}
        if by == "due":
            self._until = last_scores(queue, verb.place, by)
        elif by == "updated":
            self._until = moments
        self._last = max(self._until.values(), default=-math.inf if by == "due" else math.inf)

    def until_end(self, walk: Iterator[IndexEntry]) -> Iterator[IndexEntry]:
        """Yield the entries of a walk that were there at the start."""
        return (
            entry
            for entry in takewhile(lambda entry: entry.score <= self._last, walk)
            if entry.score <= self._until.get(entry.shard, math.inf)
        )


def _names(entries: Iterable[IndexEntry]) -> dict[int, list[Name]]:
    """Return the names of jobs by shard; that of a morgue record has the key of its generation."""
    names: dict[int, list[Name]] = {}
    for entry in entries:
        name = split_name(entry.member) if b"\0" in entry.member else (entry.member, b"")
        names.setdefault(entry.shard, []).append(name)
    return names


def _matching_names(queue: ShardSet, request: PageRequest, entries: Sequence[IndexEntry]) -> dict[int, list[Name]]:
    names: dict[int, list[Name]] = {}
    for entry, view in matching(queue, request, entries):
        if view is not None:
            names.setdefault(entry.shard, []).append((encode_id(view.id), view.job.key))
    return names


# -- jobs that the caller names --------------------------------------------------------------------------------------


def change_named(
    queue: ShardSet, selected: Iterable[Selected], verb: Verb, *, progress: Progress | None = None
) -> dict[str, int]:
    """Apply a verb to jobs of the morgue, wherever they are; return the number of jobs by outcome, gone included.

    Args:
        queue: the queue.
        selected: ids, or (id, key) pairs.
        verb: :data:`DISCARD`, or one of :func:`kick`.
        progress: called with the number of jobs handled so far, twice.

    Raises:
        InvalidJob: an invalid id.
    """
    queue.reload()
    action, pending, seen = verb.action, iter(selected), 0
    counts: Counter[str] = Counter()
    while names := [name_of(one) for one in islice(pending, _NAMED_AT_ONCE)]:
        counts.update(_in_all_epochs(queue, action, names))
        seen += len(names)
        if progress:
            progress(seen, seen)
    return {outcome: n for outcome, n in counts.items() if outcome != UNCOUNTED}


def act_in_shard(queue: ShardSet, number: int, selected: Sequence[Selected], action: Action) -> list[str]:
    """Apply an action to jobs in the shard where they were read.

    Jobs that ran, were replaced or cancelled meanwhile, and new jobs under the same id, are left alone.

    Args:
        queue, number: the shard.
        selected: (id, key) of each.
        action: one of :mod:`.actions`.

    Returns:
        The outcome of each.
    """
    return action.in_shard(queue, number, [name_of(one) for one in selected])


def name_of(selected: Selected) -> Name:
    """Return the name that a script takes.

    Raises:
        InvalidJob: an invalid id.
    """
    ident, key = (selected, b"") if isinstance(selected, str) else selected
    return encode_id(ident), key


def retried(counts: Mapping[str, int]) -> Counter[str]:
    """Return counts of :func:`kick` with the outcome *retried*, for interfaces whose verb is *retry*."""
    return Counter({"retried" if outcome == "kicked" else outcome: number for outcome, number in counts.items()})


def _in_all_epochs(queue: ShardSet, action: Action, names: Sequence[Name]) -> Iterator[str]:
    """Yield the outcomes, in no order. A morgue record may lie where its id belonged before a reshard."""
    if len(queue.epochs) > 1:
        # The latest generation of an id is found only by comparing all its shards.
        yield from (action.anywhere(queue, ident.decode()) for ident, key in names if not key)
        names = [name for name in names if name[1]]
    for epoch, shards in queue.epochs:
        by_shard: dict[int, list[Name]] = {}
        for name in names:
            by_shard.setdefault(number_of(epoch, crc32(name[0]) % shards), []).append(name)
        gone = []
        for number, mine in by_shard.items():
            for name, outcome in zip(mine, action.in_shard(queue, number, mine), strict=True):
                if outcome == "gone":
                    gone.append(name)
                else:
                    yield outcome
        names = gone
    yield from ("gone" for _ in names)
