"""The chunks of a run as bytes: what their jobs have in common once, and the rest in columns (``lua/bulk.lua``).

The keys of jobs have to be the same in every try. Those of plain jobs are made of the digest of their chunk and their
place in it: the same rows make the same chunks anyway, and a hash for each job would cost as much as all the rest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, TypeAlias

from ..errors import InvalidJob
from ..inputs import check_choice, check_int, check_task_name
from ..job import MAX_ID_BYTES, NewJob
from ..sending.runs import CHUNK, key_of
from .frames import CONFLICT, DUE_POLICY, SCORE_POLICY, bad_id, pack_new

_HEAD: Final = struct.Struct("<BBBBBB")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_FRONT: Final = struct.Struct("<BBBBdB")  # of an entry of schedule.lua
_KEEP_RETRIES, _MERGED, _SCORE_IS_NOW = 2, 4, 8
NO_CODE: Final = b"\0\0"
#: of the body, and of a payload
KEY_BYTES: Final = 16
#: how keys of one chunk differ
_PLACES: Final = tuple(struct.pack(">I", place) for place in range(CHUNK))


@dataclass(frozen=True, slots=True)
class Shape:
    """What the jobs of one chunk have in common: the head of its frame."""

    head: bytes
    merged: bool = False
    #: whether bodies begin with the keys of their jobs; else the chunk gives them
    keyed: bool = True

    @property
    def task(self) -> bytes:
        """Its name."""
        return self.head[_HEAD.size :]

    @classmethod
    def of(
        cls,
        task: str,
        *,
        on_conflict: str = "ignore",
        due_policy: str = "replace",
        score_policy: str = "min",
        reset_retries: bool = True,
        flags: int,
        merged: bool = False,
        score_is_now: bool = False,
        keyed: bool = True,
    ) -> Shape:
        """As a :class:`~..job.NewJob` says it; ``flags`` is the first byte of the bodies (:func:`~..job.pack_body`).

        Raises:
            InvalidJob: what cannot be, or payloads are to be merged and there is none.
        """
        check_choice("on_conflict", on_conflict, tuple(CONFLICT))
        check_choice("due_policy", due_policy, tuple(DUE_POLICY))
        check_choice("score_policy", score_policy, tuple(SCORE_POLICY))
        if on_conflict == "merge" and not merged:
            raise InvalidJob("only jobs with a payload can be merged; give one, or use on_conflict='replace'")
        marks = (0 if reset_retries else _KEEP_RETRIES) | (_MERGED if merged else 0)
        marks |= _SCORE_IS_NOW if score_is_now else 0
        name = check_task_name(task).encode()
        return cls(
            _HEAD.pack(
                CONFLICT[on_conflict],
                DUE_POLICY[due_policy],
                SCORE_POLICY[score_policy],
                marks,
                check_int("flags", flags, 0, 255),
                len(name),
            )
            + name,
            merged,
            keyed,
        )


#: id, due in Unix ms, body behind its first byte, what merged jobs have behind it
Entry: TypeAlias = tuple[bytes, int, bytes, bytes]


def entry_of(new: NewJob) -> tuple[Shape, Entry]:
    """A job as a run writes it. A plain one that has no key gets one in its chunk.

    Raises:
        InvalidJob: see :func:`~.frames.pack_new`; or it has no due time of its own, or it is merged and has no keys
            (:func:`with_keys`), so that a second try would make another job of it; or it is durable, which only the
            outbox can keep the promise of.
    """
    if new.durable:
        raise InvalidJob("a bulk write takes no durable jobs: their rows are in the database, so schedule them there")
    keyed = bool(new.key or new.payload)
    if keyed and not len(new.key) == KEY_BYTES == len(new.payload.key if new.payload else new.key):
        raise InvalidJob(
            f"a bulk write needs the key of job {new.id!r}, and of its payload, 16 bytes each: one made "
            "by chance would be another in a second try; make it with key_of()"
        )
    if new.due_ms is None:
        raise InvalidJob("a bulk write needs the moment when a job is due: a delay would mean another in a second try")
    packed = pack_new(new)
    conflict, due_policy, score_policy, marks, _, size = _FRONT.unpack_from(packed)
    at = _FRONT.size
    ident, at = packed[at : at + size], at + size
    task, at = packed[at + 1 : at + 1 + packed[at]], at + 1 + packed[at]
    (length,) = _U32.unpack_from(packed, at)
    body, extra = packed[at + 4 : at + 4 + length], packed[at + 4 + length :]
    head = _HEAD.pack(conflict, due_policy, score_policy, marks, body[0], len(task)) + task
    kept = body[1:] if keyed else body[1 + KEY_BYTES :]
    return Shape(head, new.payload is not None, keyed), (ident, new.due_ms, kept, extra)


def with_keys(run_id: str, new: NewJob) -> NewJob:
    """A merged job with the keys that a run makes for it, where it has none: the same of the same job in every try.

    Payloads are told apart by what they say, so that one that is given again in another chunk is found there. A plain
    job stays as it is: its chunk gives it a key.
    """
    payload = new.payload
    if payload is None or (new.key and payload.key):
        return new
    ident = new.id.encode()
    said = b"%b\0%d\0%b\0%b" % (new.task.encode(), new.priority, payload.score.encode(), payload.data)
    payload = replace(payload, key=payload.key or key_of(run_id, ident + b"\1" + said))
    return replace(new, key=new.key or key_of(run_id, ident + b"\0" + said), payload=payload)


@dataclass(slots=True)
class Rows:
    """Jobs of one shape in columns. No id is twice in those of a chunk."""

    ids: list[bytes] = field(default_factory=list)
    #: Unix ms, as texts
    dues: list[bytes] = field(default_factory=list)
    #: behind their first byte
    bodies: list[bytes] = field(default_factory=list)
    #: what merged jobs have behind the body
    extras: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> int:
        """Bytes of what differs from job to job, but for ids."""
        return sum(map(len, self.bodies)) + sum(map(len, self.extras))

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Rows:
        """The same jobs."""
        ids, dues, bodies, extras = map(list, zip(*entries, strict=True)) if entries else ([], [], [], [])
        return cls(ids, [b"%d" % due for due in dues], bodies, extras if any(extras) else [])

    def entries(self) -> Iterator[Entry]:
        """One by one."""
        extras = self.extras or [b""] * len(self)
        for ident, due, body, extra in zip(self.ids, self.dues, self.bodies, extras, strict=True):
            yield ident, int(due), body, extra

    def pick(self, places: Sequence[int]) -> Rows:
        """Some of them."""
        if not places:
            return Rows()
        taken: Callable[[list[bytes]], Sequence[bytes]] = (
            itemgetter(*places) if len(places) > 1 else (lambda column: (column[places[0]],))
        )
        return Rows(*(list(taken(column)) if column else [] for column in self._columns()))

    def cut(self, start: int, stop: int) -> Rows:
        """Those from one place to before another."""
        return Rows(*(column[start:stop] for column in self._columns()))

    def extend(self, more: Rows) -> None:
        """Puts others behind these."""
        for column, behind in zip(self._columns(), more._columns(), strict=True):
            column += behind

    def keyed(self, run_id: str, digest: bytes) -> Rows:
        """With the keys that the chunk of this digest gives: nobody outside Redis waits for them, so bit 0 is off."""
        made = hashlib.blake2b(run_id.encode() + b"\0" + digest, digest_size=KEY_BYTES - 4).digest()
        base = bytes((made[0] & 0x7F,)) + made[1:]
        places = _PLACES[: len(self)]
        bodies = [base + place + body for place, body in zip(places, self.bodies, strict=True)]
        return Rows(self.ids, self.dues, bodies, self.extras)

    def _columns(self) -> tuple[list[bytes], ...]:
        return self.ids, self.dues, self.bodies, self.extras


@dataclass(frozen=True, slots=True)
class Frame:
    """A chunk, ready for any shard.

    In front of every body the script wants the two bytes that stand for the task in its shard. They are no part of what
    a ledger knows a chunk by; nor are the keys that the chunk gives.
    """

    flag: bytes
    front: bytes
    tail: bytes

    @classmethod
    def of(cls, shape: Shape, rows: Rows) -> Frame:
        """The chunk of these rows.

        Raises:
            InvalidJob: an id that cannot be one.
        """
        idents = rows.ids
        sizes = list(map(len, idents))
        if max(sizes) > MAX_ID_BYTES or not min(sizes) or b"\0" in b"".join(idents):
            raise bad_id(next(one for one in idents if not 0 < len(one) <= MAX_ID_BYTES or b"\0" in one))
        front = (
            shape.head,
            _U16.pack(len(idents)),
            _column(rows.dues, list(map(len, rows.dues)), _U8.pack),
            _column(idents, sizes, _U8.pack),
        )
        tail = _column(rows.extras, list(map(len, rows.extras)), _U32.pack) if shape.merged else b""
        return cls(shape.head[4:5], b"".join(front), tail)

    def digest(self, bodies: list[bytes], origin: bytes = b"") -> bytes:
        """By which a ledger knows it.

        Args:
            bodies: of its jobs; without keys, if the chunk gives them.
            origin: what tells it from other chunks of the same bytes: the digest of the chunk of which it is what was
                left, or which time it is that its sender sends such a one.
        """
        made = hashlib.sha1(origin + self.front, usedforsecurity=False)
        made.update(struct.pack(f"<{len(bodies)}I", *map(len, bodies)))
        made.update(b"".join(bodies))
        made.update(self.tail)
        return made.digest()

    def packed(self, bodies: list[bytes], code: bytes) -> bytes:
        """As ``bulk.lua`` reads it.

        Args:
            bodies: of its jobs, with their keys.
            code: that of the task in the shard, ``NO_CODE`` = it is not known.
        """
        prefix = self.flag + code
        column = _column(bodies, list(map(len, bodies)), lambda size: _U32.pack(size + 3) + prefix)
        return b"".join((code, self.front, column, self.tail))


def _column(values: list[bytes], sizes: list[int], front: Callable[[int], bytes]) -> bytes:
    """The values, each behind ``front(its size)``."""
    if min(sizes) == max(sizes):  # the usual case, and five times as fast
        one = front(sizes[0])
        return one + one.join(values)
    return b"".join([part for size, value in zip(sizes, values, strict=True) for part in (front(size), value)])
