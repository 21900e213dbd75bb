"""Review that finds rows to delete or to add, by a binary search over the time.

Counting a range of the index costs Redis almost nothing. One wrong row among a million is found with some twenty pairs
of counts, and only missing jobs are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..core.records.frames import CHUNK
from .index_mirror import DELETE_CHUNK, IndexMirror, Scope
from .rows import Entry, store

#: levels that are halved even if the counts agree: one extra row and one missing row cancel each other out
SURE_LEVELS: Final = 4


def review(mirror: IndexMirror, *, levels: int = 0) -> Iterator[None]:
    """Make the table agree with the index, step by step. Changes made meanwhile are found by the next review.

    Args:
        levels: levels that are compared whatever the counts say.
    """
    scope = mirror.scope()
    if scope.low > 0:
        yield from mirror.delete(mirror.rows.filter(updated_us__lt=scope.low))
    if mirror.agrees(scope) and not levels:
        return
    parts = [(part, levels) for each in mirror.parts(scope) for part in _bounds(mirror, each)]
    while parts:
        part, level = parts.pop()
        here, there = mirror.count(part)
        if here == there and (level == 0 or not here):
            continue
        if not here:
            yield from mirror.delete(mirror.within(part))
        elif max(here, there) <= CHUNK or part.low == part.high:
            _compare(mirror, part)
        else:
            middle = (part.low + part.high) // 2
            parts.append((Scope(middle + 1, part.high), max(0, level - 1)))
            parts.append((Scope(part.low, middle), max(0, level - 1)))
        yield


def _bounds(mirror: IndexMirror, scope: Scope) -> list[Scope]:
    """Return the part of the scope that contains any entry or row, as a list of at most one scope."""
    rows = mirror.within(scope).order_by("updated_us").values_list("updated_us", flat=True)
    scores = [score for score in (rows.first(), rows.last()) if score is not None]
    scores += [entry.score for entry in mirror.index.ends(scope.low, scope.high)]
    return [Scope(min(scores), max(scores))] if scores else []


def _compare(mirror: IndexMirror, part: Scope) -> None:
    """Add missing rows and delete orphan rows. A row is correct if Redis has its member with its score."""
    entries = {(*mirror.name_of(entry), entry.score): entry for entry in mirror.index.between(part.low, part.high)}
    rows_by_member: dict[Any, Any] = {}
    for pk, *name in mirror.within(part).values_list("pk", *mirror.place.unique[1:], "updated_us"):
        rows_by_member[tuple(name)] = pk
    missing: list[Entry] = [entry for name, entry in entries.items() if name not in rows_by_member]
    gone = [pk for name, pk in rows_by_member.items() if name not in entries]
    for start in range(0, len(missing), CHUNK):
        store(mirror.place, mirror.missing(missing[start : start + CHUNK]), mirror.using)
    for start in range(0, len(gone), DELETE_CHUNK):
        # Only with the score read above: the row may have been stored again since, with another score.
        mirror.within(part).filter(pk__in=gone[start : start + DELETE_CHUNK]).delete()
