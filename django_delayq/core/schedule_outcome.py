"""Outcomes of sending a job, and the letters that the scripts return for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


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
    def is_final_refusal(self) -> bool:
        """True if Redis will never accept the job as it is."""
        return self in _NEVER

    @property
    def is_refusal_for_now(self) -> bool:
        """True if Redis may accept the job later."""
        return self in _LATER

    @property
    def is_final(self) -> bool:
        """True if a repetition of the call would change nothing: stored, ignored, or refused for good."""
        return self in _STORED or self in _NEVER or self is ScheduleOutcome.IGNORED

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
#: replies after which nothing of the job needs a confirmation
UNCHANGED_LETTERS: Final = frozenset("etfhpvlx")
CLOSED_REPLY: Final = b"v"


def count_outcomes(replies: Iterable[str]) -> dict[str, int]:
    """Return the number of jobs by outcome, given the letters of several replies."""
    counts: dict[str, int] = {}
    for letters in replies:
        for letter in set(letters):
            outcome = OF_LETTER[letter]
            counts[outcome] = counts.get(outcome, 0) + letters.count(letter)
    return counts
