"""Reading of index entries, and of the jobs that they name in pieces of little more than a MiB."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import QueueUnavailable
from ..records.fields import pack_u8, pack_u16
from ..records.keys import SHARD_KEYS, joint
from ..records.morgue_records import record_name
from ..redis.scripts import Call
from .paging import IndexEntry, Range
from .views import JobView, unpack_graves, unpack_views

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

#: shards that one call counts; Redis serves others about a millisecond later
COUNTED_TOGETHER: Final = 32
#: queue, shard, and the further arguments of a script
QueueCall: TypeAlias = tuple["Queue", int, tuple[Any, ...]]


class JobReader:
    """Reader of the indexes of a broker's queues, and of the jobs behind their entries."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def first_entries(
        self,
        queue: Queue,
        names: tuple[str, ...],
        after: IndexEntry | None,
        limit: int,
        reverse: bool,
        bounds: Range,
        unreachable: set[int] | None = None,
    ) -> list[IndexEntry]:
        """Return the first entries of a range after the cursor, over all shards and all indexes of the place.

        An id lies in one shard and one index only, so (score, member) names an entry of the whole queue.

        Args:
            unreachable: receives the numbers of shards that did not answer; None = that is an error.
        """
        score, member = (after.text, after.member) if after else ("", b"")
        range_ = bounds.arguments()
        calls: list[QueueCall] = [
            (queue, number, (SHARD_KEYS.index(name) + 1, b"1" if reverse else b"0", limit, score, member, *range_))
            for number in queue.numbers
            for name in names
        ]
        entries: list[IndexEntry] = []
        answers = self.call_all("page", calls, partial=unreachable is not None)
        for (_, number, _), answer in zip(calls, answers, strict=True):
            if unreachable is not None and isinstance(answer, QueueUnavailable):
                unreachable.add(number)
                continue
            for entry, text in zip(answer[::2], answer[1::2], strict=True):
                entries.append(IndexEntry(float(text), entry, number, text.decode()))
        pick = heapq.nlargest if reverse else heapq.nsmallest
        return pick(limit, entries)

    def burials(self, queue: Queue, ident: str) -> list[IndexEntry]:
        """Return the entries of an id's records, the one that was buried last first."""
        calls: list[QueueCall] = [(queue, number, (ident.encode(),)) for number in queue.homes(ident)]
        entries = [
            IndexEntry(float(text), name, number, text.decode())
            for (_, number, _), answer in zip(calls, self.call_all("burials", calls), strict=True)
            for name, text in zip(answer[::2], answer[1::2], strict=True)
        ]
        return sorted(entries, reverse=True)

    # -- jobs of entries ---------------------------------------------------------------------------------------------

    def records(
        self, queue: Queue, entries: Sequence[IndexEntry], most: int | None
    ) -> Iterator[tuple[IndexEntry, JobView]]:
        """Yield the records that still exist, read in pieces on demand."""
        for number, some in groupby(entries, key=lambda entry: entry.shard):
            mine = {entry.member: entry for entry in some}
            for view in self.buried(queue, number, list(mine), most):
                yield mine[record_name_of(view)], view

    def entries(
        self, queue: Queue, place: str, entries: Sequence[IndexEntry], most: int | None
    ) -> dict[tuple[int, bytes], JobView]:
        """Return the jobs of entries of a place, as far as they still exist, by shard and member.

        Args:
            most: size above which arguments are left out.
        """
        members: dict[int, list[bytes]] = {}
        for entry in entries:
            members.setdefault(entry.shard, []).append(entry.member)
        first = self._first_replies(queue, place, members, most)
        views: dict[tuple[int, bytes], JobView] = {}
        for number, mine in members.items():
            for view in self.members(queue, number, place, mine, most, first.get(number)):
                views[number, record_name_of(view) if place == "morgue" else view.id.encode()] = view
        return views

    def _first_replies(
        self, queue: Queue, place: str, members: dict[int, list[bytes]], most: int | None
    ) -> dict[int, bytes]:
        """Return the first reply of each shard in one round trip; in most cases it is the complete one."""
        script, arguments = ("graves", _record_arguments) if place == "morgue" else ("view", _view_arguments)
        calls: list[QueueCall] = [(queue, number, arguments(mine, most)) for number, mine in members.items()]
        return dict(zip(members, self.call_all(script, calls), strict=True)) if calls else {}

    def members(
        self,
        queue: Queue,
        number: int,
        place: str,
        members: Sequence[bytes],
        most: int | None,
        reply: bytes | None = None,
    ) -> Iterator[JobView]:
        """Yield the jobs of members of an index of a place.

        Args:
            reply: that of the first call, if it was made already.
        """
        if place == "morgue":
            return self.buried(queue, number, members, most, reply)
        return self.live(queue, number, [member.decode() for member in members], most, reply)

    def live(
        self, queue: Queue, number: int, idents: Sequence[str], most: int | None, reply: bytes | None = None
    ) -> Iterator[JobView]:
        """Yield the live jobs of some ids in a shard."""
        while idents:
            if reply is None:
                reply = self.call(queue, number, "view", *_view_arguments([ident.encode() for ident in idents], most))
            views = unpack_views(queue.name, number, idents, reply)
            idents, reply = idents[len(views) :], None
            yield from filter(None, views)

    def buried(
        self, queue: Queue, number: int, names: Sequence[bytes], most: int | None, reply: bytes | None = None
    ) -> Iterator[JobView]:
        """Yield morgue records of a shard by their names."""
        while names:
            if reply is None:
                reply = self.call(queue, number, "graves", *_record_arguments(names, most))
            views = list(unpack_graves(queue.name, number, reply))
            yield from views
            # Records that are gone leave no trace in the reply: more may follow after its last one.
            names, reply = names[names.index(record_name_of(views[-1])) + 1 :] if views else (), None

    def call(self, queue: Queue, number: int, script: str, *args: object) -> Any:
        """Run a reading script on a shard."""
        shard = queue.shard(number)
        return self._broker.scripts.call(script, shard.keys, b"", shard.constants, *args)

    def stats(
        self, places: Sequence[tuple[Queue, int]], offsets: tuple[int, ...] = (), *, partial: bool = False
    ) -> list[Any]:
        """Return the replies of ``stats.lua`` for many shards. Without a cluster, a call counts several of them.

        Args:
            partial: see :meth:`.Scripts.call_many`.
        """
        shards = [queue.shard(number) for queue, number in places]
        together = 1 if self._broker.connection.cluster else COUNTED_TOGETHER
        calls = [
            Call.on_shard("stats", joint(shards[start : start + together]), *offsets)
            for start in range(0, len(shards), together)
        ]
        answers = self._broker.scripts.call_many(calls, partial=partial)
        return list(chain.from_iterable([one] if isinstance(one, QueueUnavailable) else one for one in answers))

    def call_all(self, script: str, calls: Sequence[QueueCall], *, partial: bool = False) -> list[Any]:
        """Return the replies of many shards; see :meth:`.Scripts.call_many`."""
        shard_calls = [Call.on_shard(script, queue.shard(number), *args) for queue, number, args in calls]
        return self._broker.scripts.call_many(shard_calls, partial=partial)


def _most(most_bytes: int | None) -> bytes:
    return b"" if most_bytes is None else b"%d" % most_bytes


def _view_arguments(idents: Sequence[bytes], most: int | None) -> tuple[bytes, ...]:
    return pack_u8(idents), _most(most)


def _record_arguments(names: Sequence[bytes], most: int | None) -> tuple[bytes, ...]:
    return pack_u16(names), _most(most)


def record_name_of(view: JobView) -> bytes:
    """Return the name of a job's morgue record: its id and its key."""
    return record_name(view.id.encode(), view.job.key)
