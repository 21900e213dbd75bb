"""Reserve of the first job that matches: by a text, its task or the beginning of its id."""

from __future__ import annotations

import base64
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from . import codec
from .errors import InvalidJob
from .inputs import short
from .operations.job_filter import JobFilter
from .outcomes import Batch
from .records.reserve_frames import start_flag
from .redis.pool import last_sent

if TYPE_CHECKING:
    from .queue import Queue

#: length of a lease if neither its holder nor the job names one
USUAL_TTR_MS: Final = 60_000
#: maximum number of jobs that one call examines; other calls wait meanwhile
EXAMINED_AT_ONCE: Final = 500
_CURSOR: Final = re.compile(rb"([0-9]{1,9}):((?:10|[1-9])?):([0-9]{0,20}):(.{0,255})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Position:
    """Position in a queue behind a job that was examined."""

    shard: int
    priority: bytes = b""
    score: bytes = b""
    member: bytes = b""

    def __str__(self) -> str:
        """Return the cursor, which :meth:`of` reads."""
        raw = b"%d:%b:%b:%b" % (self.shard, self.priority, self.score, self.member)
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    @classmethod
    def of(cls, cursor: str) -> Position:
        """Return the position of a cursor.

        Raises:
            InvalidJob: the text is not a cursor.
        """
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            match = _CURSOR.fullmatch(raw)
            if match is None:
                raise ValueError(cursor)
        except ValueError:
            raise InvalidJob(f"{short(cursor)} is not a cursor of a reserve; start again without one") from None
        shard, priority, score, member = match.groups()
        return cls(int(shard), priority, score, member)


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of the job that is wanted, and its lease; see :meth:`Shards.reserve`.

    Attributes:
        ttr_ms: length of the lease; None = the job's own, else :data:`USUAL_TTR_MS`.
        early: take the job also before it is due.
        buried: take the job also from the morgue, if its id is named.
    """

    worker: str
    ttr_ms: int | None
    started: bool = False
    early: bool = False
    buried: bool = False


def check_match(where: JobFilter) -> JobFilter:
    """Return a filter by which a job can be reserved.

    Raises:
        InvalidJob: it has no condition, or one that is not text, task or prefix.
    """
    if where.is_empty:
        raise InvalidJob("reserve which job? Give text, task or prefix, or use reserve()")
    if where != JobFilter(text=where.text, task=where.task, prefix=where.prefix):
        raise InvalidJob("a job is reserved by text, task and prefix only; leave the other conditions out")
    return where


def reserve_match(
    queue: Queue,
    where: JobFilter,
    holder: Holder,
    after: Position | None = None,
    *,
    at_once: int = EXAMINED_AT_ONCE,
) -> Iterator[tuple[Batch, Position | None]]:
    """Yield the replies of calls which examine at most ``at_once`` jobs each, until all due jobs were examined.

    Match and reserve are one atomic step. A batch has one job or none. The shards are examined one after the other; in
    each of them the most urgent class first, by due time.

    Args:
        where: a filter from :func:`check_match`.
        holder: the holder, and whether jobs that are not due count.
        after: position behind which to begin; None = at the beginning.
        at_once: most jobs that a call examines: a few ms, for which all other calls have to wait.

    Yields:
        A batch, and the position behind the jobs examined so far; None at the end.

    Raises:
        InvalidJob: a text, where arguments are not stored as text.
    """
    if where.text and queue.kind == "python" and codec.chosen is not None:
        raise InvalidJob(
            f"a reserve finds a text in stored bytes, and scripts cannot read those of queue {queue.name!r}, which are "
            f"of codec {codec.chosen.name!r}; leave text out, or search for the job and reserve it by its id"
        )
    numbers = list(queue.numbers)
    if after is not None and after.shard in numbers:
        numbers = numbers[numbers.index(after.shard) :]
    for place, number in enumerate(numbers):
        position: Position | None = after if after is not None and after.shard == number else Position(number)
        while position is not None:
            batch, behind = _call(queue, where, holder, position, at_once)
            if not batch.taken or batch.jobs:  # else the job was removed because it came too late: the next one
                position = behind
            more = position or (Position(numbers[place + 1]) if place + 1 < len(numbers) else None)
            yield batch, more


def _call(
    queue: Queue, where: JobFilter, holder: Holder, after: Position, at_once: int
) -> tuple[Batch, Position | None]:
    began = time.monotonic()
    frame, _examined, *rest = queue.call(
        "reserve_match",
        after.shard,
        holder.worker.encode(),
        holder.ttr_ms or USUAL_TTR_MS,
        start_flag(started=holder.started, prefer_own_ttr=holder.ttr_ms is None),
        b"1" if holder.early else b"0",
        _pack(where.needles) if where.text else b"",
        where.task.encode(),
        where.prefix.encode(),
        at_once,
        after.priority,
        after.score,
        after.member,
    )
    batch = queue.batch_of(frame, after.shard, holder.worker, last_sent(began))
    return batch, Position(after.shard, b"%d" % rest[0], rest[1], rest[2]) if rest else None


def _pack(texts: tuple[str, ...]) -> bytes:
    return b"".join(struct.pack("<H", len(text.encode())) + text.encode() for text in texts)
