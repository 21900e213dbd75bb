"""Replies of a shard to workers and dispatchers: a batch of reserved jobs, and the state of the shard."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .job import Job
from .records.frames import named, unpack_fields
from .records.reserve_frames import BrokenJob

#: jobs that a reserve returns: those that wait for quarantine, all others, or both
Which: TypeAlias = Literal["all", "others", "quarantined"]


@dataclass(slots=True)
class Batch:
    """Result of a reserve.

    ``next_due_ms`` is the time until the shard's next due job: None = no job waits. ``expired`` counts jobs that were
    removed because they came too late to be of use. ``quarantine_due_ms`` is the time until the first job that waits
    for quarantine is due, below 0 when it is overdue; None if there is none, or if this call itself returns such jobs.
    ``sent_at`` (``time.monotonic()``) is when the request was sent, for the last time if it was sent again: the leases
    began no earlier. ``moved`` jobs were parked, since their task has no free permit; ``parked`` is the number of
    parked jobs for each allowance of the call.
    """

    jobs: list[Job] = field(default_factory=list)
    broken: list[BrokenJob] = field(default_factory=list)
    next_due_ms: float | None = None
    now_ms: float = 0
    expired: int = 0
    quarantine_due_ms: float | None = None
    sent_at: float = field(default_factory=time.monotonic, compare=False)
    moved: int = 0
    parked: tuple[int, ...] = ()

    @property
    def taken(self) -> int:
        """Number of jobs that left the shard's due set, returned or not."""
        return len(self.jobs) + len(self.broken) + self.expired + self.moved


@dataclass(frozen=True, slots=True)
class Tick:
    """Reply to a dispatcher's call for one shard (`tick.lua`). All times are ms on Redis's clock."""

    now_ms: float
    next_due_ms: float | None
    next_deadline_ms: float | None
    expired: bool
    held_back: bool
    #: random id, set by the first tick of the shard: a changed one means that Redis lost the shard; b"" of a tombstone
    born: bytes = b""
    #: run id of Redis, and id of its replication history, which changes when a replica takes over
    run_id: str = ""
    #: completion marks that wait to be acknowledged (:mod:`.marks`)
    marks: int = 0
    #: attempts of jobs that were acked before they began, and whose end is not stored yet
    begun: int = 0
    #: number of entries, and the score of the newest (µs; 0 if there is none)
    failed: tuple[int, int] = (0, 0)
    morgue: tuple[int, int] = (0, 0)
    #: jobs wait for quarantine or are parked; ``next_due_ms`` leaves them out
    set_aside: bool = False


def unpack_tick(frame: bytes) -> tuple[Tick, dict[str, Any]]:
    """Return the reply of ``tick.lua``, and the rules of the shard."""
    reply = unpack_fields(frame)
    due_us = reply.get("next_due")
    tick = Tick(
        reply["now"] / 1000,
        None if due_us is None else due_us // 1000,
        reply.get("deadline"),
        reply["expired"],
        reply["held_back"],
        reply["born"],
        reply["run_id"].decode(),
        reply["marks"],
        reply["begun"],
        tuple(reply["failed"]),
        tuple(reply["morgue"]),
        reply["set_aside"],
    )
    return tick, named(reply["rules"])
