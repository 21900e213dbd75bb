"""Model of the rules of a queue: its pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Pauses:
    """Pauses of a queue: until when it takes no new jobs, and hands none out (Unix ms).

    0 = it is not paused, infinity = until somebody ends the pause.
    """

    into: float = 0
    out: float = 0
    #: all producers of the deployment are paused
    producers: bool = False

    def begun(self, direction: str, end_ms: float = math.inf) -> Pauses:
        """Return them with another pause, which replaces the one before."""
        return replace(self, **dict.fromkeys(_members(direction), end_ms))

    def ended(self, direction: str) -> Pauses:
        return self.begun(direction, 0)

    def of_producers(self, *, paused: bool) -> Pauses:
        return replace(self, producers=paused)

    def without_past(self, now_ms: float) -> Pauses:
        """Return those that have not ended by themselves."""
        return replace(self, into=_after(now_ms, self.into), out=_after(now_ms, self.out))

    def refuses(self, now_ms: float) -> bool:
        return self.producers or now_ms < self.into

    def holds_back(self, now_ms: float) -> bool:
        return now_ms < self.out

    def handed_out_ms(self, due_ms: float | None, now_ms: float) -> float | None:
        """Return when a job that is due then may be handed out."""
        if due_ms is None or not self.holds_back(now_ms):
            return due_ms
        return None if self.out == math.inf else max(due_ms, self.out)


def _members(direction: str) -> tuple[str, ...]:
    return {"in": ("into",), "out": ("out",), "both": ("into", "out")}[direction]


def _after(now_ms: float, end_ms: float) -> float:
    return end_ms if end_ms > now_ms else 0
