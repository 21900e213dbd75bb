"""Values of the model of a queue: content, payloads, leases, live jobs and morgue records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from django_delayq.core.job import (
    DURABLE as DURABLE,
    POSTPONED as POSTPONED,
    PRIORITIES as PRIORITIES,
    STARTED as STARTED,
    STOPPING as STOPPING,
    UNCLEAR as UNCLEAR,
    UNRENEWED as UNRENEWED,
    JobCounts as JobCounts,
    NewJob,
    Payload,
    is_durable as is_durable,
)

Due = tuple[float, float]
#: jobs that a reserve hands out: those that wait for quarantine, all others, or both
Which = Literal["all", "others", "quarantined"]


@dataclass(frozen=True)
class Content:
    """Content of one generation of an id."""

    key: bytes
    task: str
    merged: bool
    args: bytes
    options: bytes
    priority: int
    #: it waits in a lane whenever it waits
    laned: bool = False
    group: str = ""


@dataclass(frozen=True)
class Item:
    """Payload with the moment of its arrival."""

    payload: Payload
    arrival: int

    @property
    def order(self) -> tuple[float, int]:
        return float(self.payload.score), self.arrival


@dataclass
class Lease:
    token: int
    worker: str
    deadline_ms: int


@dataclass
class Live:
    """Live id. ``waiting`` are the payloads of the next attempt, ``running`` those of the present one."""

    content: Content
    due: Due
    failures: int = 0
    reserves: int = 0
    crashes: int = 0
    flags: int = 0
    failed_at_ms: int = 0
    failed_arrival: int = 0
    error: bytes = b""
    lease: Lease | None = None
    gate: tuple[Due, Content] | None = None
    waiting: dict[bytes, Item] = field(default_factory=dict)
    running: dict[bytes, Item] = field(default_factory=dict)
    own_crashes: int = 0
    quarantined: bool = False
    #: of a job whose run could not begin: the reason, since when (ms), the due time before, and the one that it got
    postponed: tuple[str, int, Due, Due] | None = None
    counts: JobCounts = field(default_factory=JobCounts)

    @property
    def waits_in(self) -> int:
        return PRIORITIES + 1 if self.content.laned else self.own_class

    @property
    def own_class(self) -> int:
        return PRIORITIES if self.quarantined else self.content.priority


@dataclass(frozen=True)
class Limits:
    """Part of a reserve call about limits: limited tasks, and the number of granted jobs of a lane."""

    limited: tuple[str, ...] = ()
    lane: tuple[str, int] = ("", 0)
    granted: int = 0


@dataclass(frozen=True)
class Grave:
    content: Content
    due_ms: int
    buried: Due
    failures: int
    reserves: int
    crashes: int
    counts: JobCounts
    outcome: str
    reason: str
    error_class: str
    error: bytes
    items: tuple[Item, ...]


class Burial(Protocol):
    """Cause of a morgue record."""

    @property
    def outcome(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def error_class(self) -> str: ...
    @property
    def error(self) -> bytes: ...


def one_more(counts: JobCounts, name: str) -> JobCounts:
    """Return the counts with one of them increased."""
    return replace(counts, **{name: min(getattr(counts, name) + 1, 65_535)})


def better(old: Item, new: Item, policy: str) -> Item:
    """Return the one of two equal payloads to keep, with the durable key of the other if it has none itself."""
    a, b = float(old.payload.score), float(new.payload.score)
    wins = {"min": b < a, "max": b > a, "first": False, "last": True}[policy]
    stays, goes = (new, old) if wins else (old, new)
    inherits = is_durable(goes.payload.key) and not is_durable(stays.payload.key)
    return replace(stays, payload=replace(stays.payload, key=goes.payload.key)) if inherits else stays


def add(items: dict[bytes, Item], new: Item, policy: str = "min") -> None:
    old = items.get(new.payload.data)
    items[new.payload.data] = new if old is None else better(old, new, policy)


def admitted(items: dict[bytes, Item], new: Item, job: NewJob) -> dict[bytes, Item] | str:
    """Return the waiting payloads after one more arrived under the job's policies; or the outcome of a rejection."""
    united = dict(items)
    add(united, new, job.score_policy)
    if len(united) <= job.max_payloads:
        return united
    if job.payloads == "all":
        return united if new.payload.data in items else "full"
    ordered = sorted(united.values(), key=lambda item: item.order)
    kept = ordered[-job.max_payloads :] if job.payloads == "last" else ordered[: job.max_payloads]
    return {item.payload.data: item for item in kept} if united[new.payload.data] in kept else "ignored"
