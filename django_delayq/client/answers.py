"""Typed responses of the server. Unknown members are ignored."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, TypeVar

T = TypeVar("T")


def moment(text: str | None) -> datetime | None:
    """Return a JSON time as an aware datetime; None stays None."""
    return None if text is None else datetime.fromisoformat(text)


def body_of(data: Mapping[str, Any]) -> bytes | None:
    """Return the raw bytes of a job of a pull queue; None for other jobs."""
    if "body_base64" in data:
        return base64.b64decode(data["body_base64"])
    return data["body"].encode() if "body" in data else None


def made(kind: type[T], data: Mapping[str, Any], /, **given: Any) -> T:
    """Return an instance of a dataclass; a member with a ``read`` in its metadata is converted with it."""
    for one in fields(kind):  # type: ignore[arg-type]
        if one.init and one.name not in given and one.name in data:
            reader: Callable[[Any], Any] | None = one.metadata.get("read")
            given[one.name] = data[one.name] if reader is None else reader(data[one.name])
    return kind(**given)


_MOMENT: Final = {"read": moment}
#: results of many jobs that their text shows
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Stored job. ``outcome``: created, merged, replaced, ignored, gated, outbox, or skipped (no id)."""

    id: str | None
    queue: str
    outcome: str
    due: datetime | None = field(default=None, metadata=_MOMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Outcomes of many jobs: (id, outcome) of each in the order of the request, and counts by outcome."""

    results: list[tuple[str | None, str]]
    counts: dict[str, int]

    def __repr__(self) -> str:
        """Return the counts and the first results, because there may be thousands."""
        more = ", …" if len(self.results) > _SHOWN else ""
        first = ", ".join(map(repr, self.results[:_SHOWN]))
        return f"Many({len(self.results)} results, counts={self.counts!r}, results=[{first}{more}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Last error of a job. ``kind`` is the class of the exception."""

    kind: str = ""
    message: str = ""
    traceback: str = ""


def _job_error(data: Mapping[str, Any] | None) -> JobError | None:
    return None if data is None else made(JobError, data, kind=data.get("class", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """State of a job at one moment; its arguments are masked.

    ``state`` is delayed, ready, reserved or morgue. The job has ``args`` and ``kwargs``, or ``payloads`` (the first 50
    of a merged job), or ``body`` (in a queue of kind pull), or none of these if they were too large for a list
    (``cut``).
    """

    queue: str
    id: str
    key: str
    task: str
    state: str
    created: datetime | None = field(default=None, metadata=_MOMENT)
    due: datetime | None = field(default=None, metadata=_MOMENT)
    priority: int = 4
    merged: bool = False
    failures: int = 0
    reserves: int = 0
    crashes: int = 0
    releases: int = 0
    timeouts: int = 0
    buries: int = 0
    kicks: int = 0
    quarantined: bool = False
    parked: bool = False
    context: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    cut: bool = False
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payloads: list[Any] | None = None
    payload_count: int = 0
    body: bytes | None = None
    gated_due: datetime | None = field(default=None, metadata=_MOMENT)
    worker: str | None = None
    lease_ends: datetime | None = field(default=None, metadata=_MOMENT)
    buried: datetime | None = field(default=None, metadata=_MOMENT)
    reason: str = ""
    outcome: str = ""
    error: JobError | None = field(default=None, metadata={"read": _job_error})


def job_of(data: Mapping[str, Any]) -> Job:
    """Return a job from JSON."""
    return made(Job, data, body=body_of(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """Result of a verb on many jobs: counts by outcome, and (id, outcome) of each job that was named.

    ``complete`` is False if there are more jobs to process.
    """

    counts: dict[str, int]
    results: list[tuple[str, str]] = field(default_factory=list)
    complete: bool = True
    seen: int = 0
    total: int = 0
    #: continues a request with conditions
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of jobs by place. Failed jobs are also counted as delayed or ready."""

    delayed: int = 0
    ready: int = 0
    reserved: int = 0
    gated: int = 0
    failed: int = 0
    morgue: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One shard of a queue."""

    number: int
    epoch: int
    counts: Counts = field(metadata={"read": lambda data: made(Counts, data)})
    lag_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Queue. ``paused`` is "in", "out", "both" or ""; a limit of None means no limit.

    ``counts``, ``lag_seconds``, ``lag_by_priority`` and ``counters`` are present in responses that read queues, not in
    those that change them; ``by_shard`` only when a single queue is read.
    """

    name: str
    kind: str
    shards: int
    epoch: int
    draining: bool
    paused: str
    configured: bool
    limits: dict[str, Any]
    #: direction → when its pause ends by itself
    paused_until: dict[str, datetime | None] = field(
        default_factory=dict, metadata={"read": lambda data: {word: moment(text) for word, text in data.items()}}
    )
    counts: Counts | None = field(default=None, metadata={"read": lambda data: made(Counts, data)})
    lag_seconds: float = 0.0
    #: priority → seconds by which its most overdue job is late
    lag_by_priority: dict[int, float] = field(
        default_factory=dict, metadata={"read": lambda data: {int(word): lag for word, lag in data.items()}}
    )
    counters: dict[str, int] = field(default_factory=dict)
    by_shard: list[Shard] = field(
        default_factory=list, metadata={"read": lambda data: [made(Shard, one) for one in data]}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Producers:
    """State of the switch for the producers of all queues; ``since`` is None while they are not paused."""

    paused: bool
    since: datetime | None = field(default=None, metadata=_MOMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringTask:
    """Recurring task with its ticks; ``paused`` is since when they do not fire, or None.

    A pause of a task that the project has no more is listed without queue and schedule.
    """

    task: str
    queue: str | None
    schedule: str | None
    timezone: str | None
    missed: str | None
    last_tick: datetime | None = field(default=None, metadata=_MOMENT)
    next_tick: datetime | None = field(default=None, metadata=_MOMENT)
    paused: datetime | None = field(default=None, metadata=_MOMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """Job that a worker thread ran at its last heartbeat."""

    slot: int
    queue: str
    id: str
    task: str
    started: datetime | None = field(default=None, metadata=_MOMENT)
    ids: int = 1
    lease_ends: datetime | None = field(default=None, metadata=_MOMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Worker process, as of its last heartbeat."""

    name: str
    host: str
    pid: int | None
    queues: list[str]
    threads: int
    running: int
    dispatcher: bool
    stopping: bool
    lost: bool
    seconds_ago: float
    ignored: list[str] = field(default_factory=list)
    quarantine: bool = False
    rss_mib: int | None = None
    started: datetime | None = field(default=None, metadata=_MOMENT)
    seen: datetime | None = field(default=None, metadata=_MOMENT)
    jobs: list[RunningJob] = field(
        default_factory=list, metadata={"read": lambda data: [made(RunningJob, one) for one in data]}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """Length of a queue: jobs outside the morgue, jobs in it, and the seconds since the oldest ready job became due."""

    length: int
    morgue_length: int
    lag: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Lengths of all queues."""

    total: Stat = field(metadata={"read": lambda data: made(Stat, data)})
    by_queue: dict[str, Stat] = field(
        metadata={"read": lambda data: {name: made(Stat, one) for name, one in data.items()}}
    )
