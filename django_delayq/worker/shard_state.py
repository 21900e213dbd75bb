"""Knowledge of the consumers in a process about one shard: when there may be something to reserve from it.

A shard is *due*, or *asked* while a reserve runs, or it *rests* until its next due time. The reply of a reserve sets
that time. A wake token makes the shard due and outdates the replies that are still to come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from .attempt import NEVER

if TYPE_CHECKING:
    from ..core.queue import Queue

State = TypeVar("State", bound="ShardState")
#: seconds until a shard is asked again that has due jobs but returned none; doubled each time
_FIRST_DOUBT: Final = 0.02
_LONGEST_DOUBT: Final = 1.0


class ShardState:
    """State of one shard of one queue. Times are of ``time.monotonic()``. Callers hold the lock of its owner."""

    __slots__ = ("_oldest", "_reserves", "due_at", "empties", "queue", "sent_at", "shard")

    def __init__(self, queue: Queue, shard: int) -> None:
        self.queue = queue
        self.shard = shard
        #: when the next job can be reserved; NEVER = the shard was empty, or a reserve is running
        self.due_at = 0.0
        #: when the last reserve was sent
        self.sent_at = 0.0
        self.empties = 0
        #: number of reserves, and the first one whose reply is not outdated
        self._reserves = self._oldest = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue.name}.{self.shard}>"

    def begin_reserve(self, now: float) -> int:
        """Record that a reserve is about to be sent. Return its number."""
        self.sent_at, self.due_at = now, NEVER
        self._reserves += 1
        return self._reserves

    def apply_reply(self, number: int, now: float, next_due_ms: float | None, got: int) -> bool:
        """Apply the reply of a reserve: ``got`` jobs, and the time until the next due one (None = empty shard).

        Returns:
            False if it is older than a token or than the reply of a later reserve, so that nothing was changed.
        """
        if number < self._oldest:
            return False
        self._oldest = number
        if next_due_ms is None:
            self.due_at, self.empties = NEVER, 0
        elif got or next_due_ms > 0:
            self.due_at, self.empties = now + next_due_ms / 1000, 0
        else:
            # A shard that has due jobs but returns none may stay so. The pauses grow, to avoid a hot loop.
            doubt = min(_LONGEST_DOUBT, _FIRST_DOUBT * 2 ** min(self.empties, 10))
            self.due_at, self.empties = now + doubt, self.empties + 1
        return True

    def expect(self, at: float) -> None:
        """Record that there may be work at ``at``."""
        self.due_at = min(self.due_at, at)

    def wake(self) -> None:
        """Make the shard due: a wake token has arrived, or one may have been lost."""
        self.due_at, self._oldest = 0.0, self._reserves + 1


def stalest(states: Iterable[State]) -> State | None:
    """Return the shard whose last reserve is the longest ago: the next one to check for work without a token."""
    return min(states, key=lambda state: state.sent_at, default=None)
