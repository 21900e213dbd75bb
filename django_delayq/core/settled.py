"""Marks: what a shard tells of durable generations that have ended, until somebody has taken it down.

A durable key belongs to a job, or to a payload of a merged one, of whose end somebody outside Redis wants to hear
(:func:`~.job.new_key`). The script by which its generation ends leaves a mark (``lua/lib/settled.lua``), which stays
until :meth:`Shards.settled` is told to forget it.

For one key a shard has at most one mark, the latest. Two shards have marks for one key only after its job was kicked
from the morgue of an old epoch into the present one: the old shard then says ``live`` (whatever it said before), and
the new one ``live`` until the job ends there. So whatever the order in which the marks of two shards are taken:
``done`` comes from one shard only and is the last word, because nothing comes back to life behind it; ``live`` taken
after a ``buried`` that is younger has a buried job watched like a live one, which is harmless; and ``buried`` is never
taken after a ``live`` that is younger, unless it was read before that one was written, and then the ``live`` is still
to come. Only who discards a grave at the very moment at which somebody else kicks it into another shard may see the
job live on behind its ``done``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast

from .job import is_durable

End = Literal["done", "buried", "live"]

#: marks of one call
MOST_MARKS: Final = 250
_MARK: Final = struct.Struct("<16sBd")
_ENDS: Final = ("", "done", "buried", "live")


@dataclass(frozen=True, slots=True)
class Mark:
    """How a durable generation ended: done for good, buried, or live again.

    ``stamp`` is Redis's time in µs, and different for each mark of a key.
    """

    key: bytes
    end: End
    stamp: int


def is_mark(key: bytes, value: bytes) -> bool:
    """Whether an entry of a shard's marks can be one."""
    return len(key + value) == _MARK.size and is_durable(key) and 0 < value[0] < len(_ENDS)


def pack_marks(marks: Iterable[Mark]) -> bytes:
    """Marks as ``settled.lua`` takes them."""
    return b"".join(_MARK.pack(mark.key, _ENDS.index(mark.end), mark.stamp) for mark in marks)


def unpack_marks(frame: bytes) -> list[Mark]:
    """Marks as ``settled.lua`` tells them."""
    return [Mark(key, cast(End, _ENDS[end]), int(stamp)) for key, end, stamp in _MARK.iter_unpack(frame)]
