"""Completion marks: records of durable generations that have ended, kept in a shard until they are acknowledged.

A durable key belongs to a job, or to a payload of a merged one, whose end is awaited outside Redis
(:func:`~.job.new_key`). The script that ends the generation leaves a mark (``lua/lib/marks.lua``), which stays until
:meth:`Shards.marks` is called to forget it.

A shard has at most one mark per key, the latest. Two shards have marks for one key only after its job was kicked from
the morgue of an old epoch into the present one. The old shard's mark then becomes ``live`` (whatever it was before),
and the new shard's mark is ``live`` until the job ends there. The order in which the marks of two shards are read
therefore does not matter:

* ``done`` comes from one shard only and is final, because no generation comes back to life after it.
* ``live`` read after a younger ``buried`` makes a buried job be watched like a live one, which is harmless.
* ``buried`` is never read after a younger ``live``, unless it was read before that one was written, and then the
  ``live`` is still to come.

One race remains: if one caller discards a morgue record while another kicks it into another shard, the job may stay
live after its ``done``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast

from .job import is_durable

End = Literal["done", "buried", "live"]

#: maximum number of marks in one call
MOST_MARKS: Final = 250
_MARK: Final = struct.Struct("<16sBd")
_ENDS: Final = ("", "done", "buried", "live")


@dataclass(frozen=True, slots=True)
class CompletionMark:
    """Completion mark of a durable generation: done for good, buried, or live again.

    ``stamp`` is Redis's time in µs, and different for each mark of a key.
    """

    key: bytes
    end: End
    stamp: int


def is_mark(key: bytes, value: bytes) -> bool:
    """Return True if an entry of a shard's marks is well-formed."""
    return len(key + value) == _MARK.size and is_durable(key) and 0 < value[0] < len(_ENDS)


def pack_marks(marks: Iterable[CompletionMark]) -> bytes:
    """Return marks in the form that ``marks.lua`` takes."""
    return b"".join(_MARK.pack(mark.key, _ENDS.index(mark.end), mark.stamp) for mark in marks)


def unpack_marks(frame: bytes) -> list[CompletionMark]:
    """Return the marks in a reply of ``marks.lua``."""
    return [CompletionMark(key, cast(End, _ENDS[end]), int(stamp)) for key, end, stamp in _MARK.iter_unpack(frame)]
