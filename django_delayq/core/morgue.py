"""Kick and discard of morgue records while a queue has more than one epoch.

A record lies in the shard in which its job died. Its job may be put back only where :mod:`.resharding` allows: in an
old shard if the id is live there, otherwise in the present epoch. If that is another shard, the content is put there
first and the record is removed afterwards. The request id of both calls follows from the record, so that concurrent or
repeated calls put nothing back twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from .actions import AT_A_TIME, ELSEWHERE, Action, Name, live_ids
from .errors import InvalidJob
from .job import Generation
from .job_view import record_name, split_name
from .reading import burials, read
from .records.frames import encode_id, names_of, pack, pack_generation, pack_named, unpack, unpack_fields
from .records.keys import MAX_SHARDS, number_of
from .registry import ShardSet
from .resharding import visit

#: no such record; the shard is closed and the id not live there
_ABSENT: Final = "absent"
_KICKED: Final = {"k": "kicked", "l": "live", "n": "gone", "v": ELSEWHERE, "e": _ABSENT}
#: end of the task's number in a body
_TASK_END: Final = 3


@dataclass(frozen=True, slots=True)
class _Grave:
    """Fields of a morgue record that are needed to put its job back."""

    shard: int
    key: bytes
    buried_us: float
    #: its task, or "" when the body cannot be read; then the record's body is complete, otherwise it lacks the number
    task: str
    record: bytes

    @property
    def request(self) -> bytes:
        """Request id shared by all callers that put the job of this record back."""
        seed = b"%d %b %r" % (self.shard, self.key, self.buried_us)
        return hashlib.blake2b(seed, digest_size=16).digest()


@dataclass(slots=True)
class KickPace:
    """Due times of kicked jobs: all after one delay, or spread at a fixed rate."""

    ms: float
    relative: bool
    step: float

    @classmethod
    def of(cls, delay_ms: int, per_second: float | None = None, now_ms: int = 0) -> KickPace:
        """Return the pace of an operation.

        Args:
            delay_ms: delay of the first job; a negative one is 0.
            per_second: how many jobs fall due in a second; None = all at once.
            now_ms: the time from which a rate counts.

        Raises:
            InvalidJob: a rate that is not above 0.
        """
        delay_ms = max(0, delay_ms)
        if per_second is None:
            return cls(delay_ms, relative=True, step=0)
        if not 0 < per_second < float("inf"):
            raise InvalidJob(f"a pace is a number of jobs per second above 0, not {per_second}")
        return cls(now_ms + delay_ms, relative=False, step=1000 / per_second)

    def delay_ms(self, queue: ShardSet) -> int:
        """Return the delay of the next job, counted from now."""
        return int(self.ms if self.relative else max(0.0, self.ms - queue.deployment.now_ms()))


class Kick(Action):
    """Action that moves jobs from the morgue back into the queue.

    Outcomes: kicked, live (a live job of the id prevents it) or gone (no such record).
    """

    __slots__ = ("_pace", "_replace")

    def __init__(self, pace: KickPace, *, replace: bool) -> None:
        super().__init__("kick", _KICKED, at_once=AT_A_TIME)
        self._pace = pace
        self._replace = b"1" if replace else b"0"

    def call(self, queue: ShardSet, number: int, entries: bytes, request: bytes | None = None) -> list[str]:
        """Kick packed entries of a shard (:meth:`Action.call`); the next call continues at the pace."""
        pace = self._pace
        self.arguments = (pace.ms, b"1" if pace.relative else b"0", pace.step, self._replace)
        outcomes = super().call(queue, number, entries, request)
        pace.ms += outcomes.count("kicked") * pace.step
        return outcomes

    def in_shard(self, queue: ShardSet, number: int, names: Sequence[Name]) -> list[str]:
        """Kick jobs of a shard (:meth:`Action.in_shard`); a job that belongs to another shard is put there."""
        # An id that is live in an older epoch is put back there, so these are kicked one by one.
        older = live_in_older(queue, number, [ident for ident, _ in names])
        here = iter(super().in_shard(queue, number, [name for name in names if name[0] not in older]))
        outcomes = [ELSEWHERE if ident in older else next(here) for ident, _ in names]
        return [
            self._anywhere(queue, *name) if outcome == ELSEWHERE else "gone" if outcome == _ABSENT else outcome
            for name, outcome in zip(names, outcomes, strict=True)
        ]

    def anywhere(
        self, queue: ShardSet, ident: str, generation: Generation | None = None, *, request: bytes | None = None
    ) -> str:
        """Kick one job wherever it is (:meth:`Action.anywhere`).

        ``request`` has no effect while the queue has old epochs.
        """
        return self._anywhere(queue, encode_id(ident), pack_generation(generation)[0], request)

    def _anywhere(self, queue: ShardSet, ident: bytes, key: bytes, request: bytes | None = None) -> str:
        name = ident.decode()
        epochs = queue.epochs
        if len(epochs) == 1:
            ((epoch, shards),) = epochs
            number = number_of(epoch, crc32(ident) % shards)
            (outcome,) = self.call(queue, number, pack_named(ident, key), request)
            if outcome not in (ELSEWHERE, _ABSENT) and (outcome != "gone" or not queue.reload()):
                return outcome
        grave = _find(queue, name, key)
        while grave is None:
            if not queue.reload():
                return "gone"
            grave = _find(queue, name, key)
        return self._bring_back(queue, ident, grave)

    def _bring_back(self, queue: ShardSet, ident: bytes, grave: _Grave) -> str:
        entry = pack_named(ident, grave.key)

        def ask(number: int) -> str | None:
            if number == grave.shard:
                (outcome,) = self.call(queue, number, entry)
            else:
                outcome = self._adopt(queue, number, ident, grave)
                if outcome == "kicked":
                    _CAME_BACK.call(queue, grave.shard, entry, grave.request)
            return None if outcome in (ELSEWHERE, _ABSENT) else outcome

        return visit(queue, ident.decode(), ask) or "gone"

    def _adopt(self, queue: ShardSet, number: int, ident: bytes, grave: _Grave) -> str:
        delay_ms = self._pace.delay_ms(queue)
        content = (grave.task, grave.record)
        reply: bytes = queue.call("adopt", number, ident, delay_ms, self._replace, *content, request=grave.request)
        outcome = _KICKED[reply.decode()]
        if outcome == "kicked":
            self._pace.ms += self._pace.step
        return outcome


class Discard(Action):
    """Action that deletes jobs from the morgue: discarded or gone."""

    __slots__ = ()

    def __init__(self, *arguments: object) -> None:
        super().__init__("discard", {"d": "discarded", "n": "gone"}, *arguments)

    def anywhere(
        self, queue: ShardSet, ident: str, generation: Generation | None = None, *, request: bytes | None = None
    ) -> str:
        """Delete one morgue record wherever it is; see :meth:`Action.anywhere`."""
        encoded, key = encode_id(ident), pack_generation(generation)[0]
        while True:
            if not key and len(queue.epochs) > 1:
                names = _names(queue, ident)
                key = split_name(names[0][1])[1] if names else b""
            for number in queue.homes(ident):
                if self.call(queue, number, pack_named(encoded, key), request) == ["discarded"]:
                    return "discarded"
            if not queue.reload():
                return "gone"


#: deletes the record of a job that came back in another shard
_CAME_BACK: Final = Discard(b"1")


def _find(queue: ShardSet, ident: str, key: bytes) -> _Grave | None:
    """Return the morgue record of this generation, or the latest of the id, from any epoch."""
    name = record_name(ident.encode(), key)
    names = [(number, name) for number in queue.homes(ident)] if key else _names(queue, ident)
    for number, name in names:
        frame = read(queue.deployment, queue.name, number, buried=True, members=[name])
        _more, _looked_at, _now_ms, tasks, (members, records, *_) = unpack(frame)
        if members:
            return _grave_of(number, name, records[0], names_of(tasks))
    return None


def _names(queue: ShardSet, ident: str) -> list[tuple[int, bytes]]:
    """Return shard and name of each record of an id, the latest first."""
    return [(entry.shard, entry.member) for entry in burials(queue, ident)]


def _grave_of(number: int, name: bytes, packed: bytes, tasks: Mapping[int, str]) -> _Grave:
    """Return what is needed of a stored record; ``tasks`` has the name of its task, if it is known."""
    record = unpack_fields(packed)
    body, task = record["body"], "".join(tasks.values())
    if task:
        record["body"] = body[:1] + body[_TASK_END:]
    elif len(body) >= _TASK_END:  # in another shard the number might name another task
        record["body"] = body[:1] + b"\xff\xff" + body[_TASK_END:]
    return _Grave(number, split_name(name)[1], record["buried_at"], task, pack(record))


def live_in_older(queue: ShardSet, number: int, idents: Sequence[bytes]) -> set[bytes]:
    """Return the ids that are live in a shard of an epoch before that of shard ``number``.

    The other ids cannot become live there any more, so they need to be handled in their own shard only.
    """
    live: set[bytes] = set()
    for epoch, shards in queue.epochs:
        if epoch < number // MAX_SHARDS:
            places: dict[int, list[bytes]] = {}
            for ident in idents:
                places.setdefault(number_of(epoch, crc32(ident) % shards), []).append(ident)
            for other, mine in places.items():
                live.update(live_ids(queue, other, mine))
    return live
