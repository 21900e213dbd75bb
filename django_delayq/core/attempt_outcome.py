"""Outcomes of attempts, as events, the history and the testing kit name them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


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
IN_MORGUE: Final = (
    AttemptOutcome.BURIED,
    AttemptOutcome.EXHAUSTED,
    AttemptOutcome.POISON,
    AttemptOutcome.UNDECODABLE,
)
#: outcomes that the hourly metrics count one by one
COUNTED: Final = tuple(one for one in AttemptOutcome if one not in (*IN_MORGUE, AttemptOutcome.BULK))
