"""Calls of one sender of many jobs in a deployment that confirms writes (:mod:`..redis.confirmation`).

A missing confirmation must not keep back the jobs behind it: nobody would send them. So it is kept until all jobs were
sent, and a node that has not confirmed in time is not waited for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import NotConfirmed
from ..schedule_outcome import UNCHANGED_LETTERS, ScheduleOutcome

if TYPE_CHECKING:
    from ..job import NewJob
    from .sender import Sender

_AGAIN: Final = (
    "repeat the call only if its jobs have ids of your own (others would be stored twice), and look at the replicas "
    "and the disk of Redis"
)


class ConfirmedCalls:
    """Calls that wait one by one, so that none can overtake another, over whatever connections they go.

    Args:
        places: remember which jobs are not confirmed, not only their number.
    """

    def __init__(self, queue: Sender, *, places: bool) -> None:
        self._queue = queue
        self._places: set[int] | None = set() if places else None
        self._number = 0
        #: nodes that have not confirmed in time
        self._lagging: set[int] = set()
        self._first: NotConfirmed | None = None

    def call(self, news: Sequence[NewJob], keys: tuple[bytes, ...], args: tuple[Any, ...]) -> tuple[Any, bool]:
        """Make the call of a chunk, confirmed if one of its jobs is.

        Returns:
            The reply, and False if a confirmation was demanded and did not come.
        """
        scripts = self._queue.broker.scripts
        if not any(map(self._queue.is_confirmed, news)):
            return scripts.call("schedule", keys, *args), True
        if self._lagging and scripts.node(keys) in self._lagging:
            return scripts.call("schedule", keys, *args), False
        try:
            return scripts.call_confirmed("schedule", keys, *args), True
        except NotConfirmed as error:
            self._first = self._first or error
            self._lagging.add(scripts.node(keys))
            return error.reply, False

    def note(self, place: int, new: NewJob, letter: str) -> None:
        """Note the outcome of a job of an unconfirmed call."""
        if letter not in UNCHANGED_LETTERS and self._queue.is_confirmed(new):
            self._number += 1
            if self._places is not None:
                self._places.add(place)

    def check(self, counts: Mapping[str, int], outcomes: Sequence[ScheduleOutcome] = ()) -> None:
        """Raise the error if a job is not confirmed.

        Raises:
            NotConfirmed: see there.
        """
        if not (self._first and self._number):
            return
        listed = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        error = NotConfirmed(
            f"all jobs of the call were sent ({listed}), but {self._first.reason}: {self._number} of them are in Redis "
            f"and may be lost with it; {_AGAIN}",
            reason=self._first.reason,
        )
        error.counts, error.outcomes, error.unconfirmed = counts, outcomes, self._places or frozenset()
        raise error from self._first
