"""Parts of a duty's work, such as shards, of which one may fail without stopping the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, TypeAlias

from ..core.redis.faults import Backoff, Fault, classify

if TYPE_CHECKING:
    from ..core.broker import Broker

logger: Final = logging.getLogger(__name__)

#: seconds between two log lines about the same part
LOG_SECONDS: Final = 60.0

#: queue and shard, also with a part of the shard; or any name
Part: TypeAlias = tuple[str, int] | tuple[str, int, str] | str


class _Rest:
    """Rest of a part that failed."""

    __slots__ = ("logged_at", "pause", "since", "until")

    def __init__(self, longest: float) -> None:
        self.pause = Backoff(cap=longest)
        self.until = 0.0
        self.logged_at = -LOG_SECONDS
        #: when the first call began that Redis did not answer; 0 = there was none
        self.since = 0.0


class Parts:
    """Guard for the parts of a duty's work: one that fails is logged, rests for a growing time, and is tried again.

    An error of Redis concerns all parts, so it is raised; on a Cluster it concerns those of the same node, which rest
    together.

    Args:
        duty: its name for the log.
        broker: that of the shards; without one, every error of Redis concerns all parts.
        longest: longest rest in seconds.
        seconds: on a Cluster, the time limit of a part that only calls Redis: the parts on other nodes wait meanwhile.
            None = each call has its own.
        shared: further errors that concern all parts.
    """

    def __init__(
        self,
        duty: str,
        broker: Broker | None = None,
        *,
        longest: float = 5.0,
        seconds: float | None = None,
        shared: tuple[type[Exception], ...] = (),
    ) -> None:
        self._duty = duty
        self._cluster = broker if broker is not None and broker.connection.cluster else None
        self._longest = longest
        self._seconds = seconds
        self._shared = shared
        self._rests: dict[Hashable, _Rest] = {}

    def retry_at(self, part: Part) -> float:
        """Return the moment (monotonic) until which the part rests; 0 if it does not."""
        return max((rest.until for rest in self._rests_of(part)), default=0.0)

    def outage(self, part: Part) -> float:
        """Return for how many seconds the part's node of a cluster has failed; 0 if it works."""
        return max((time.monotonic() - rest.since for rest in self._rests_of(part) if rest.since), default=0.0)

    def same_node(self, one: Part, other: Part) -> bool:
        """Return True if these parts fail together, as far as is known."""
        return self._node(one) == self._node(other)

    def _rests_of(self, part: Part) -> list[_Rest]:
        names = (part, self._node(part)) if self._rests else ()
        return [self._rests[name] for name in names if name in self._rests]

    def attempt(self, part: Part, work: Callable[[], object]) -> bool:
        """Call ``work()`` unless the part rests. Return True if it succeeded.

        Raises:
            Exception: of ``work``, if it concerns all parts.
        """
        began = time.monotonic()
        if self.retry_at(part) > began:
            return False
        try:
            if self._cluster is None or self._seconds is None:
                work()
            else:
                with self._cluster.connection.limited(self._seconds):
                    work()
        except Exception as error:
            fault = classify(error)
            if isinstance(error, self._shared) or (fault is not Fault.BUG and self._cluster is None):
                raise
            self._rest(part, fault, error, began)
            return False
        if self._rests:
            for name in (part, self._node(part)):
                if self._rests.pop(name, None) is not None:
                    logger.warning("%s: %s works again", self._duty, _text_of(part))
        return True

    def _rest(self, part: Part, fault: Fault, error: Exception, began: float) -> None:
        name = part if fault is Fault.BUG else self._node(part)
        rest = self._rests.setdefault(name, _Rest(self._longest))
        now = time.monotonic()
        rest.until = now + rest.pause.next()
        if fault is not Fault.BUG:
            rest.since = rest.since or began
        if now - rest.logged_at < LOG_SECONDS:
            return
        rest.logged_at = now
        if fault is Fault.BUG:
            logger.error("%s: %s failed and is retried; the rest goes on", self._duty, _text_of(part), exc_info=error)
        else:
            what = f"{self._duty}: no work with the node of {_text_of(part)} now"
            logger.warning("%s (%s); the others go on: %s", what, fault.value, error)

    def _node(self, part: Part) -> Hashable:
        """Return what the parts of one node share; the part itself if that is not known."""
        if self._cluster is None or isinstance(part, str):
            return part
        try:
            return self._cluster.scripts.node(self._cluster.shard(part[0], part[1]).keys)
        except Exception:
            return part


def _text_of(part: Part) -> str:
    return part if isinstance(part, str) else f"shard {part[1]} of queue {part[0]}{' '.join(('', *part[2:]))}"
