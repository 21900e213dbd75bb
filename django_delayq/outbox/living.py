"""Which rows speak of a job that lives in Redis: it waits, runs or is gated, and does not lie in the morgue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from ..core.records.frames import pack_id

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.queue import Queue


class Named(Protocol):
    """A row, as far as it is needed here; ``key`` is that of the generation, of a merged job that of a payload."""

    @property
    def pk(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def key(self) -> bytes: ...


class Living:
    """See the module.

    Args:
        broker: whom to ask.
    """

    def __init__(self, broker: DjangoBroker) -> None:
        self._broker = broker

    def among(self, rows: Iterable[Named]) -> list[int]:
        """The ``pk`` of those that speak of a living job. What is buried costs no more than a look at its id."""
        found: list[int] = []
        for queue, some in groupby(sorted(rows, key=lambda row: row.queue), key=lambda row: row.queue):
            mine = list(some)
            opened = self._broker.existing(queue)
            ids = _in_use(opened, [row.job_id for row in mine]) if opened is not None else set()
            for ident in ids:
                found += self._living(queue, ident, [row for row in mine if row.job_id == ident])
        return found

    def _living(self, queue: str, ident: str, rows: Sequence[Named]) -> list[int]:
        """The same for the rows of one id."""
        buried = {
            key
            for grave in self._broker.inspector.graves(queue, ident)
            for key in (grave.job.key, *(payload.key for payload in grave.payloads))
        }
        rows = [row for row in rows if row.key not in buried]
        keys = self._keys(queue, ident) if rows else set()  # of many payloads this takes long
        return [row.pk for row in rows if row.key in keys]

    def _keys(self, queue: str, ident: str) -> set[bytes]:
        """Keys of all that lives under an id."""
        view = self._broker.inspector.get(queue, ident)
        if view is None or view.state == "morgue":
            return set()
        keys = {job.key for job in (view.job, view.gated) if job is not None}
        if view.job.merged:
            keys |= {payload.key for payload in self._broker.inspector.payloads(queue, ident)}
        return keys


def _in_use(queue: Queue, idents: Sequence[str]) -> set[str]:
    """Those of some ids under which anything lives."""
    places: dict[int, set[str]] = {}
    for ident in idents:
        for number in queue.homes(ident):
            places.setdefault(number, set()).add(ident)
    found: set[str] = set()
    for number, some in places.items():
        asked = sorted(some)
        answers = queue.call("living", number, b"".join(map(pack_id, asked)), request=b"")
        found |= {ident for ident, answer in zip(asked, answers, strict=True) if answer == ord("1")}
    return found
