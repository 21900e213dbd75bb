"""Inspection of the in-memory broker."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.job import PRIORITIES, Job, Payload
from ..core.operations.inspector import Inspector
from ..core.operations.paging import Entry, Range
from ..core.operations.views import JobView
from . import indexes
from .payloads import ordered
from .shard import Shard
from .state import Grave, Live, ms_of

if TYPE_CHECKING:
    from ..core.queue import Queue
    from .broker import MemoryBroker


class MemoryInspector(Inspector):
    """:class:`Inspector` without Redis, with the same methods and results."""

    _broker: MemoryBroker

    def servers(self) -> list[dict[str, Any]]:
        """See :meth:`Inspector.servers`; there is no server, so it returns little."""
        return [self._broker.server_info()]

    def last_ticks(self, wanted: Sequence[tuple[Queue, str]]) -> list[int | None]:
        """See :meth:`Inspector.last_ticks`."""
        return [queue.last_tick(ident) for queue, ident in wanted]

    def _ask_all(self, script: str, calls: Sequence[tuple[Queue, int, tuple[Any, ...]]]) -> list[Any]:
        """Support only the script "stats"; :meth:`_entries` builds the pages."""
        assert script == "stats", script  # noqa: S101 (nobody asks for another one)
        with self._broker.reached():
            return [stats(self._broker.store(queue.name, number), *offsets) for queue, number, offsets in calls]

    def _entries(
        self, queue: Queue, names: tuple[str, ...], after: Entry | None, limit: int, reverse: bool, wanted: Range
    ) -> list[Entry]:
        text, member = (after.text, after.member) if after else ("", b"")
        found: list[Entry] = []
        with self._broker.reached():
            for number in queue.numbers:
                shard = self._broker.store(queue.name, number)
                for name in names:
                    some = indexes.page(shard, name, backwards=reverse, limit=None, score=text, member=member)
                    found += [
                        Entry(score, key, number, indexes.text_of(name, score))
                        for score, key in some
                        if wanted.holds(indexes.value_of(name, score, key))
                    ]
        return (heapq.nlargest if reverse else heapq.nsmallest)(limit, found)

    def _first_replies(
        self, queue: Queue, place: str, members: dict[int, list[bytes]], most: int | None
    ) -> dict[int, bytes]:
        return {}

    def _live(
        self, queue: Queue, number: int, idents: Sequence[str], most: int | None, reply: bytes | None = None
    ) -> Iterator[JobView]:
        with self._broker.reached():
            shard = self._broker.store(queue.name, number)
            found = [cut(view(shard, ident, shard.lives[ident]), most) for ident in idents if ident in shard.lives]
        yield from found

    def _buried(
        self, queue: Queue, number: int, graves: Sequence[bytes], most: int | None, reply: bytes | None = None
    ) -> Iterator[JobView]:
        with self._broker.reached():
            shard = self._broker.store(queue.name, number)
            names = [(name[:-17].decode(), name[-16:]) for name in graves]
            found = [cut(buried(shard, name[0], shard.graves[name]), most) for name in names if name in shard.graves]
        yield from found

    def _burials(self, queue: Queue, ident: str) -> list[Entry]:
        with self._broker.reached():
            found = [
                (name, number, indexes.text_of("morgue", score))
                for number in queue.homes(ident)
                for score, name in indexes.entries(self._broker.store(queue.name, number), "morgue")
                if name[:-17] == ident.encode()
            ]
        return sorted((Entry(float(text), name, number, text) for name, number, text in found), reverse=True)

    def payloads(self, queue: str, ident: str) -> Iterator[Payload]:
        """See :meth:`Inspector.payloads`."""
        opened = self._broker.known_queue(queue)
        items = []
        if opened is not None:
            with self._broker.reached():
                live = self._broker.store(queue, opened.shard_of(ident)).lives.get(ident)
                if live is not None:
                    items = ordered([*live.running.values(), *live.waiting.values()])
        yield from [item.payload for item in items]


def stats(shard: Shard, *offsets: int) -> list[Any]:
    """Return the reply of ``stats.lua``."""
    lives = shard.lives.values()
    waiting = [live.due.ms for live in lives if live.lease is None]
    ready = sum(1 for due in waiting if due <= shard.now_ms)
    head = shard.head(range(PRIORITIES))
    deadline = min((live.lease.deadline_ms for live in lives if live.lease), default=-1)
    answer: list[Any] = [
        shard.now_ms,
        ready,
        len(waiting) - ready,
        len(lives) - len(waiting),
        sum(1 for live in lives if live.gate),
        sum(1 for live in lives if live.failures),
        len(shard.graves),
        -1 if head is None else head // 1000,
        deadline,
        shard.hold_ms,
        len(shard.settled),
        len(shard.waiting(PRIORITIES)),
        len(shard.begun),
        [sum(1 for due in waiting if due <= shard.now_ms + offset) for offset in offsets],
    ]
    for name, number in shard.counters.items():
        answer += [name.encode(), number]
    return answer


def view(shard: Shard, ident: str, live: Live) -> JobView:
    """Return the view of a live job."""
    job = shard.job(ident, live)
    seen = "reserved" if live.lease else "ready" if job.due_ms <= shard.now_ms else "delayed"
    gated = None
    if live.gate:
        c = live.gate.content
        gated = Job(
            shard.queue,
            shard.number,
            ident,
            c.task,
            c.key,
            c.args,
            c.options,
            c.priority,
            live.gate.due.ms,
            merged=c.merged,
        )
    return JobView(
        job,
        seen,
        job.due_ms,
        gated.due_ms if gated else None,
        len(live.waiting) + len(live.running),
        job.deadline_ms or None,
        gated=gated,
    )


def cut(view: JobView, most: int | None) -> JobView:
    """Return a view without arguments and payloads that are larger than ``most`` bytes."""
    if most is None:
        return view
    if len(view.job.args) > most:
        view.left_out += len(view.job.args)
        view.job.args = b""
    if (data := sum(len(payload.data) for payload in view.payloads)) > most:
        view.left_out += data
        view.payloads = ()
    if view.gated is not None and len(view.gated.args) > most:
        view.gated_left_out = len(view.gated.args)
        view.gated.args = b""
    return view


def buried(shard: Shard, ident: str, grave: Grave) -> JobView:
    """Return the view of a morgue record."""
    c = grave.content
    job = Job(
        shard.queue,
        shard.number,
        ident,
        c.task,
        c.key,
        c.args,
        c.options,
        c.priority,
        grave.due_ms,
        failures=grave.failures,
        reserves=grave.reserves,
        crashes=grave.crashes,
        error=grave.error,
        merged=c.merged,
    )
    payloads = tuple(item.payload for item in grave.items)
    return JobView(
        job,
        "morgue",
        grave.due_ms,
        None,
        len(payloads),
        None,
        ms_of(grave.buried),
        grave.outcome,
        grave.reason,
        grave.error_class,
        payloads,
    )
