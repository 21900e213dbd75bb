"""Lookup of rows whose jobs are live in Redis: waiting, running or gated, but not in the morgue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from ..core.actions import live_ids

if TYPE_CHECKING:
    from ..connections import DjangoBroker


class Named(Protocol):
    """Fields of a row that the lookup needs; ``key`` is the key of the generation, or for a merged job of a payload."""

    @property
    def pk(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def key(self) -> bytes: ...


def live_among(broker: DjangoBroker, rows: Iterable[Named]) -> list[int]:
    """Return the ``pk`` of the rows whose jobs are live. A buried job costs only a lookup of its id."""
    live: list[int] = []
    for queue, some in groupby(sorted(rows, key=lambda row: row.queue), key=lambda row: row.queue):
        mine = list(some)
        opened = broker.existing(queue)
        ids = set() if opened is None else live_ids(opened, [row.job_id.encode() for row in mine])
        for ident in map(bytes.decode, ids):
            live += _live(broker, queue, ident, [row for row in mine if row.job_id == ident])
    return live


def _live(broker: DjangoBroker, queue: str, ident: str, rows: Sequence[Named]) -> list[int]:
    """Return the ``pk`` of the rows of one id whose jobs are live."""
    buried = {
        key
        for grave in broker.inspector.graves(queue, ident)
        for key in (grave.job.key, *(payload.key for payload in grave.payloads))
    }
    rows = [row for row in rows if row.key not in buried]
    keys = _keys(broker, queue, ident) if rows else set()  # slow for many payloads
    return [row.pk for row in rows if row.key in keys]


def _keys(broker: DjangoBroker, queue: str, ident: str) -> set[bytes]:
    """Return the keys of all live content of an id."""
    view = broker.inspector.get(queue, ident)
    if view is None or view.state == "morgue":
        return set()
    keys = {job.key for job in (view.job, view.gated) if job is not None}
    if view.job.merged:
        keys |= {payload.key for payload in broker.inspector.payloads(queue, ident)}
    return keys
