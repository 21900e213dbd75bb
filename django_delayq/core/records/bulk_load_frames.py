"""Byte format of the chunks of a bulk load: the common part once, the rest in columns (``lua/bulk.lua``).

The keys of jobs must be the same in every try. Those of plain jobs are derived from the digest of their chunk and their
place in it: the same rows make the same chunks anyway, and a hash per job would cost as much as all the rest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeAlias

from ..errors import InvalidJob
from ..inputs import check_choice, check_int, check_task_name
from ..job import KEY_BYTES, MAX_ID_BYTES, NewJob, derived_key
from .frames import (
    CHUNK,
    CONFLICT,
    DUE_POLICY,
    SCORE_POLICY,
    bad_id,
    fields_of,
    pack,
)

#: marks of the jobs of a chunk
KEEP_RETRIES, MERGED, SCORE_IS_NOW = 2, 4, 8
_HEAD: Final = struct.Struct("<BBBBBB")
_U8: Final = struct.Struct("<B")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
#: fields of an entry of ``schedule.lua`` in the extra column, in this order
_OF_MERGED: Final = ("digest", "payload_policy", "max_payloads", "record")
NO_CODE: Final = b"\0\0"
#: suffixes that distinguish the keys of one chunk
_PLACES: Final = tuple(struct.pack(">I", place) for place in range(CHUNK))


@dataclass(frozen=True, slots=True)
class Shape:
    """Common part of the jobs of one chunk: the head of its frame."""

    head: bytes
    merged: bool = False
    #: True if bodies begin with the keys of their jobs; otherwise the keys are derived from the chunk
    keyed: bool = True

    @property
    def task(self) -> bytes:
        """Name of the task."""
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
        """Return the shape for fields of a :class:`~..job.NewJob`.

        ``flags`` is the first byte of the bodies (:func:`~.frames.pack_body`).

        Raises:
            InvalidJob: an invalid value, or payloads are to be merged and there is none.
        """
        check_choice("on_conflict", on_conflict, tuple(CONFLICT))
        check_choice("due_policy", due_policy, tuple(DUE_POLICY))
        check_choice("score_policy", score_policy, tuple(SCORE_POLICY))
        if on_conflict == "merge" and not merged:
            raise InvalidJob("only jobs with a payload can be merged; give one, or use on_conflict='replace'")
        marks = (0 if reset_retries else KEEP_RETRIES) | (MERGED if merged else 0)
        marks |= SCORE_IS_NOW if score_is_now else 0
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


#: id, due in Unix ms, body after its first byte, the part of merged jobs after the body
LoadEntry: TypeAlias = tuple[bytes, int, bytes, bytes]


def entry_of(new: NewJob) -> tuple[Shape, LoadEntry]:
    """Return a job as a bulk load writes it. A plain one without a key gets one in its chunk.

    Raises:
        InvalidJob: see :func:`~.frames.pack_new`. Also if it has no due time of its own, or is merged and has
            no keys (:func:`with_keys`), so that a second try would make another job of it; or if it is durable, which
            only the outbox supports.
    """
    if new.durable:
        raise InvalidJob("a bulk load takes no durable jobs: their rows are in the database, so schedule them there")
    keyed = bool(new.key or new.payload)
    if keyed and not len(new.key) == KEY_BYTES == len(new.payload.key if new.payload else new.key):
        raise InvalidJob(
            f"a bulk load needs the key of job {new.id!r}, and of its payload, 16 bytes each: a random key would "
            "differ in a second try; make it with key_of()"
        )
    if new.due_ms is None:
        raise InvalidJob(
            "a bulk load needs the moment when a job is due, because a delay would end at another moment in a second "
            "try; give due_ms"
        )
    fields, merged = fields_of(new), new.payload is not None
    body: bytes = fields["body"]
    shape = Shape.of(
        new.task,
        on_conflict=new.on_conflict,
        due_policy=new.due_policy,
        score_policy=new.score_policy,
        reset_retries=new.reset_retries,
        flags=body[0],
        merged=merged,
        score_is_now=fields.get("score_is_now", False),
        keyed=keyed,
    )
    extra = pack([fields[name] for name in _OF_MERGED]) if merged else b""
    return shape, (fields["id"], new.due_ms, body[1:] if keyed else body[1 + KEY_BYTES :], extra)


def key_of(load_id: str, ident: bytes) -> bytes:
    """Return the key of the generation that a bulk load makes of an id: the same in every try.

    If a load may give an id several generations (rows of one id, payloads of one job), ``ident`` has to be more than
    the id, otherwise they are taken for one.
    """
    return derived_key(hashlib.blake2b(ident, digest_size=KEY_BYTES, key=_salt(load_id)).digest())


@lru_cache(maxsize=64)
def _salt(load_id: str) -> bytes:
    return hashlib.sha256(load_id.encode()).digest()


def with_keys(load_id: str, new: NewJob) -> NewJob:
    """Return a merged job with keys derived for this bulk load where it has none: the same keys in every try.

    Payloads are distinguished by their content, so that a payload given again in another chunk is recognised. A plain
    job is returned unchanged, because its chunk gives it a key.
    """
    payload = new.payload
    if payload is None or (new.key and payload.key):
        return new
    ident = new.id.encode()
    content = b"%b\0%d\0%b\0%b" % (new.task.encode(), new.priority, payload.score.encode(), payload.data)
    payload = replace(payload, key=payload.key or key_of(load_id, ident + b"\1" + content))
    return replace(new, key=new.key or key_of(load_id, ident + b"\0" + content), payload=payload)


@dataclass(slots=True)
class Rows:
    """Jobs of one shape in columns. Within a chunk, no id occurs twice."""

    ids: list[bytes] = field(default_factory=list)
    #: Unix ms, as texts
    dues: list[bytes] = field(default_factory=list)
    #: bodies after their first byte
    bodies: list[bytes] = field(default_factory=list)
    #: parts of merged jobs after the body
    extras: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> int:
        """Number of bytes of the columns that differ from job to job, without ids."""
        return sum(map(len, self.bodies)) + sum(map(len, self.extras))

    @classmethod
    def of(cls, entries: Sequence[LoadEntry]) -> Rows:
        """Return the rows of entries: (id, due time, body, extra) becomes four columns."""
        ids, dues, bodies, extras = map(list, zip(*entries, strict=True)) if entries else ([], [], [], [])
        return cls(ids, [b"%d" % due for due in dues], bodies, extras if any(extras) else [])

    def entries(self) -> Iterator[LoadEntry]:
        """Yield the rows as entries: (id, due time, body, extra)."""
        extras = self.extras or [b""] * len(self)
        for ident, due, body, extra in zip(self.ids, self.dues, self.bodies, extras, strict=True):
            yield ident, int(due), body, extra

    def pick(self, places: Sequence[int]) -> Rows:
        """Return the rows at these places."""
        if not places:
            return Rows()
        pick: Callable[[list[bytes]], Sequence[bytes]] = (
            itemgetter(*places) if len(places) > 1 else (lambda column: (column[places[0]],))
        )
        return Rows(*(list(pick(column)) if column else [] for column in self._columns()))

    def cut(self, start: int, stop: int) -> Rows:
        """Return the rows from ``start`` to before ``stop``."""
        return Rows(*(column[start:stop] for column in self._columns()))

    def extend(self, more: Rows) -> None:
        """Append the rows of another object, column by column."""
        for column, behind in zip(self._columns(), more._columns(), strict=True):
            column += behind

    def keyed(self, load_id: str, digest: bytes) -> Rows:
        """Return the rows with keys derived from the digest of their chunk; with the first bit off: none is durable."""
        hashed = hashlib.blake2b(load_id.encode() + b"\0" + digest, digest_size=KEY_BYTES - 4).digest()
        base = bytes((hashed[0] & 0x7F,)) + hashed[1:]
        places = _PLACES[: len(self)]
        bodies = [base + place + body for place, body in zip(places, self.bodies, strict=True)]
        return Rows(self.ids, self.dues, bodies, self.extras)

    def _columns(self) -> tuple[list[bytes], ...]:
        return self.ids, self.dues, self.bodies, self.extras


@dataclass(frozen=True, slots=True)
class Frame:
    """Chunk in a form that any shard accepts.

    The script expects two bytes in front of every body that stand for the task in its shard. They are not part of the
    digest by which a ledger identifies a chunk; nor are the keys derived from the chunk.
    """

    flag: bytes
    front: bytes
    tail: bytes

    @classmethod
    def of(cls, shape: Shape, rows: Rows) -> Frame:
        """Return the chunk of these rows.

        Raises:
            InvalidJob: an invalid id.
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
        """Return the digest by which a ledger identifies the chunk.

        Args:
            bodies: of its jobs; without keys, if these are derived from the chunk.
            origin: distinguishes it from other chunks of the same bytes: the digest of the chunk of which it is the
                remainder, or the number of times its sender has sent such a chunk.
        """
        hashed = hashlib.sha1(origin + self.front, usedforsecurity=False)
        hashed.update(struct.pack(f"<{len(bodies)}I", *map(len, bodies)))
        hashed.update(b"".join(bodies))
        hashed.update(self.tail)
        return hashed.digest()

    def packed(self, bodies: list[bytes], code: bytes) -> bytes:
        """Return the chunk in the form that ``bulk.lua`` reads.

        Args:
            bodies: of its jobs, with their keys.
            code: that of the task in the shard, ``NO_CODE`` = unknown.
        """
        prefix = self.flag + code
        column = _column(bodies, list(map(len, bodies)), lambda size: _U32.pack(size + 3) + prefix)
        return b"".join((code, self.front, column, self.tail))


def _column(values: list[bytes], sizes: list[int], front: Callable[[int], bytes]) -> bytes:
    """Return the values, each after ``front(its size)``."""
    if min(sizes) == max(sizes):  # the usual case, and five times as fast
        one = front(sizes[0])
        return one + one.join(values)
    return b"".join([part for size, value in zip(sizes, values, strict=True) for part in (front(size), value)])
