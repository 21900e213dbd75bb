"""Bulk operations on the jobs of a queue, for operators: an action applied to a selection of jobs.

Every verb works through its selection in chunks of at most 250 jobs, one script call each. It may run beside producers
and workers at full load: other calls wait for one chunk at most. Each script checks again that a job still qualifies
and changes it as a whole; no job is read first and removed later. Jobs that are buried, or fail, after the start of the
call are left alone, so each verb ends whatever the workers do meanwhile.

Every verb returns the number of jobs per outcome. It calls ``progress``, if given, after each chunk with the number of
jobs checked so far, and the number at the start of the call.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from .operations import actions
from .operations.actions import UNCOUNTED, Action, Name
from .operations.morgue import Discard, Kick, KickPace
from .operations.selection import (
    Progress,
    Selected,
    ShardSnapshot,
    every,
    in_turn,
    last_score,
    name_of,
    named,
    shard_snapshots,
)
from .records.keys import DUE_KEYS, number_of
from .records.schedule_frames import CHUNK

if TYPE_CHECKING:
    from .queue import Queue

#: numbers of jobs by outcome, and of jobs checked
Step = tuple[Mapping[str, int], int]

_RUN_NOW: Final = struct.Struct("<dII")


# -- the morgue ------------------------------------------------------------------------------------------------------


def kick_many(
    queue: Queue,
    selected: Iterable[Selected],
    *,
    delay_ms: int = 0,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Move jobs from the morgue back into the queue; see :meth:`Queue.kick`.

    Args:
        selected: ids, or (id, key) pairs.
        delay_ms: delay from now.
        replace: replace live plain jobs of the same ids.

    Returns:
        Numbers of jobs: kicked, live (they stay because of a live job of the same id) and gone.

    Raises:
        InvalidJob: an invalid id.
    """
    return _on_named(queue, selected, Kick(KickPace.of(delay_ms), replace=replace), progress)


def retried(counts: Mapping[str, int]) -> Counter[str]:
    """Return counts of :func:`kick_many` with the outcome *retried*, for interfaces whose verb is *retry*."""
    return Counter({"retried" if outcome == "kicked" else outcome: number for outcome, number in counts.items()})


