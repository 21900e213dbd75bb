"""What the in-memory broker keeps: the records of one shard, as plain values.

A *place* is where something stands in an order of times: ``ms * 1_000_000 + arrival``, so that what falls due in one
millisecond stays in the order in which it was asked for, and one number says both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ..core.job import PRIORITIES, NewJob, Payload, new_key

PER_MS: Final = 1_000_000
#: of waiting jobs: the priorities, and behind them what waits for quarantine
CLASSES: Final = PRIORITIES + 1


def ms_of(place: int) -> int:
    """The milliseconds of a place."""
    return place // PER_MS


@dataclass(frozen=True, slots=True)
class Content:
    """What one generation of an id carries."""

    key: bytes
    task: str
    merged: bool
    args: bytes
    options: bytes
    priority: int

    @classmethod
    def of(cls, new: NewJob) -> Content:
        """That of a job that is asked for."""
        return cls(new.key or new_key(), new.task, new.payload is not None, new.args, new.options, new.priority)


@dataclass(frozen=True, slots=True)
class Item:
    """A payload with its place in the order of an id's payloads."""

    payload: Payload
    order: tuple[float, int]


@dataclass(slots=True)
class Lease:
    """Who holds a job, and until when."""

    token: int
    worker: str
    deadline_ms: int


@dataclass(slots=True)
class Due:
    """When content is due, and when that was decided (both on the broker's clock)."""

    place: int
    asked_ms: int

    @property
    def ms(self) -> int:
        """Unix ms."""
        return ms_of(self.place)


@dataclass(slots=True)
class Gate:
    """Content behind a run that goes on; its payloads are the waiting ones of the id."""

    due: Due
    content: Content


@dataclass(frozen=True, slots=True)
class Postponed:
    """Why and since when the run of a job could not begin, the due time before that, and the one that it has now."""

    reason: str
    since_ms: int
    due: Due
    to: Due


@dataclass(slots=True)
class Live:
    """A live id. ``running`` payloads are those of the run that goes on, ``waiting`` all others."""

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
    #: the run that goes on could not take all payloads
    left: bool = False
    own_crashes: int = 0
    quarantined: bool = False
    postponed: Postponed | None = None

    @property
    def waits_in(self) -> int:
        """The class in which it waits."""
        return PRIORITIES if self.quarantined else self.content.priority

    def forget_failures(self) -> None:
        """As if it had never been run."""
        self.failures = self.reserves = self.crashes = self.own_crashes = self.flags = self.failed_at = 0
        self.quarantined = False
        self.error, self.postponed = b"", None


@dataclass(frozen=True, slots=True)
class Grave:
    """A record of the morgue."""

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
    """What somebody ordered for the shard."""

    flags: int = 0
    max_length: int = 0
    morgue_max: int = 0
    morgue_ttl_ms: int = 0
