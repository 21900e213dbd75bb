"""Queues and workers as the queue pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..core.rules import orders_of
from ..status import GROUPS, LOST_AFTER
from .words import When, duration, moment

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.operations.inspector import Counts
    from ..core.queue import Queue

__all__ = ["QueueLook", "WorkerLook", "workers_of"]

COUNTER_NAMES: Final = {
    "scheduled": gettext_lazy("scheduled"),
    "done": gettext_lazy("done"),
    "failing": gettext_lazy("failed attempts"),
    "buried": gettext_lazy("buried"),
    "cancelled": gettext_lazy("cancelled"),
}
PAUSED_WORDS: Final = {
    "in": gettext_lazy("paused for new jobs"),
    "out": gettext_lazy("paused for workers"),
    "both": gettext_lazy("paused"),
}
LIMIT_NAMES: Final = {
    "max_length": gettext_lazy("most live jobs"),
    "morgue_max": gettext_lazy("most jobs in the morgue"),
    "morgue_ttl_ms": gettext_lazy("kept in the morgue for"),
    "weighted": gettext_lazy("priorities"),
}


@dataclass(frozen=True, slots=True)
class QueueLook:
    """One queue for the templates."""

    queue: Queue
    counts: Counts

    @property
    def name(self) -> str:
        """Its name."""
        return self.queue.name

    @property
    def paused(self) -> str:
        """in, out, both or ""."""
        found: str = orders_of(self.queue.layout)["paused"]
        return found

    @property
    def paused_words(self) -> str:
        """The same for people."""
        return str(PAUSED_WORDS.get(self.paused, ""))

    @property
    def lag(self) -> str:
        """How long the longest waiting ready job is overdue; "" when nothing is due."""
        return duration(self.counts.lag_seconds) if self.counts.lag_seconds >= 1 else ""

    @property
    def epoch(self) -> int:
        """Which change of the number of shards it is in."""
        return int(self.queue.layout["epoch"])

    @property
    def draining(self) -> list[tuple[int, int]]:
        """(epoch, shards) of former epochs that are still being emptied."""
        return list(self.queue.epochs[:-1])

    @property
    def counters(self) -> list[tuple[str, str, int]]:
        """(word, name, number): what happened since the queue was made."""
        known = self.counts.counters
        return [
            (word, str(COUNTER_NAMES[word]), sum(known.get(one, 0) for one in names)) for word, names in GROUPS.items()
        ]

    @property
    def main_counters(self) -> list[tuple[str, str, int]]:
        """The first three of :attr:`counters`: what a list has room for."""
        return self.counters[:3]

    @property
    def limits(self) -> list[tuple[str, str]]:
        """(name, value) of the limits in force."""
        found: dict[str, Any] = orders_of(self.queue.layout)["limits"]
        return [(str(LIMIT_NAMES[name]), limit_text(name, value)) for name, value in found.items()]

    @property
    def waiting(self) -> int:
        """Delayed and ready ones."""
        return self.counts.delayed + self.counts.ready


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """One worker process for the templates."""

    name: str
    host: str
    running: object
    threads: object
    dispatcher: bool
    quarantine: bool
    stopping: bool
    seen: When | None
    lost: bool


def limit_text(name: str, value: Any) -> str:
    """A limit of :func:`orders_of` for people."""
    if name == "weighted":
        return _("weighted")
    return duration(value / 1000) if name == "morgue_ttl_ms" else str(value)


def workers_of(broker: Broker, now_ms: float, queue: str = "") -> list[WorkerLook]:
    """The worker processes (that serve ``queue``) as the registry has them, the lost ones last."""
    looks = []
    for info in broker.workers():
        queues = info.get("queues") or ()
        if queue and isinstance(queues, (list, tuple)) and queues and queue not in queues:
            continue
        looks.append(
            WorkerLook(
                name=str(info["name"]),
                host=str(info.get("host", "")),
                running=info.get("running", "–"),
                threads=info.get("threads", "–"),
                dispatcher=bool(info.get("dispatcher")),
                quarantine=bool(info.get("quarantine")),
                stopping=bool(info.get("stopping")),
                seen=moment(info["seen_ms"], now_ms),
                lost=now_ms - info["seen_ms"] > LOST_AFTER * 1000,
            )
        )
    return sorted(looks, key=lambda one: (one.lost, one.name))