def kick_all(
    queue: Queue,
    *,
    delay_ms: int = 0,
    per_second: float | None = None,
    pace: KickPace | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Move all jobs of the morgue back into the queue, the earliest burials first.

    Args:
        delay_ms: delay from now.
        per_second: how many of them fall due in a second; None = all at once.
        pace: the pace in place of these two, at which the caller continues an earlier call.
        replace: replace live plain jobs of the same ids.

    Returns:
        See :func:`kick_many`.

    Raises:
        InvalidJob: a pace that is not above 0.
    """
    shards = shard_snapshots(queue)
    pace = pace or KickPace.of(delay_ms, per_second, max((shard.now_ms for shard in shards.values()), default=0))
    return _on_morgue(queue, shards, Kick(pace, replace=replace), progress)


def discard_many(queue: Queue, selected: Iterable[Selected], *, progress: Progress | None = None) -> dict[str, int]:
    """Delete jobs from the morgue; see :meth:`Queue.discard`.

    Args:
        selected: ids, or (id, key) pairs.

    Returns:
        Numbers of jobs: discarded and gone.

    Raises:
        InvalidJob: an invalid id.
    """
    return _on_named(queue, selected, Discard(), progress)


def discard_all(queue: Queue, *, before_ms: float | None = None, progress: Progress | None = None) -> dict[str, int]:
    """Delete all jobs from the morgue.

    Args:
        before_ms: only those that were buried before this moment, Unix ms.

    Returns:
        Number of jobs discarded.
    """
    latest = float("inf") if before_ms is None else before_ms * 1000 - 1
    return _on_morgue(queue, shard_snapshots(queue), Discard(), progress, latest)


def _on_morgue(
    queue: Queue,
    shards: Mapping[int, ShardSnapshot],
    action: Action,
    progress: Progress | None,
    latest: float = float("inf"),
) -> dict[str, int]:
    chunks = every(queue, ("morgue",), lambda number: min(shards[number].moment, latest))
    total = sum(shard.morgue for shard in shards.values())
    return _count(_on_chunks(queue, chunks, lambda _: action), total, progress)


# -- jobs that failed ------------------------------------------------------------------------------------------------


def kill_failed(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Move every waiting job that has failed to the morgue, with the reason ``buried by an operator``.

    Reserved ones are left alone. A merged job with more than 250 payloads gets several morgue records.

    Returns:
        Number of jobs killed.
    """
    return _end_failed(queue, "killed", progress)


def delete_failed(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Delete every waiting job that has failed; reserved ones are left alone.

    Returns:
        Number of jobs deleted.
    """
    return _end_failed(queue, "deleted", progress)


def _end_failed(queue: Queue, verb: str, progress: Progress | None) -> dict[str, int]:
    shards = shard_snapshots(queue)
    total = sum(shard.failed for shard in shards.values())
    chunks = every(queue, ("failed",), lambda number: shards[number].moment)
    ends = {number: actions.end_failed_before(verb, shard.moment) for number, shard in shards.items()}
    return _count(_on_chunks(queue, chunks, ends.__getitem__), total, progress)


# -- jobs that wait --------------------------------------------------------------------------------------------------


def cancel_all(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Cancel every waiting job in Redis; reserved ones, and content gated behind them, are left alone.

    Jobs that arrive meanwhile are cancelled too if they are due before the last job that waited at the start of the
    call.

    Returns:
        Number of jobs cancelled.
    """
    total = sum(shard.waiting for shard in shard_snapshots(queue).values())
    action = actions.cancel_waiting()
    return _count(_on_chunks(queue, every(queue, DUE_KEYS), lambda _: action), total, progress)


def run_all_now(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Make every waiting job due now, keeping the present order (within each priority class of a shard).

    An overdue job keeps its place, so the queue's lag does not change; failures are kept.

    Returns:
        Number of jobs moved.
    """
    total = sum(shard.delayed for shard in shard_snapshots(queue).values())
    walks = [_run_now(queue, number, index) for number in queue.numbers for index in DUE_KEYS if index != "parked"]
    return _count(in_turn(walks), total, progress)


def _run_now(queue: Queue, number: int, index: str) -> Iterator[Step]:
    """Make the jobs of a class due now. The script selects them, because each place follows from the one before."""
    until = last_score(queue, number, index)
    last, checked = 0.0, CHUNK if until else 0
    while checked == CHUNK:
        frame = queue.call("run_all_now", number, DUE_KEYS.index(index) + 1, f"{last:.0f}", until, CHUNK)
        last, checked, changed = _RUN_NOW.unpack(frame)
        if checked:
            yield {"moved": changed}, checked


# -- jobs named in their shard ---------------------------------------------------------------------------------------


def act_in_shard(queue: Queue, number: int, selected: Sequence[Selected], action: Action) -> list[str]:
    """Apply an action to jobs in the shard where they were read.

    Jobs that ran, were replaced or cancelled meanwhile, and new jobs under the same id, are left alone.

    Args:
        queue, number: the shard.
        selected: (id, key) of each.
        action: one of :mod:`.operations.actions`.

    Returns:
        The outcome of each.
    """
    return action.in_shard(queue, number, [name_of(one) for one in selected])


# -- the loop --------------------------------------------------------------------------------------------------------


def _count(steps: Iterable[Step], total: int | None, progress: Progress | None) -> dict[str, int]:
    """Carry out the steps of an operation; return the number of jobs per outcome."""
    counts: Counter[str] = Counter()
    seen = 0
    for outcomes, checked in steps:
        counts.update(outcomes)
        seen += checked
        if progress:
            progress(seen, seen if total is None else total)
    return {outcome: n for outcome, n in counts.items() if n and outcome != UNCOUNTED}


def _on_chunks(
    queue: Queue, chunks: Iterable[tuple[int, Sequence[Name]]], action_for: Callable[[int], Action]
) -> Iterator[Step]:
    """Apply the action for a shard to each chunk of its jobs."""
    for number, names in chunks:
        yield Counter(action_for(number).in_shard(queue, number, names)), len(names)


def _on_named(queue: Queue, selected: Iterable[Selected], action: Action, progress: Progress | None) -> dict[str, int]:
    """Apply an action to named jobs, wherever they are."""
    queue.broker.read_layout(queue.name)
    steps = ((Counter(_in_all_epochs(queue, action, names)), len(names)) for names in named(selected))
    return _count(steps, None, progress)


def _in_all_epochs(queue: Queue, action: Action, names: Sequence[Name]) -> Iterator[str]:
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
