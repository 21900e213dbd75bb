"""Calls of one sender of many jobs in a deployment that confirms writes (:mod:`..redis.confirmation`).

A missing confirmation must not keep back the jobs behind it: nobody would send them. So it is kept until all jobs were
sent, and a node that has not confirmed in time is not waited for again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..errors import NotConfirmed
from ..outcomes import UNCHANGED_LETTERS, ScheduleOutcome
from .chunks import CHUNK_BYTES

if TYPE_CHECKING:
    from ..job import NewJob
    from .sender import Sender

#: maximum number of chunks with one wait
TOGETHER: Final = 64
_AGAIN: Final = (
    "repeat the call only if its jobs have ids of your own (others would be stored twice), and look at the replicas "
    "and the disk of Redis"
)


@dataclass(slots=True, eq=False)
class ConfirmedCall:
    """Call of a chunk.

    Attributes:
        is_demanded: True if one of its jobs has to be confirmed.
        is_confirmed: False if a confirmation was demanded and did not come.
    """

    node: int
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    is_demanded: bool
    is_confirmed: bool = True
    is_made: bool = False
    answer: Any = None

    @property
    def size(self) -> int:
        """Number of bytes of its arguments."""
        return sum(map(len, self.args))

    def settle(self, answer: Any, *, is_confirmed: bool) -> None:
        """Note the reply."""
        self.answer, self.is_made, self.is_confirmed = answer, True, is_confirmed or not self.is_demanded


class ConfirmedCalls:
    """Calls that are collected until a reply is read. Those of one node are made together, with one wait behind them.

    Calls of a node go over one connection, so none overtakes another.

    Args:
        places: remember which jobs are not confirmed, not only their number.
    """

    def __init__(self, queue: Sender, *, places: bool) -> None:
        self._queue = queue
        self._scripts = queue.broker.scripts
        self._places: set[int] | None = set() if places else None
        self._number = 0
        self._collected: dict[int, list[ConfirmedCall]] = {}
        #: nodes that have not confirmed in time
        self._lagging: set[int] = set()
        self._first: NotConfirmed | None = None

    def begin(self, news: Sequence[NewJob], keys: tuple[bytes, ...], args: tuple[Any, ...]) -> ConfirmedCall:
        """Collect the call of a chunk."""
        call = ConfirmedCall(self._scripts.node(keys), keys, args, any(map(self._queue.is_confirmed, news)))
        calls = self._collected.setdefault(call.node, [])
        calls.append(call)
        if sum(one.size for one in calls) >= CHUNK_BYTES:
            self._make(self._collected.pop(call.node))
        return call

    def reply(self, call: ConfirmedCall, until: float | None = None) -> Any:
        """Make the call, if it is not made yet, with all others of its node; return its reply.

        Args:
            until: not None = too late for a call that is not made yet.
        """
        if not call.is_made and until is None:
            calls = self._collected.pop(call.node, [])
            self._make(calls if call in calls else [call])
        return call.answer

    def _make(self, calls: list[ConfirmedCall]) -> None:
        while calls:
            node = calls[0].node
            if len(calls) > 1 and node not in self._lagging and any(call.is_demanded for call in calls):
                calls = self._make_together(calls)
            if calls:  # it loads the script, or finds the shard's new node
                self._make_alone(calls[0])
            calls = calls[1:]

    def _make_together(self, calls: list[ConfirmedCall]) -> list[ConfirmedCall]:
        """Make calls of one node with one wait; return those that have to be made again, one by one."""
        answers, missing = self._scripts.call_all_confirmed("schedule", [(call.keys, call.args) for call in calls])
        if missing is not None:
            self._lags(calls[0].node, missing)
        for call, answer in zip(calls, answers, strict=True):
            if not isinstance(answer, Exception):
                call.settle(answer, is_confirmed=missing is None)
        return [call for call in calls if not call.is_made]

    def _make_alone(self, call: ConfirmedCall) -> None:
        scripts = self._scripts
        if not call.is_demanded or call.node in self._lagging:
            call.settle(scripts.call("schedule", call.keys, *call.args), is_confirmed=False)
            return
        try:
            call.settle(scripts.call_confirmed("schedule", call.keys, *call.args), is_confirmed=True)
        except NotConfirmed as error:
            self._lags(scripts.node(call.keys), error)
            call.settle(error.reply, is_confirmed=False)

    def _lags(self, node: int, error: NotConfirmed) -> None:
        self._first = self._first or error
        self._lagging.add(node)

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
