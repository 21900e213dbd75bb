"""Outcomes of attempts and schedule calls, settlements, replies of shards to workers, and completion marks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from .job import Job

# -- attempts ----------------------------------------------------------------------------------------------------------


class AttemptOutcome(StrEnum):
    """Outcome of an attempt. Its text is what events and tables store."""

    SUCCEEDED = "succeeded"
    #: the job is tried again
    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    #: the same, uncounted: the lease ran out, and no start is known
    LOST = "lost"
    #: the same, uncounted: given back
    RELEASED = "released"
    #: the job is removed
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    #: the job is in the morgue
    BURIED = "buried"
    EXHAUSTED = "exhausted"
    POISON = "poison"
    UNDECODABLE = "undecodable"
    #: not an attempt: a chunk of a bulk load
    BULK = "bulk"

    def __repr__(self) -> str:
        return repr(self.value)


#: outcomes that move a job to the morgue; the hourly metrics count them together, as buried
IN_MORGUE: Final = (AttemptOutcome.BURIED, AttemptOutcome.EXHAUSTED, AttemptOutcome.POISON, AttemptOutcome.UNDECODABLE)
#: outcomes that the hourly metrics count one by one
COUNTED: Final = tuple(one for one in AttemptOutcome if one not in (*IN_MORGUE, AttemptOutcome.BULK))


# -- schedule calls ----------------------------------------------------------------------------------------------------


class ScheduleOutcome(StrEnum):
    """Outcome of sending one job. Each is also the text that callers of ``schedule()`` compare it with."""

    #: stored
    CREATED = "created"
    MERGED = "merged"
    REPLACED = "replaced"
    GATED = "gated"
    #: nothing to store
    IGNORED = "ignored"
    #: this durable generation, or payload, was stored before
    KNOWN = "known"
    #: this tick, or a later one, was fired before
    FIRED = "fired"
    #: refused for good: the id belongs to a live job of another task, or ``on_conflict="error"`` met a live job
    TAKEN = "taken"
    EXISTS = "exists"
    #: refused now
    FULL = "full"
    PAUSED = "paused"
    #: not stored because another job was refused, and all jobs or none were to be stored
    WITHHELD = "withheld"
    #: not stored here: the shard is closed, or the call came after its deadline
    CLOSED = "closed"
    LATE = "late"
    #: not sent, or unknown: a row is left to the relay; a job without a row may or may not have arrived
    OUTBOX = "outbox"
    NOT_SENT = "not_sent"
    #: not passed on by a schedule middleware
    SKIPPED = "skipped"

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def is_stored(self) -> bool:
        """True if Redis has the job, as far as this process knows."""
        return self in _STORED

    @property
    def is_refusal_for_now(self) -> bool:
        """True if Redis may accept the job later."""
        return self in _LATER

    @property
    def is_refusal(self) -> bool:
        """True if Redis answered and did not accept the job."""
        return self in REFUSALS


_STORED: Final = frozenset(map(ScheduleOutcome, ("created", "merged", "replaced", "gated", "known")))
_NEVER: Final = (ScheduleOutcome.TAKEN, ScheduleOutcome.EXISTS)
_LATER: Final = (ScheduleOutcome.FULL, ScheduleOutcome.PAUSED, ScheduleOutcome.WITHHELD)
REFUSALS: Final = (*_NEVER, *_LATER)

#: by the letter in the reply of ``schedule.lua`` and ``bulk.lua``
OF_LETTER: Final[Mapping[str, ScheduleOutcome]] = {
    "c": ScheduleOutcome.CREATED,
    "m": ScheduleOutcome.MERGED,
    "r": ScheduleOutcome.REPLACED,
    "i": ScheduleOutcome.IGNORED,
    "g": ScheduleOutcome.GATED,
    "e": ScheduleOutcome.EXISTS,
    "t": ScheduleOutcome.TAKEN,
    "f": ScheduleOutcome.FULL,
    "h": ScheduleOutcome.FULL,
    "p": ScheduleOutcome.PAUSED,
    "x": ScheduleOutcome.WITHHELD,
    "v": ScheduleOutcome.CLOSED,
    "d": ScheduleOutcome.FIRED,
    "k": ScheduleOutcome.KNOWN,
    "l": ScheduleOutcome.LATE,
}


#: reply of a closed shard
CLOSED_LETTER: Final = "v"
#: of a shard that has no room
FULL_LETTER: Final = "f"
#: of a merged job that has all the payloads that it may have
ID_FULL_LETTER: Final = "h"
#: replies that a repeated call would get again, and change nothing: stored, ignored, or refused for good
FINAL_LETTERS: Final = "cmrgkite"
#: replies after which nothing of the job needs a confirmation
UNCHANGED_LETTERS: Final = frozenset("etfhpvlx")


def count_outcomes(replies: Iterable[str]) -> dict[str, int]:
    """Return the number of jobs by outcome, given the letters of several replies."""
    counts: dict[str, int] = {}
    for letters in replies:
        for letter in set(letters):
            outcome = OF_LETTER[letter]
            counts[outcome] = counts.get(outcome, 0) + letters.count(letter)
    return counts


# -- settlements -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Settlement:
    """Change of a held job that ends its lease: one verb with the arguments of its script.

    ``verb`` is ack, ack_early, fail, release, bury, expire or record (the end of an attempt whose job was acked early).
    ``delay_ms`` None means "at its old place".

    For merged jobs: ``oldest`` buries the first payload only, ``inherit`` keeps the back-off although new content
    arrived, ``score_policy`` decides between a returning payload and an equal one that arrived meanwhile.

    For a job that is put back: ``quarantine`` sends its next attempt to quarantine, ``own_crash`` means that the crash
    is certainly its own, ``unclear`` that its lease was lost and perhaps a start that was not recorded.
    """

    job: Job
    started_ms: int = 0
    run_ms: int = 0
    verb: str = field(kw_only=True)  # it alone, because the defaults of such arguments take time
    delay_ms: int | None = None
    outcome: AttemptOutcome = AttemptOutcome.SUCCEEDED
    reason: str = ""
    error_class: str = ""
    error: bytes = b""
    quarantine: bool = False
    own_crash: bool = False
    unclear: bool = False
    timed_out: bool = False  # of a bury: the time limit ended the attempt
    once: bool = False  # of a record: only if no end of the attempt is stored yet
    event: bool = True  # of a release: whether it may cause a second attempt
    oldest: bool = False
    inherit: bool = False
    score_policy: str = "min"
    priority: int | None = None  # of a release: new priority, 0 … 7
    postpone: bool = False  # of a release: the attempt could not begin, for this reason; the wait counts as lateness
    began: bool = False  # of a release: the attempt began, so the postponement is over
    #: of a release: the jobs of this scope (group, task or queue) wait for so many ms (:func:`.limits.pause_scope`)
    pause: tuple[str, int] | None = None
    #: of a release: the end of the attempt in case its early ack was applied, which is stored behind it
    also: Settlement | None = None


#: the job is done; no part of it stays
ack: Final = partial(Settlement, verb="ack")
#: its attempt counts and did not succeed (failed, timeout or crashed); it is due again after ``delay_ms``
fail: Final = partial(Settlement, verb="fail", outcome=AttemptOutcome.FAILED, delay_ms=0)
#: it is moved to the morgue, where it waits for an operator; the reason is exhausted, poison, buried, ...
bury: Final = partial(Settlement, verb="bury", outcome=AttemptOutcome.BURIED)
#: it was reserved too late to be of use, so it is removed without an attempt
expire: Final = partial(Settlement, verb="expire", outcome=AttemptOutcome.EXPIRED)


def release(job: Job, *, quarantine: bool | None = None, **fields: Any) -> Settlement:
    """Put a job back without counting an attempt (released; lost if the lease ran out and no start is known).

    Args:
        quarantine: the next attempt is in quarantine; None = as decided before.
        fields: further fields of the settlement.
    """
    fields = {"outcome": AttemptOutcome.RELEASED, "event": False, **fields}
    return Settlement(job, verb="release", quarantine=job.quarantined if quarantine is None else quarantine, **fields)


# -- replies of a shard to workers and dispatchers ---------------------------------------------------------------------

#: jobs that a reserve returns: those that wait for quarantine, all others, or both
Which: TypeAlias = Literal["all", "others", "quarantined"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Due jobs behind limits that a shard hands out if these grant it (``lua/lib/offers.lua``).

    Attributes:
        lane: their lane in the shard.
        task: their task.
        jobs: number of jobs.
        ms: how long permits for them have to last.
        ends_ms: when these end, Unix ms on the shard's clock.
        options_json: options of the first job, if they have a group.
    """

    lane: bytes
    task: str
    jobs: int
    ms: int
    ends_ms: int
    options_json: bytes = b""

    @property
    def group(self) -> str:
        """Group of the jobs; "" = none."""
        return self.lane[:-4].decode()


