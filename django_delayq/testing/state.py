"""Records of one shard of the in-memory broker, as plain values.

A *place* is a position in a time order: ``ms * 1_000_000 + arrival``. Jobs due in the same millisecond thus keep the
order in which they were scheduled, and one number holds both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..core.job import PRIORITIES, NewJob, Payload, new_key

PER_MS: Final = 1_000_000
#: classes of waiting jobs: the priorities, then jobs that wait for quarantine
CLASSES: Final = PRIORITIES + 1


def ms_of(place: int) -> int:
    """Return the milliseconds of a place."""
    return place // PER_MS


@dataclass(frozen=True, slots=True)
class Content:
    """Content of one generation of an id."""

    key: bytes
    task: str
    merged: bool
    args: bytes
    options: bytes
    priority: int

    @classmethod
    def of(cls, new: NewJob) -> Content:
        """Return the content of a new job."""
        return cls(new.key or new_key(), new.task, new.payload is not None, new.args, new.options, new.priority)


@dataclass(frozen=True, slots=True)
class Item:
    """Payload with its place in the order of an id's payloads."""

    payload: Payload
    order: tuple[float, int]


@dataclass(slots=True)
class Lease:
    """Holder of a job, and the end of its lease."""

    token: int
    worker: str
    deadline_ms: int


@dataclass(slots=True)
class Due:
    """Due time of content, and the time at which it was set (both on the broker's clock)."""

    place: int
    asked_ms: int

    @property
    def ms(self) -> int:
        """Unix ms."""
        return ms_of(self.place)


@dataclass(slots=True)
class Gate:
    """Content gated behind a running attempt; its payloads are the waiting ones of the id."""

    due: Due
    content: Content


@dataclass(frozen=True, slots=True)
class Postponed:
    """Reason and start of a postponement, the due time before it, and the present one."""

    reason: str
    since_ms: int
    due: Due
    to: Due


@dataclass(slots=True)
class Live:
    """Live job. ``running`` payloads are those of the running attempt, ``waiting`` all others."""

    content: Content
    due: Due
    failures: int = 0
    reserves: int = 0
    crashes: int = 0
    flags: int = 0
    failed_at: int = 0  # a place
    error: bytes = b""
    lease: Lease | None = None
    gate: Gate | None = None
    waiting: dict[bytes, Item] = field(default_factory=dict)
    running: dict[bytes, Item] = field(default_factory=dict)
    #: the running attempt could not take all payloads
    left: bool = False
    own_crashes: int = 0
    quarantined: bool = False
    postponed: Postponed | None = None

    @property
    def waits_in(self) -> int:
        """Class in which the job waits."""
        return PRIORITIES if self.quarantined else self.content.priority

    def forget_failures(self) -> None:
        """Reset the job to the state before its first attempt."""
        self.failures = self.reserves = self.crashes = self.own_crashes = self.flags = self.failed_at = 0
        self.quarantined = False
        self.error, self.postponed = b"", None


@dataclass(frozen=True, slots=True)
class Grave:
    """Record of the morgue."""

    content: Content
    due_ms: int
    buried: int  # a place
    failures: int
    reserves: int
    crashes: int
    outcome: str
    reason: str
    error_class: str
    error: bytes
    items: tuple[Item, ...]


@dataclass(slots=True)
class Rules:
    """Limits and flags set for the shard."""

    flags: int = 0
    max_length: int = 0
    morgue_max: int = 0
    morgue_ttl_ms: int = 0
