"""Reply of ``lua/columns.lua``: many jobs in packed form."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from .fields import unpack_names

#: doubles are exact up to this value
FARTHEST: Final = 2.0**53
_HEAD: Final = struct.Struct("<BII")
_MORE, _WITH_STATES, _WITH_COUNTS = 1, 2, 4


@dataclass(slots=True)
class ColumnReply:
    """Reply of ``columns.lua``: ids and scores in packed form, the rest only if it was requested.

    ``states`` and ``counts`` are empty if no job of the shard has one.
    """

    more: bool
    looked_at: int
    n: int
    scores: bytes
    lengths: bytes
    ids: bytes
    tasks: Mapping[int, str]
    bodies: Sequence[bytes] = ()
    states: Sequence[bytes] = ()
    counts: Sequence[int] = ()

    def members(self) -> list[bytes]:
        """Return the ids; of the morgue with their keys."""
        return split(self.ids, self.lengths)

    def numbers(self) -> tuple[float, ...]:
        """Return the scores of the jobs: due time in µs, end of the lease in ms, or that of the morgue's index."""
        return struct.unpack(f"<{self.n}d", self.scores)

    def last(self) -> tuple[bytes, bytes]:
        """Return score and member after which the next page begins."""
        (score,) = struct.unpack("<d", self.scores[-8:])
        size = int.from_bytes(self.lengths[-4:], "little")
        return text_of(score), self.ids[len(self.ids) - size :]


def split(joined: bytes, lengths: bytes) -> list[bytes]:
    """Return byte strings that were joined; their lengths are packed as ``<I4``."""
    sizes = struct.unpack(f"<{len(lengths) // 4}I", lengths)
    return [joined[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]


def text_of(score: float | None) -> bytes:
    """Return a score in the form that Redis reads; empty for None."""
    if score is None:
        return b""
    exact = abs(score) < FARTHEST and score == int(score)
    return b"%d" % score if exact else repr(score).encode()


def unpack_reply(frame: bytes, *, with_bodies: bool) -> ColumnReply:
    """Return the reply split into parts, as far as that needs no work per job."""
    flags, looked_at, n = _HEAD.unpack_from(frame)
    more = bool(flags & _MORE)
    tasks, at = unpack_names(frame, _HEAD.size)
    scores = frame[at : at + 8 * n]
    at += 8 * n
    lengths = frame[at : at + 4 * n]
    at += 4 * n
    if not with_bodies:
        return ColumnReply(more, looked_at, n, scores, lengths, frame[at:], tasks)
    end = at + sum(struct.unpack(f"<{n}I", lengths))
    reply = ColumnReply(more, looked_at, n, scores, lengths, frame[at:end], tasks)
    reply.bodies, at = _unpack_texts(frame, end, n)
    if flags & _WITH_STATES:
        reply.states, at = _unpack_texts(frame, at, n)
    if flags & _WITH_COUNTS:
        reply.counts = struct.unpack_from(f"<{n}I", frame, at)
    return reply


def _unpack_texts(frame: bytes, at: int, n: int) -> tuple[list[bytes], int]:
    ends = list(accumulate(struct.unpack_from(f"<{n}I", frame, at), initial=at + 4 * n))
    return [frame[a:b] for a, b in pairwise(ends)], ends[-1]
