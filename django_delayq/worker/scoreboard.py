"""Scoreboard: shared memory where a child records its running jobs, readable by the supervisor after a ``kill -9``.

Layout: a header (stamp f64, ready since f64, leaving u8, requested end u8, call u8; at 24 overdue at f64), then of each
slot:

flag u8 | queue length u8 | id length u8 | others u16 | shard u32 | token u64 | started f64 | limit f64 | queue | id |

and at its end the digests (8 bytes each) of the other ids of a batch, and the stack (u16 length | text) of a run whose
time limit was enforced. A batch has one queue, one shard and one token.

The flag is cleared first and set last, so a set flag always has a complete record behind it, whenever the child dies.
Writing a record takes a few stores into a mapped page: no system call, no lock. Times are CLOCK_MONOTONIC, which all
processes share.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from .attempt import NEVER, Attempt

if TYPE_CHECKING:
    from ..core.job import Job

IDLE: Final = 0
RUNNING: Final = 1
#: the handler still runs although its time limit was enforced
TIMED_OUT: Final = 2
#: the handler returned. If the process dies before the ack, this attempt is still the likeliest cause: a signal that a
#: handler sends to its own process may arrive after the handler has returned
ENDED: Final = 3

_HEADER_BYTES: Final = 64
_RECORD: Final = Struct("<BBHIQdd")  # after the flag byte
_TEXT_AT: Final = 1 + _RECORD.size
_LIMIT_AT: Final = _TEXT_AT - 8
_OTHERS_AT: Final = 640  # room for the flag, the numbers, a queue name and an id of up to 255 bytes each, and a reserve
_DIGEST_BYTES: Final = 8
_MOST_OTHERS: Final = 250
_STACK_AT: Final = _OTHERS_AT + _MOST_OTHERS * _DIGEST_BYTES
_STACK_LENGTH: Final = Struct("<H")
_STACK_BYTES: Final = 3000
_RECORD_BYTES: Final = _STACK_AT + _STACK_LENGTH.size + _STACK_BYTES
_STAMP_AT: Final = 0
_READY_AT: Final = 8
_LEAVING_AT: Final = 16
_END_AT: Final = 17
_CALL_AT: Final = 18
_OVERDUE_AT: Final = 24
_DOUBLE: Final = Struct("<d")
#: ends that an operator requested from a child through Redis and its supervisor has to carry out, by byte value
_ENDS: Final = ("", "drain", "stop")


def digest_of(ident: str) -> bytes:
    """Return the digest that stands for an id where there is no room for the id itself."""
    return hashlib.blake2b(ident.encode(), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """Record of what one slot was running."""

    queue: str
    shard: int
    id: str
    token: int
    started: float
    #: when its time limit ends; infinite without one
    limit_at: float
    timed_out: bool
    #: the handler returned; its outcome may or may not be stored
    ended: bool = False
    #: digests of the other ids of a batch
    others: tuple[bytes, ...] = ()
    #: what it ran when its time limit was enforced
    stack: str = ""

    @property
    def places(self) -> Iterator[tuple[str, int, bytes]]:
        """Keys that identify the held jobs (see :func:`place_of`)."""
        for digest in (digest_of(self.id), *self.others):
            yield self.queue, self.token, digest


def place_of(job: Job) -> tuple[str, int, bytes]:
    """Return the key that identifies a held job on scoreboards."""
    return job.queue, job.token, digest_of(job.id)


class Scoreboard:
    """Scoreboard of one child. The supervisor creates it; the child opens it by its file descriptor."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, _HEADER_BYTES + slots * _RECORD_BYTES)
        self._starts = [_HEADER_BYTES + slot * _RECORD_BYTES for slot in range(slots)]

    @classmethod
    def create(cls, slots: int) -> Scoreboard:
        """Return a new scoreboard with all slots idle, in memory that only its file descriptor refers to."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("delayq-board")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, _HEADER_BYTES + slots * _RECORD_BYTES)
        return cls(fd, slots)

    def close(self) -> None:
        """Unmap the memory. The other process's mapping remains."""
        self._map.close()
        os.close(self.fd)

    # --- the child's side

    def mark(self, attempt: Attempt, parts: Sequence[Attempt] = ()) -> None:
        """Record that slot ``attempt.slot`` begins ``attempt``.

        Args:
            attempt: the attempt.
            parts: the attempts of a batch, that of its first job first; empty for a single job.
        """
        job, shared, start = attempt.job, self._map, self._starts[attempt.slot]
        queue, job_id = job.queue.encode(), job.id.encode()
        shared[start] = IDLE
        _RECORD.pack_into(
            shared,
            start + 1,
            len(queue),
            len(job_id),
            len(parts) - 1 if parts else 0,
            job.shard,
            job.token,
            attempt.started,
            NEVER,
        )
        if parts:
            digests = b"".join([digest_of(part.job.id) for part in parts[1:]])
            shared[start + _OTHERS_AT : start + _OTHERS_AT + len(digests)] = digests
        text = start + _TEXT_AT
        middle = text + len(queue)
        shared[text:middle] = queue
        shared[middle : middle + len(job_id)] = job_id
        shared[start] = RUNNING

    def limit(self, slot: int, limit_at: float) -> None:
        """Record the time limit of the attempt in ``slot``."""
        _DOUBLE.pack_into(self._map, self._starts[slot] + _LIMIT_AT, limit_at)

    def mark_timed_out(self, slot: int, stack: str = "") -> None:
        """Record that the attempt in ``slot`` still runs after its time limit was enforced, when it did this."""
        text, start = stack.encode(errors="replace")[-_STACK_BYTES:], self._starts[slot]
        _STACK_LENGTH.pack_into(self._map, start + _STACK_AT, len(text))
        at = start + _STACK_AT + _STACK_LENGTH.size
        self._map[at : at + len(text)] = text
        self._map[start] = TIMED_OUT

    def clear(self, slot: int) -> None:
        """Record that the attempt in ``slot`` ended. Its record stays until the next attempt begins."""
        self._map[self._starts[slot]] = ENDED

    def stamp(self, now: float) -> None:
        """Record that the child is alive."""
        _DOUBLE.pack_into(self._map, _STAMP_AT, now)

    def set_ready(self, now: float) -> None:
        """Record that the child serves its queues."""
        _DOUBLE.pack_into(self._map, _READY_AT, now)

    def set_leaving(self) -> None:
        """Record that the child ends on purpose, so that the jobs it still runs are not blamed for its end."""
        self._map[_LEAVING_AT] = 1

    def request_end(self, requested_end: str) -> None:
        """Request "drain" or "stop" of the whole program, on behalf of an operator. "stop" takes precedence."""
        self._map[_END_AT] = max(self._map[_END_AT], _ENDS.index(requested_end))

    def report_overdue(self, now: float) -> None:
        """Record that quarantined jobs are due that this child cannot take."""
        _DOUBLE.pack_into(self._map, _OVERDUE_AT, now)

    def take_call(self) -> bool:
        """Return True, once, if the supervisor called this child."""
        called, self._map[_CALL_AT] = bool(self._map[_CALL_AT]), 0
        return called

    # --- the supervisor's side

    def _time(self, at: int) -> float:
        return float(_DOUBLE.unpack_from(self._map, at)[0])

    @property
    def stamped(self) -> float:
        """Time when the child last refreshed its stamp (0 = never)."""
        return self._time(_STAMP_AT)

    @property
    def ready(self) -> float:
        """Time when the child began to serve its queues (0 = not yet)."""
        return self._time(_READY_AT)

    @property
    def leaving(self) -> bool:
        """Return True if the child ends on purpose."""
        return bool(self._map[_LEAVING_AT])

    @property
    def requested_end(self) -> str:
        """The end that was requested from the child for the whole program: "", "drain" or "stop"."""
        return _ENDS[self._map[_END_AT]]

    @property
    def overdue_at(self) -> float:
        """Time when the child last found due quarantined jobs that it cannot take (0 = never)."""
        return self._time(_OVERDUE_AT)

    @property
    def busy(self) -> bool:
        """Return True if a slot runs a job."""
        return any(self._map[start] in (RUNNING, TIMED_OUT) for start in self._starts)

    @property
    def called(self) -> bool:
        """Return True if the child has not taken the supervisor's call yet."""
        return bool(self._map[_CALL_AT])

    def call(self) -> None:
        """Make a quarantine child look for jobs at once."""
        self._map[_CALL_AT] = 1

    def records(self) -> list[SlotRecord]:
        """Return what each slot runs or, if it has found no other work since, ran last."""
        records = []
        for start in self._starts:
            flag = self._map[start]
            if flag == IDLE:
                continue
            queue, job_id, count, shard, token, started, limit_at = _RECORD.unpack_from(self._map, start + 1)
            text = start + _TEXT_AT
            name = self._map[text : text + queue].decode(errors="replace")
            ident = self._map[text + queue : text + queue + job_id].decode(errors="replace")
            others = tuple(
                self._map[at : at + _DIGEST_BYTES]
                for at in range(start + _OTHERS_AT, start + _OTHERS_AT + count * _DIGEST_BYTES, _DIGEST_BYTES)
            )
            timed_out = flag == TIMED_OUT
            stack = self._stack(start) if timed_out else ""
            records.append(
                SlotRecord(name, shard, ident, token, started, limit_at, timed_out, flag == ENDED, others, stack)
            )
        return records

    def _stack(self, start: int) -> str:
        (length,) = _STACK_LENGTH.unpack_from(self._map, start + _STACK_AT)
        at = start + _STACK_AT + _STACK_LENGTH.size
        return self._map[at : at + length].decode(errors="replace")