@dataclass(slots=True)
class Batch:
    """Result of a reserve.

    ``next_due_ms`` is the time until the shard's next due job: None = no job waits. ``expired`` counts jobs that were
    removed because they came too late to be of use. ``quarantine_due_ms`` is the time until the first job that waits
    for quarantine is due, below 0 when it is overdue; None if there is none, or if this call itself returns such jobs.
    ``sent_at`` (``time.monotonic()``) is when the request was sent, for the last time if it was sent again: the leases
    began no earlier.

    Of limits: ``moved`` jobs joined lanes; ``offers`` are lanes that wait for a grant; of the scopes that the call
    freed from a block ``idle`` have no due jobs; ``passed_over``: there are due lanes of tasks that the caller named as
    full.
    """

    jobs: list[Job] = field(default_factory=list)
    broken: list[Job] = field(default_factory=list)
    next_due_ms: float | None = None
    now_ms: float = 0
    expired: int = 0
    quarantine_due_ms: float | None = None
    sent_at: float = field(default_factory=time.monotonic, compare=False)
    moved: int = 0
    offers: list[Offer] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    passed_over: bool = False

    @property
    def taken(self) -> int:
        """Number of jobs that left the shard's due set, returned or not, or are offered."""
        return len(self.jobs) + len(self.broken) + self.expired + self.moved + len(self.offers)


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
    #: completion marks that wait to be acknowledged (:class:`CompletionMark`)
    marks: int = 0
    #: attempts of jobs that were acked before they began, and whose end is not stored yet
    begun: int = 0
    #: number of entries, and the score of the newest (µs; 0 if there is none)
    failed: tuple[int, int] = (0, 0)
    morgue: tuple[int, int] = (0, 0)
    #: jobs wait for quarantine
    set_aside: bool = False


