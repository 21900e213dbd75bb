"""Rest of the fetch loop: when it listens for wake-up tokens, and which shards it checks without one."""

from __future__ import annotations

import time
from typing import Final

from .attempt import NEVER
from .shard_selector import ShardSelector
from .shard_state import stalest
from .wake_listener import REPEAT, WakeListener

#: seconds between two checks, each of one shard in rotation, although nothing indicates work there
SAFETY_CHECK: Final = 5.0


class SafetyCheck:
    """Rotation over the shards of a process, in case a token was lost."""

    def __init__(self, selector: ShardSelector) -> None:
        self._selector = selector
        self._checked_at = time.monotonic()

    def next(self, now: float) -> float:
        """Return when the next check without a reason is due, and make the least recently checked shard due for it.

        A shard that a dispatcher of this process checked within a rotation needs none.
        """
        sources = self._selector.sources
        rotation = SAFETY_CHECK * len(sources)
        oldest = stalest([source for source in sources if source.checked_at + rotation <= now])
        if oldest is None:
            return min((source.checked_at + rotation for source in sources), default=NEVER)
        at = max(self._checked_at, oldest.sent_at) + SAFETY_CHECK
        if at <= now:
            self._checked_at = now
            self._selector.expect(oldest, now)
            return now
        return at


def call_waker(selector: ShardSelector, waker: WakeListener, has_room: bool, now: float) -> float:
    """Listen for tokens, or not any more. Return when to repeat the call."""
    is_listening = waker.listens_to(selector.names)
    if not (has_room and selector.names):
        selector.waiting = False
    elif not (selector.waiting and is_listening):
        selector.waiting = True
        waker.call(selector.names)
        return NEVER if is_listening else now + REPEAT
    return NEVER
