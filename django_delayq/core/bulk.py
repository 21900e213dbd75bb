"""Bulk operations on the jobs of a queue, for operators: a verb applied to all jobs of a place, or to those that match.

An operation walks through an order of the place, so it may run beside producers and workers at full load: other calls
wait for one chunk at most. Only names are read where no condition has to be checked. Each script checks again that a
job still qualifies and changes it as a whole; a job that matches is changed under the key of its generation, so one
that ran or was replaced since it was read is left alone. Jobs that are buried, or fail, after the start of the call are
not read, so each operation ends whatever the workers do meanwhile. A cursor continues it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeAlias

from .actions import GONE, Action, Discard, Kick, Name, change_of
from .counts import count_each_shard
from .job_filter import EVERY_JOB, JobFilter
from .job_view import FARTHEST, split_name
from .reading import INDEXES, Accepts, IndexEntry, JobQuery, pack_cursor, unpack_cursor, walk
from .records.frames import CHUNK, encode_id
from .registry import ShardSet

#: called with the number of jobs checked so far, and the number at the start
Progress: TypeAlias = Callable[[int, int], None]

#: shards of which a chunk of names is read at once
_SHARDS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Verb:
    """Action on the jobs of a place; ``only_delayed`` = only on jobs that are not due yet."""

    place: str
    action: Action
    only_delayed: bool = False


#: cancels waiting jobs; reserved ones, and content gated behind them, are left alone: cancelled
CANCEL: Final = Verb("waiting", change_of("cancel", {"c": "cancelled"}, selected=True, only="waiting"))
#: makes waiting jobs due now; they keep their order in each priority class of a shard, and their failures: moved
RUN_NOW: Final = Verb(
    "waiting", change_of("move", {"m": "moved"}, at_once=CHUNK, only="waiting", to_now=True), only_delayed=True
)
#: moves waiting jobs that failed to the morgue; a merged one with more than 250 payloads gets several records: killed
KILL_FAILED: Final = Verb("failed", change_of("kill", {"c": "killed"}, selected=True, only="failed"))
#: deletes waiting jobs that failed: deleted
DELETE_FAILED: Final = Verb("failed", change_of("delete", {"c": "deleted"}, selected=True, only="failed"))
#: deletes jobs from the morgue: discarded
DISCARD: Final = Verb("morgue", Discard())


def kick(delay_ms: int = 0, *, replace: bool = False) -> Verb:
    """Return the verb that moves jobs from the morgue back into the queue: kicked or live; see :class:`.Kick`."""
    return Verb("morgue", Kick(delay_ms, replace=replace))


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
    """Apply a verb to all jobs of its place that meet the conditions. Jobs that are gone meanwhile are not counted.

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
    query, after = JobQuery(verb.place, where, accepts, most_bytes=0), unpack_cursor(cursor)
    by = where.best_order(verb.place, tuple(INDEXES[verb.place]))
    # The range of an order may say it all; the name of a morgue record has the key of its generation.
    by_names = query.matches_all or (accepts is None and verb.place == "morgue" and where.is_range_of(by))
    step = CHUNK * min(len(queue.numbers), _SHARDS_AT_ONCE) if by_names else query.at_once
    total, present = _present_jobs(queue, verb, by)
    pending = walk(queue, verb.place, by, present, where.bounds(by), after=after)
    changed, entries = Changed(total=total), list(islice(pending, step + 1))
    while entries:
        chunk, entries = entries[:step], entries[step:]
        names = _names(chunk) if by_names else _matching_names(queue, query, chunk)
        for number, mine in names.items():
            changed.counts.update(verb.action.in_shard(queue, number, mine))
            if by_names:
                changed.count(len(mine), progress)
        if not by_names:
            changed.count(len(chunk), progress)
        if entries and time.monotonic() >= give_up:
            changed.cursor = pack_cursor(chunk[-1])
            break
        entries += islice(pending, step)
    del changed.counts[GONE]
    return changed


def _present_jobs(queue: ShardSet, verb: Verb, by: str) -> tuple[int, tuple[float | None, float | None]]:
    """Return the number of jobs of a place, and the range of an order that has those of now."""
    queue.reload()  # finds shards that were opened meanwhile
    counts = count_each_shard(queue, queue.numbers)
    if verb.place == "failed":
        total = sum(one.failed for one in counts)
    elif verb.place == "morgue":
        total = sum(one.morgue for one in counts)
    else:
        total = sum(one.delayed + (0 if verb.only_delayed else one.ready) for one in counts)
    now_ms = [one.now_ms for one in counts]
    if by == "updated":
        return total, (None, max(now_ms, default=None))
    if by == "due":
        last = next(walk(queue, verb.place, by, reverse=True, at_once=1), None)
        last_ms = -1.0 if last is None else last.score // 1000
        return total, (
            min(now_ms) + 1 if now_ms and verb.only_delayed else None,
            last_ms if last_ms < FARTHEST else None,
        )
    return total, (None, None)


def _names(entries: Iterable[IndexEntry]) -> dict[int, list[Name]]:
    """Return the names of jobs by shard; that of a morgue record has the key of its generation."""
    names: dict[int, list[Name]] = {}
    for entry in entries:
        name = split_name(entry.member) if b"\0" in entry.member else (entry.member, b"")
        names.setdefault(entry.shard, []).append(name)
    return names


def _matching_names(queue: ShardSet, query: JobQuery, entries: Sequence[IndexEntry]) -> dict[int, list[Name]]:
    names: dict[int, list[Name]] = {}
    for entry, view in query.matching(queue, entries):
        if view is not None:
            names.setdefault(entry.shard, []).append((encode_id(view.id), view.job.key))
    return names


def act_in_shard(queue: ShardSet, number: int, selected: Iterable[tuple[str, bytes]], action: Action) -> list[str]:
    """Apply an action to jobs, by id and key of each, in the shard where they were read; return the outcome of each.

    Raises:
        InvalidJob: an invalid id.
    """
    return action.in_shard(queue, number, [(encode_id(ident), key) for ident, key in selected])


def retried(counts: Mapping[str, int]) -> Counter[str]:
    """Return counts of :class:`.Kick` with the outcome *retried*, for interfaces whose verb is *retry*."""
    renamed = Counter(counts)
    renamed["retried"] += renamed.pop("kicked", 0)
    return +renamed
