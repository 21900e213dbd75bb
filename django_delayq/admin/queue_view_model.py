"""View models of queues and workers for the queue pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..core.times import datetime_of
from ..settings.conf import conf
from ..status.reading import queue_status, worker_status
from ..status.snapshot import PLACES
from .formatting import When, duration, exact, grouped, moment

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.counts import Counts
    from ..core.queue import Queue
    from ..status import QueueStatus, WorkerStatus

COUNTER_NAMES: Final = {
    "scheduled": gettext_lazy("scheduled"),
    "done": gettext_lazy("done"),
    "failing": gettext_lazy("failed attempts"),
    "buried": gettext_lazy("buried"),
    "cancelled": gettext_lazy("cancelled"),
}
PAUSED_NAMES: Final = {
    "in": gettext_lazy("paused for new jobs"),
    "out": gettext_lazy("paused for workers"),
    "both": gettext_lazy("paused"),
}
LIMIT_NAMES: Final = {
    "max_length": gettext_lazy("maximum of live jobs"),
    "morgue_max": gettext_lazy("maximum of jobs in the morgue"),
    "morgue_ttl": gettext_lazy("kept in the morgue for"),
    "priorities": gettext_lazy("priorities"),
    "starve_after": gettext_lazy("due jobs starve after"),
}


@dataclass(frozen=True, slots=True)
class QueueViewModel:
    """View model of one queue for the templates."""

    status: QueueStatus
    #: (epoch, shards) of former epochs that are still draining
    draining: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, queue: Queue, counts: Counts) -> QueueViewModel:
        """Return the view model of a queue with these counts."""
        return cls(queue_status(queue, counts), queue.epochs[:-1])

    @property
    def paused_name(self) -> str:
        """Display name of the paused direction."""
        name = str(PAUSED_NAMES.get(self.status.paused, ""))
        ends = [datetime_of(end) for end in self.status.paused_until.values()]
        return _("%(name)s, ends at %(ends)s") % {"name": name, "ends": " / ".join(map(exact, ends))} if ends else name

    @property
    def lag(self) -> str:
        """Overdue time of the longest waiting ready job; "" below a second."""
        return duration(self.status.lag_seconds) if self.status.lag_seconds >= 1 else ""

    @property
    def lags(self) -> list[tuple[int, str, bool]]:
        """(priority, overdue time, is late) of each priority, if the queue has used several."""
        lags, limit = self.status.counts.lag_by_priority, conf().admin.late_after
        return [(one, duration(lag), lag > limit) for one, lag in lags.items()] if len(lags) > 1 else []

    @property
    def is_late(self) -> bool:
        """True if the lag exceeds ``ADMIN["late_after"]``."""
        return self.status.lag_seconds > conf().admin.late_after

    @property
    def places(self) -> list[str]:
        """Numbers of jobs in each of :data:`PLACES`."""
        return [grouped(getattr(self.status.counts, place)) for place in PLACES]

    @property
    def counters(self) -> list[tuple[str, str, int, str]]:
        """(word, name, number, its display text) of events since the queue was created."""
        numbers = ((word, str(name), self.status.counts.counter(word)) for word, name in COUNTER_NAMES.items())
        return [(word, name, number, grouped(number)) for word, name, number in numbers]

    @property
    def main_counters(self) -> list[tuple[str, str, int, str]]:
        """First three of :attr:`counters`, for lists."""
        return self.counters[:3]

    @property
    def limits(self) -> list[tuple[str, str]]:
        """(name, value) of the limits in force."""
        return [(str(LIMIT_NAMES[name]), limit_text(name, value)) for name, value in self.status.limits.items()]

    @property
    def waiting(self) -> int:
        """Number of delayed and ready jobs."""
        return self.status.counts.delayed + self.status.counts.ready


@dataclass(frozen=True, slots=True)
class WorkerViewModel:
    """View model of one worker process for the templates."""

    status: WorkerStatus
    seen: When | None
    #: (label, URL) of the commands that the user may send to it
    commands: Sequence[tuple[str, str]] = ()


def limit_text(name: str, value: Any) -> str:
    """Return the display text of one of a queue's limits, as :class:`QueueStatus` names them."""
    if name == "priorities":
        return _("weighted")
    return duration(value) if name in ("morgue_ttl", "starve_after") else grouped(value)


def _serves(info: Mapping[str, Any], queue: str) -> bool:
    queues, ignored = info.get("queues"), info.get("ignored")
    if isinstance(ignored, list) and queue in ignored:
        return False
    return info.get("all_queues") is True or not isinstance(queues, list) or not queues or queue in queues


def workers_of(broker: Broker, now_ms: float, queue: str = "", *, others: bool = False) -> list[WorkerViewModel]:
    """Return the registered worker processes (that serve ``queue``; with ``others`` the rest), lost ones last."""
    chosen = [info for info in broker.workers() if not queue or _serves(info, queue) != others]
    statuses = [worker_status(info, now_ms) for info in chosen]
    items = [WorkerViewModel(one, moment(one.seen_ms, now_ms)) for one in statuses]
    return sorted(items, key=lambda one: (one.status.lost, one.status.name))