# -- completion marks --------------------------------------------------------------------------------------------------

End = Literal["done", "buried", "live"]

#: maximum number of marks in one call
MOST_MARKS: Final = 250


@dataclass(frozen=True, slots=True)
class CompletionMark:
    """Completion mark of a durable generation: done for good, buried, or live again.

    ``stamp`` is Redis's time in µs, and different for each mark of a key.

    A durable key belongs to a job, or to a payload of a merged one, whose end is awaited outside Redis
    (:func:`~.job.new_key`). The script that ends the generation leaves a mark (``lua/lib/marks.lua``), which stays
    until :meth:`.Queue.marks` is called to forget it.

    A shard has at most one mark per key, the latest. Two shards have marks for one key only after its job was kicked
    from the morgue of an old epoch into the present one. The old shard's mark then becomes ``live`` (whatever it was
    before), and the new shard's mark is ``live`` until the job ends there. The order in which the marks of two shards
    are read therefore does not matter:

    * ``done`` comes from one shard only and is final, because no generation comes back to life after it.
    * ``live`` read after a younger ``buried`` makes a buried job be watched like a live one, which is harmless.
    * ``buried`` is never read after a younger ``live``, unless it was read before that one was written, and then the
      ``live`` is still to come.

    One race remains: if one caller discards a morgue record while another kicks it into another shard, the job may stay
    live after its ``done``.
    """

    key: bytes
    end: End
    stamp: int
