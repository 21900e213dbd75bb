"""Query of the dashboard: search, order and what is coloured, parsed from a URL and written into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from django.utils.translation import gettext_lazy

from ..status.snapshot import PLACES
from .dashboard_snapshots import SPANS

if TYPE_CHECKING:
    from django.http import QueryDict

    from ..status import QueueStatus
    from .dashboard_snapshots import DashboardSnapshot

HEATS: Final[Mapping[str, Any]] = {
    "ready": gettext_lazy("ready"),
    "delayed": gettext_lazy("delayed"),
    "reserved": gettext_lazy("reserved"),
}
#: columns by which queues can be sorted
COLUMNS: Final[Mapping[str, Any]] = {
    "name": gettext_lazy("Queue"),
    "delayed": gettext_lazy("Delayed"),
    "ready": gettext_lazy("Ready"),
    "reserved": gettext_lazy("Reserved"),
    "gated": gettext_lazy("Gated"),
    "failed": gettext_lazy("Failed"),
    "morgue": gettext_lazy("Morgue"),
    "lag": gettext_lazy("Lag"),
    "done": gettext_lazy("Done/s"),
}
SPAN_NAMES: Final = {"hour": gettext_lazy("in the next hour"), "day": gettext_lazy("in the next day")}
#: longest search text
_TEXT: Final = 64


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """Query of the dashboard.

    Attributes:
        text: a part of the names of the queues.
        sort: one of ``COLUMNS``; "" = by lag, then by activity.
        reverse: largest first.
        span: how far the backlog looks ahead, a key of ``SPANS``.
        heat: number that colours the shards, a key of ``HEATS``.
    """

    text: str = ""
    sort: str = ""
    reverse: bool = True
    span: str = "hour"
    heat: str = "ready"

    @classmethod
    def of(cls, query: QueryDict) -> DashboardQuery:
        """Return the query of a URL; invalid parameters are ignored."""
        sort, span, heat, down = (query.get(name, "") for name in ("sort", "span", "heat", "down"))
        sort = sort if sort in COLUMNS else ""
        return cls(
            text=query.get("q", "").strip()[:_TEXT],
            sort=sort,
            reverse=down == "1" if down in ("0", "1") else sort != "name",
            span=span if span in SPANS else "hour",
            heat=heat if heat in HEATS else "ready",
        )

    def url(self, **changes: Any) -> str:
        """Return the URL of the page with a changed query, relative to the page."""
        new = replace(self, **changes)
        parameters = {
            "q": new.text,
            "sort": new.sort,
            "down": str(int(new.reverse)) if new.sort else "",
            "span": new.span if new.span != "hour" else "",
            "heat": new.heat if new.heat != "ready" else "",
        }
        return f"?{urlencode({name: value for name, value in parameters.items() if value})}"

    def columns(self) -> list[tuple[str, str, str, str]]:
        """Return (name, label, URL that sorts by it, current sort direction) of each column."""
        return [self._column(name, str(label)) for name, label in COLUMNS.items()]

    def _column(self, name: str, label: str) -> tuple[str, str, str, str]:
        is_sorted = self.sort == name
        down = not self.reverse if is_sorted else name != "name"
        order = ("descending" if self.reverse else "ascending") if is_sorted else ""
        return name, label, self.url(sort=name, reverse=down), order

    def spans(self) -> list[tuple[str, str, bool]]:
        """Return (label, URL, whether it is chosen) of each span."""
        return [(str(label), self.url(span=name), name == self.span) for name, label in SPAN_NAMES.items()]

    def heats(self) -> list[tuple[str, str, bool]]:
        """Return (label, URL, whether it is chosen) of each number that can colour the shards."""
        return [(str(label), self.url(heat=name), name == self.heat) for name, label in HEATS.items()]

    def matching(self, source: DashboardSnapshot) -> list[QueueStatus]:
        """Return the queues that match, in order."""
        text = self.text.lower()
        rates = source.change.queues if source.change is not None else {}

        def done(queue: QueueStatus) -> tuple[float, ...]:
            """Return the rate, or 0 if unknown, and the total."""
            rate = rates.get(queue.name)
            return (rate.done if rate else 0.0, queue.done)

        def activity(queue: QueueStatus) -> tuple[float, ...]:
            counts = queue.counts
            return (queue.lag_seconds, *done(queue), counts.ready, counts.reserved, counts.delayed)

        keys: dict[str, Any] = {
            "": activity,
            "name": lambda queue: queue.name,
            "lag": lambda queue: queue.lag_seconds,
            "done": done,
            **{place: lambda queue, place=place: getattr(queue.counts, place) for place in PLACES},
        }
        matching = sorted((one for one in source.snapshot.queues if text in one.name.lower()), key=keys["name"])
        return sorted(matching, key=keys[self.sort], reverse=self.reverse)
