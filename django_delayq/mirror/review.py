"""Review that finds rows to delete or to add, by a binary search over the time.

Counting a range of the index costs Redis almost nothing. One wrong row among a million is found with some twenty pairs
of counts, and only missing jobs are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..core.sending.chunks import CHUNK
from .index_mirror import AT_ONCE, IndexMirror, Scope
from .rows import Entry, store

#: levels that are halved even if the counts agree: one extra row and one missing row cancel each other out
SURE: Final = 4


def review(shadow: IndexMirror, *, sure: int = 0) -> Iterator[None]:
    """Make the table agree with the index, step by step. Changes made meanwhile are found by the next review.

    Args:
        sure: levels that are compared whatever the counts say.
    """
    scope = shadow.scope()
    if scope.low > 0:
        yield from shadow.delete(shadow.rows.filter(updated_us__lt=scope.low))
    if shadow.agrees(scope) and not sure:
        return
    parts = [(part, sure) for each in shadow.parts(scope) for part in _bounds(shadow, each)]
    while parts:
        part, level = parts.pop()
        here, there = shadow.count(part)
        if here == there and (level == 0 or not here):
            continue
        if not here:
            yield from shadow.delete(shadow.within(part))
        elif max(here, there) <= CHUNK or part.low == part.high:
            _compare(shadow, part)
        else:
            middle = (part.low + part.high) // 2
            parts.append((Scope(middle + 1, part.high), max(0, level - 1)))
            parts.append((Scope(part.low, middle), max(0, level - 1)))
        yield


def _bounds(shadow: IndexMirror, scope: Scope) -> list[Scope]:
    """Return the part of the scope that contains any entry or row, as a list of at most one scope."""
    rows = shadow.within(scope).order_by("updated_us").values_list("updated_us", flat=True)
    scores = [score for score in (rows.first(), rows.last()) if score is not None]
    scores += [entry.score for entry in shadow.index.ends(scope.low, scope.high)]
    return [Scope(min(scores), max(scores))] if scores else []


def _compare(shadow: IndexMirror, part: Scope) -> None:
    """Add missing rows and delete orphan rows. A row is correct if Redis has its member with its score."""
    entries = {(*shadow.name_of(entry), entry.score): entry for entry in shadow.index.between(part.low, part.high)}
    known: dict[Any, Any] = {}
    for pk, *name in shadow.within(part).values_list("pk", *shadow.place.unique[1:], "updated_us"):
        known[tuple(name)] = pk
    missing: list[Entry] = [entry for name, entry in entries.items() if name not in known]
    gone = [pk for name, pk in known.items() if name not in entries]
    for start in range(0, len(missing), CHUNK):
        store(shadow.place, shadow.missing(missing[start : start + CHUNK]), shadow.using)
    for start in range(0, len(gone), AT_ONCE):
        # Only with the score read above: the row may have been stored again since, with another score.
        shadow.within(part).filter(pk__in=gone[start : start + AT_ONCE]).delete()
