"""The cold path: what lies where. Nothing here changes a job.

A page is one shard-merged slice of an index, continued by a cursor that names the last entry seen, so paging through a
million jobs stays stable while others come and go.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis.exceptions import NoScriptError

from .errors import InvalidJob
from .frames import pack_id, unpack_payload
from .job import PRIORITIES, Payload
from .keys import SHARD_KEYS
from .scripts import clear_errors
from .views import JobView, framed, unpack_graves, unpack_views

if TYPE_CHECKING:
    from .broker import Broker
    from .queue import Queue

__all__ = ["INDEXES", "SEARCHED", "Counts", "Inspector", "JobView", "Page"]

_DUE_KEYS: Final = tuple(f"due.{priority}" for priority in range(PRIORITIES))
#: place -> by -> the indexes that hold it
INDEXES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "waiting": {"due": _DUE_KEYS},
    "reserved": {"deadline": ("lease",)},
    "failed": {"updated": ("failed",), "failures": ("failures",)},
    "morgue": {"updated": ("morgue",), "id": ("morgue_id",)},
}
#: every job once
SEARCHED: Final = ("waiting", "reserved", "morgue")
_PAGE: Final = 250
_PIPELINE: Final = 16_384
#: queue, shard, and what a script is given besides
_Call: TypeAlias = tuple["Queue", int, tuple[Any, ...]]


@dataclass(slots=True)
class Counts:
    """How many jobs of a queue lie where. ``failed`` jobs are also counted as delayed or ready."""

    queue: str
    now_ms: float = 0
    ready: int = 0
    delayed: int = 0
    reserved: int = 0
    gated: int = 0
    failed: int = 0
    morgue: int = 0
    oldest_due_ms: float | None = None
    #: ends of durable jobs that nobody has taken down so far
    marks: int = 0
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def lag_seconds(self) -> float:
        """How long the longest waiting ready job is overdue; 0 when nothing is due."""
        if self.oldest_due_ms is None:
            return 0.0
        return max(0.0, self.now_ms - self.oldest_due_ms) / 1000

    def add(self, answer: Sequence[Any]) -> None:
        """Adds what ``stats.lua`` says of one shard."""
        now_ms, ready, delayed, reserved, gated, failed, morgue, oldest, _deadline, _hold, marks, *counters = answer
        self.now_ms = max(self.now_ms, float(now_ms))
        self.ready += ready
        self.delayed += delayed
        self.reserved += reserved
        self.gated += gated
        self.failed += failed
        self.morgue += morgue
        self.marks += marks
        due_ms = float(oldest) // 1000
        if due_ms >= 0 and (self.oldest_due_ms is None or due_ms < self.oldest_due_ms):
            self.oldest_due_ms = due_ms
        for name, value in zip(counters[::2], counters[1::2], strict=True):
            self.counters[name.decode()] = self.counters.get(name.decode(), 0) + int(value)


@dataclass(slots=True)
class Page:
    """One page of jobs; ``cursor`` continues behind it, and is empty at the end."""

    jobs: list[JobView]
    cursor: str = ""


@dataclass(slots=True, order=True)
class _Entry:
    score: float
    member: bytes
    shard: int
    text: str = field(compare=False, default="")


class Inspector:
    """Looks at the queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # -- counts ------------------------------------------------------------------------------------------------------

    def counts(self, queue: str) -> Counts:
        """How many jobs of a queue lie where; nothing anywhere for a queue that does not exist."""
        opened = self._broker.known_queue(queue)
        return self._count([opened])[0] if opened else Counts(queue)

    def all_counts(self) -> list[Counts]:
        """The same for every queue, in one round trip for each 16,384 shards (on a cluster: one for each shard)."""
        return self._count(self._broker.queues())

    def count_shards(self, queue: Queue, numbers: Sequence[int]) -> Counts:
        """The same for some shards of a queue, whatever their epochs."""
        counts = Counts(queue.name)
        for answer in self._ask_all("stats", [(queue, number, ()) for number in numbers]):
            counts.add(answer)
        return counts

    def count_each_shard(self, queue: Queue, numbers: Sequence[int]) -> list[Counts]:
        """The same for each of these shards."""
        found = []
        for answer in self._ask_all("stats", [(queue, number, ()) for number in numbers]):
            found.append(Counts(queue.name))
            found[-1].add(answer)
        return found

    def _count(self, queues: Sequence[Queue]) -> list[Counts]:
        counts = {queue.name: Counts(queue.name) for queue in queues}
        calls: list[_Call] = [(queue, number, ()) for queue in queues for number in queue.numbers]
        for (queue, *_), answer in zip(calls, self._ask_all("stats", calls), strict=True):
            counts[queue.name].add(answer)
        return list(counts.values())

    # -- jobs --------------------------------------------------------------------------------------------------------

    def get(self, queue: str, ident: str) -> JobView | None:
        """The live job of an id, else the one that was buried last, else None."""
        opened = self._broker.known_queue(queue)
        if opened is None:
            return None
        for number in opened.homes(ident):
            for live in self._live(opened, number, [ident]):
                return live
        graves = self.graves(queue, ident)
        return max(graves, key=lambda view: view.buried_ms or 0, default=None)

    def graves(self, queue: str, ident: str) -> list[JobView]:
        """All records of an id in the morgue (up to 250)."""
        opened = self._broker.known_queue(queue)
        if opened is None:
            return []
        return [
            view for number in opened.homes(ident)
            for view in unpack_graves(opened.name, number, self._ask(opened, number, "graves", b"", ident.encode()))
        ]  # fmt: skip

    def peek(self, queue: str, limit: int = 10) -> list[JobView]:
        """The jobs that come next, in the order of their due times."""
        return self.page(queue, "waiting", limit=limit).jobs

    def payloads(self, queue: str, ident: str) -> Iterator[Payload]:
        """The payloads of a live merged job in the order of their scores, those of a run that goes on among them.

        They are read in pieces, so of a job that changes meanwhile it is not one moment's picture.
        """
        opened = self._broker.known_queue(queue)
        if opened is None:
            return
        for number in opened.homes(ident):
            after, some = b"", False
            while True:
                after, frame = self._ask(opened, number, "payloads", ident.encode(), after, _PAGE)
                for record in framed(frame):
                    some = True
                    yield unpack_payload(record)
                if not after:
                    break
            if some:
                return

    def search(self, queue: str, wanted: str | Callable[[JobView], bool], *, places: Iterable[str] = SEARCHED,
               limit: int | None = None) -> Iterator[JobView]:  # fmt: skip
        """Jobs of a queue in which something is found; see :mod:`.search`.

        Args:
            wanted: a text that stands, in large or small letters, in the id, the task's name, the arguments or
                payloads as they are stored (canonical JSON), the context or the last error; or a function that answers
                whether a job is meant.
            places: where to look: waiting, reserved, failed (a part of waiting), morgue.
            limit: end after so many.

        Raises:
            InvalidJob: an empty text or an unknown place.
        """
        from .search import search

        return search(self._broker, queue, wanted, tuple(places), limit)

    def views(self, queue: Queue, number: int, place: str, members: Sequence[bytes]) -> Iterator[JobView]:
        """The jobs of a shard behind these members of an index of ``place``, as far as they are still there.

        They are read as they are asked for, in pieces of little more than a MiB.
        """
        if place == "morgue":
            return self._buried(queue, number, members)
        return self._live(queue, number, [member.decode() for member in members])

    def page(self, queue: str, place: str, by: str = "", *, cursor: str = "", limit: int = 100,
             reverse: bool = False) -> Page:  # fmt: skip
        """A page of jobs.

        Args:
            place: waiting (delayed and ready), reserved, failed or morgue.
            by: the order: due (waiting), deadline (reserved), updated or failures (failed), updated or id (morgue);
                the first of these when empty.
            cursor: ``Page.cursor`` of the page before.
            limit: 1 … 250.
            reverse: from the end.

        Raises:
            InvalidJob: an unknown place, order or cursor.
        """
        orders = INDEXES.get(place)
        if orders is None:
            raise InvalidJob(f"{place!r} is no place to page through; use one of {', '.join(INDEXES)}")
        names = orders.get(by or next(iter(orders)))
        if names is None:
            raise InvalidJob(f"jobs in {place!r} are not ordered by {by!r}; use one of {', '.join(orders)}")
        opened = self._broker.known_queue(queue)
        if opened is None:
            return Page([])
        limit = max(1, min(limit, _PAGE))
        entries = self._entries(opened, names, _unpack_cursor(cursor), limit, reverse)
        views = self._view_entries(opened, place, entries)
        return Page(views, _pack_cursor(entries[-1]) if len(entries) == limit else "")

    def _entries(self, queue: Queue, names: tuple[str, ...], after: _Entry | None, limit: int,
                 reverse: bool) -> list[_Entry]:  # fmt: skip
        """The first entries behind the cursor, over all shards and all indexes of the place.

        An id lies in one shard and one index only, so (score, member) names an entry of the whole queue.
        """
        score, member = (after.text, after.member) if after else ("", b"")
        calls: list[_Call] = [
            (queue, number, (SHARD_KEYS.index(name) + 1, b"1" if reverse else b"0", limit, score, member))
            for number in queue.numbers for name in names
        ]  # fmt: skip
        found: list[_Entry] = []
        for (_, number, _), answer in zip(calls, self._ask_all("page", calls), strict=True):
            for entry, text in zip(answer[::2], answer[1::2], strict=True):
                found.append(_Entry(float(text), entry, number, text.decode()))
        pick = heapq.nlargest if reverse else heapq.nsmallest
        return pick(limit, found)

    def _view_entries(self, queue: Queue, place: str, entries: Iterable[_Entry]) -> list[JobView]:
        members: dict[int, list[bytes]] = {}
        ordered = list(entries)
        for entry in ordered:
            members.setdefault(entry.shard, []).append(entry.member)
        views: dict[tuple[int, bytes], JobView] = {}
        for number, mine in members.items():
            for view in self.views(queue, number, place, mine):
                views[number, _grave_of(view) if place == "morgue" else view.id.encode()] = view
        # What was settled between the two looks is left out; the cursor goes on behind it all the same.
        return [views[place_of] for entry in ordered if (place_of := (entry.shard, entry.member)) in views]

    def _live(self, queue: Queue, number: int, idents: Sequence[str]) -> Iterator[JobView]:
        while idents:
            frame = self._ask(queue, number, "view", b"".join(map(pack_id, idents)))
            views = unpack_views(queue.name, number, idents, frame)
            idents = idents[len(views) :]
            yield from filter(None, views)

    def _buried(self, queue: Queue, number: int, graves: Sequence[bytes]) -> Iterator[JobView]:
        while graves:
            frame = b"".join(len(grave).to_bytes(2, "little") + grave for grave in graves)
            views = list(unpack_graves(queue.name, number, self._ask(queue, number, "graves", frame, b"")))
            yield from views
            # Records that are gone leave no trace in the answer: behind its last one there may be more to ask for.
            graves = graves[graves.index(_grave_of(views[-1])) + 1 :] if views else ()

    def _ask(self, queue: Queue, number: int, script: str, *args: object) -> Any:
        shard = queue.shard(number)
        return self._broker.scripts.call(script, shard.keys, b"", shard.constants, *args)

    def _ask_all(self, script: str, calls: Sequence[_Call]) -> list[Any]:
        """The answers of many shards, in one round trip for each 16,384 calls (on a cluster: one for each call)."""
        if self._broker.connection.cluster or len(calls) == 1:
            return [self._ask(queue, number, script, *args) for queue, number, args in calls]
        answers: list[Any] = []
        with clear_errors():
            sha, _ = self._broker.scripts.loaded(script)
            for start in range(0, len(calls), _PIPELINE):
                pipeline = self._broker.client.pipeline(transaction=False)
                for queue, number, args in calls[start : start + _PIPELINE]:
                    shard = queue.shard(number)
                    pipeline.evalsha(sha, len(shard.keys), *shard.keys, b"", shard.constants, *args)
                answers += pipeline.execute(raise_on_error=False)
        for place, (queue, number, args) in enumerate(calls):
            if isinstance(answers[place], NoScriptError):
                answers[place] = self._ask(queue, number, script, *args)
            elif isinstance(answers[place], Exception):
                with clear_errors():
                    raise answers[place]
        return answers


def _grave_of(view: JobView) -> bytes:
    return view.id.encode() + b"\0" + view.job.key


def _pack_cursor(entry: _Entry) -> str:
    raw = b"%d:%b:%b" % (entry.shard, entry.text.encode(), entry.member)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _unpack_cursor(cursor: str) -> _Entry | None:
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        shard, text, member = raw.split(b":", 2)
        return _Entry(float(text), member, int(shard), text.decode())
    except ValueError:
        raise InvalidJob(f"{cursor[:40]!r} is not a cursor of this inspector; start again without one") from None
