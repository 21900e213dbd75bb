"""Wake-ups of the fetch loop: what it listens to, what it checks without a token, and what it passes on to others."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from .attempt import NEVER
from .shards import SafetyCheck, ShardSelector
from .wake_listener import REPEAT, WakeListener

if TYPE_CHECKING:
    from .concurrency import ConcurrencyLimits

#: seconds for which a busy process may leave tokens unread, and for which any process may keep due work to itself
PATIENCE: Final = 0.05


class WakeUps:
    """Wake-ups of one process.

    A process listens whenever it can take a job, also while it is busy: else the jobs of one queue would hide those of
    the others. What it knows of due work and cannot use, it passes on: a token in a list reaches only one process, and
    due times are known only to who has asked for them.

    Args:
        waker: None in a process that gets no tokens.
        safety_check: seconds between two checks of a shard without a token.
    """

    def __init__(
        self, selector: ShardSelector, waker: WakeListener | None, limits: ConcurrencyLimits, safety_check: float
    ) -> None:
        self._selector = selector
        self._waker = waker
        self._limits = limits
        self._safety_check = SafetyCheck(selector, safety_check)
        self._read_at = 0.0

    def refresh_busy(self, now: float) -> None:
        """Listen and pass on from time to time, although this process reserves all the time."""
        if now >= self._read_at:
            self.refresh(now, has_room=True)

    def refresh(self, now: float, *, has_room: bool) -> float:
        """Listen if there is room for jobs, and pass on what this process leaves. Return when to call this again."""
        selector = self._selector
        until = self._safety_check.next(now) if has_room else NEVER
        if self._waker is None:
            return until
        if has_room:
            until = min(until, self._listen(self._waker, now))
        else:
            selector.waiting = frozenset()
        self._pass_on(self._waker, now - PATIENCE)
        self._waker.put_back(self._limits.reminders(now))
        return min(until, selector.next_unshared_at() + PATIENCE, self._limits.remind_at)

    def _listen(self, waker: WakeListener, now: float) -> float:
        selector = self._selector
        if now < self._read_at and selector.next_due_at() <= now:
            return self._read_at
        self._read_at = now + PATIENCE
        names = selector.uncertain_queues(now) - self._limits.full_queues
        selector.waiting = names  # set before the check, so that a read that begins now is for these queues
        if not names or waker.listens_to(names):
            return NEVER
        waker.call(names)
        return now + REPEAT

    def _pass_on(self, waker: WakeListener, until: float) -> None:
        waker.put_back(self._selector.take_unshared(until))

    def close(self) -> None:
        """Pass on all that this process knows of work to come."""
        self._selector.waiting = frozenset()
        if self._waker is not None:
            self._pass_on(self._waker, sys.float_info.max)
