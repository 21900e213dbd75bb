"""The chunks of a run as bytes: what their jobs have in common once, and the rest in columns (``lua/bulk.lua``)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from .errors import InvalidJob
from .frames import CONFLICT, DUE_POLICY, SCORE_POLICY, bad_id, pack_new
from .inputs import check_choice, check_int, check_task_name
from .job import MAX_ID_BYTES, NewJob
from .runs import key_of

_HEAD: Final = struct.Struct("<BBBBBB")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_FRONT: Final = struct.Struct("<BBBBdB")  # of an entry of schedule.lua
_KEEP_RETRIES, _MERGED, _SCORE_IS_NOW = 2, 4, 8
NO_CODE: Final = b"\0\0"
#: of the body, and of a payload
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What the jobs of one chunk have in common: the head of its frame."""

    head: bytes
    merged: bool = False

    @property
    def task(self) -> bytes:
        """Its name."""
        return self.head[_HEAD.size :]

    @classmethod
    def of(cls, task: str, *, on_conflict: str = "ignore", due_policy: str = "replace", score_policy: str = "min",
           reset_retries: bool = True, flags: int, merged: bool = False,
           score_is_now: bool = False) -> Shape:  # fmt: skip
        """As a :class:`~.job.NewJob` says it; ``flags`` is the first byte of the bodies (:func:`~.job.pack_body`).

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
        return cls(_HEAD.pack(CONFLICT[on_conflict], DUE_POLICY[due_policy], SCORE_POLICY[score_policy], marks,
                              check_int("flags", flags, 0, 255), len(name)) + name, merged)  # fmt: skip


#: id, due in Unix ms, body behind its first byte, what merged jobs have behind it
Entry: TypeAlias = tuple[bytes, int, bytes, bytes]


def entry_of(new: NewJob) -> tuple[Shape, Entry]:
    """A job as a run writes it. Its keys must be the same in every try (:func:`with_keys`).

    Raises:
        InvalidJob: see :func:`~.frames.pack_new`; or it has no key or no due time of its own, so that a second try
            would make another job of it; or it is durable, which only the outbox can keep the promise of.
    """
    if new.durable:
        raise InvalidJob("a bulk write takes no durable jobs: their rows are in the database, so schedule them there")
    if len(new.key) != _KEY_BYTES or (new.payload is not None and len(new.payload.key) != _KEY_BYTES):
        raise InvalidJob(f"a bulk write needs the key of job {new.id!r}, and of its payload, 16 bytes each: one made "
                         "by chance would be another in a second try; make it with key_of()")  # fmt: skip
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
    return Shape(head, new.payload is not None), (ident, new.due_ms, body[1:], extra)


def with_keys(run_id: str, new: NewJob) -> NewJob:
    """A job with the keys that a run makes for it, where it has none: the same of the same job in every try."""
    payload = new.payload
    if new.key and (payload is None or payload.key):
        return new
    ident = new.id.encode()
    if payload is None:
        said = b"%d\0%b\0%b" % (new.due_ms or 0, new.options, new.args)
    else:
        said = b"%b\0%b" % (payload.score.encode(), payload.data)
        payload = replace(payload, key=payload.key or key_of(run_id, ident + b"\1" + said))
    return replace(new, key=new.key or key_of(run_id, ident + b"\0" + said), payload=payload)


@dataclass(frozen=True, slots=True)
class Frame:
    """A chunk, ready for any shard.

    In front of every body the script wants the two bytes that stand for the task in its shard. They are no part of what
    a ledger knows a chunk by.
    """

    flag: bytes
    front: bytes
    bodies: list[bytes]
    sizes: list[int]
    tail: bytes

    @classmethod
    def of(cls, shape: Shape, entries: list[Entry]) -> Frame:
        """The chunk of these entries.

        Raises:
            InvalidJob: an id that cannot be one.
        """
        idents = [entry[0] for entry in entries]
        sizes = list(map(len, idents))
        if max(sizes) > MAX_ID_BYTES or not min(sizes) or b"\0" in b"".join(idents):
            raise bad_id(next(one for one in idents if not 0 < len(one) <= MAX_ID_BYTES or b"\0" in one))
        dues = [b"%d" % entry[1] for entry in entries]
        front = (shape.head, _U16.pack(len(entries)), _column(dues, list(map(len, dues)), _U8.pack),
                 _column(idents, sizes, _U8.pack))  # fmt: skip
        extras = [entry[3] for entry in entries]
        tail = _column(extras, list(map(len, extras)), _U32.pack) if shape.merged else b""
        bodies = [entry[2] for entry in entries]
        return cls(shape.head[4:5], b"".join(front), bodies, list(map(len, bodies)), tail)

    def digest(self, origin: bytes = b"") -> bytes:
        """By which a ledger knows it.

        Args:
            origin: what tells it from other chunks of the same bytes: the digest of the chunk of which it is what was
                left, or which time it is that its sender sends such a one.
        """
        made = hashlib.sha1(origin + self.front, usedforsecurity=False)
        made.update(struct.pack(f"<{len(self.sizes)}I", *self.sizes))
        made.update(b"".join(self.bodies))
        made.update(self.tail)
        return made.digest()

    def packed(self, code: bytes) -> bytes:
        """As ``bulk.lua`` reads it; ``code`` is that of the task in the shard, ``NO_CODE`` = it is not known."""
        prefix = self.flag + code
        bodies = _column(self.bodies, self.sizes, lambda size: _U32.pack(size + 3) + prefix)
        return b"".join((code, self.front, bodies, self.tail))


def _column(values: list[bytes], sizes: list[int], front: Callable[[int], bytes]) -> bytes:
    """The values, each behind ``front(its size)``."""
    if min(sizes) == max(sizes):  # the usual case, and five times as fast
        one = front(sizes[0])
        return one + one.join(values)
    return b"".join([part for size, value in zip(sizes, values, strict=True) for part in (front(size), value)])
