"""First rendering of the dashboard: its data as texts for the templates, equal to what the script shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..status import Change
from . import dashboard_texts as words
from .dashboard_data import HEATS, PLACES, DashboardQuery, level
from .dashboard_urls import Addresses
from .words import moment

__all__ = ["Picture", "tiles", "zone_ms"]

PAUSED: Final = {
    "in": gettext_lazy("paused for new jobs"),
    "out": gettext_lazy("paused for workers"),
    "both": gettext_lazy("paused"),
}
#: key, name and job list of each total
TILES: Final = (
    ("lag", gettext_lazy("lag"), ""),
    ("busy", gettext_lazy("busy threads"), ""),
    ("delayed", gettext_lazy("delayed"), "waiting"),
    ("ready", gettext_lazy("ready"), "waiting"),
    ("reserved", gettext_lazy("reserved"), "reserved"),
    ("gated", gettext_lazy("gated"), "gated"),
    ("failed", gettext_lazy("failed"), "failed"),
    ("morgue", gettext_lazy("in the morgue"), "morgue"),
    ("done_rate", gettext_lazy("done per second"), ""),
    ("failing_rate", gettext_lazy("failing per second"), ""),
    ("p50", gettext_lazy("lateness, p50"), ""),
    ("p99", gettext_lazy("lateness, p99"), ""),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """View model of a response of :mod:`.dashboard_data`.

    Args:
        told: the response, of a snapshot with a span.
        wish: the query.
        change: difference from an earlier snapshot; without one no rates are shown.
        urls: URLs of the linked pages.
    """

    told: Mapping[str, Any]
    wish: DashboardQuery
    change: Change | None
    urls: Addresses

    @property
    def time(self) -> str:
        """Time of the snapshot."""
        now = moment(self.told["now_ms"], self.told["now_ms"])
        return now.full.partition("(")[2].rstrip(")") if now else ""

    @property
    def totals(self) -> dict[str, str]:
        """Texts of the tiles."""
        told, total = self.told["totals"], self.change.total if self.change else None
        texts = {place: words.grouped(told[place]) for place in PLACES}
        texts["lag"] = words.lag(told["lag"])
        texts["busy"] = f"{words.grouped(told['busy'])} / {words.grouped(told['threads'])}"
        texts["done_rate"] = words.rate(total.done if total else None)
        texts["failing_rate"] = words.rate(total.failing if total else None)
        texts["p50"] = words.millis(total.lateness.quantile(0.5) if total else None)
        texts["p99"] = words.millis(total.lateness.quantile(0.99) if total else None)
        return texts

    @property
    def warnings(self) -> list[str]:
        """Warnings that need an operator's attention."""
        return list(self.told["warnings"])

    @property
    def bars(self) -> list[tuple[str, str]]:
        """Backlog as a table."""
        told = self.told["backlog"]
        unit = _("min") if told["span"] == "hour" else _("h")
        rows = [(f"{place}–{place + 1} {unit}", count) for place, count in enumerate(told["bins"])]
        return [
            (_("now"), words.grouped(told["due"])),
            *((when, words.grouped(count)) for when, count in rows),
            (_("later"), words.grouped(told["later"])),
        ]

    @property
    def queues_said(self) -> str:
        """Number of queues shown and in all."""
        return str(self.told["queues_said"])

    @property
    def queues(self) -> list[dict[str, Any]]:
        """Rows of the queue table."""
        return [self._queue(queue) for queue in self.told["queues"]]

    def _queue(self, queue: Mapping[str, Any]) -> dict[str, Any]:
        name, paused = queue["name"], queue["paused"]
        rates = self.change.queues.get(name) if self.change else None
        verb = "resume" if paused else "pause"
        act = _("Resume") if paused else _("Pause")
        return {
            "name": name,
            "url": self.urls.queue(name),
            "paused": str(PAUSED.get(paused, "")),
            "texts": {
                **{place: words.grouped(queue[place]) for place in PLACES},
                "lag": words.lag(queue["lag"]),
                "done": words.rate(rates.done if rates else None),
            },
            "urls": {place: self.urls.jobs(name, listed(place)) for place in PLACES},
            "act": act,
            "act_label": f"{act} {name}",
            "act_url": self.urls.verb(verb, name),
        }

    @property
    def heat(self) -> list[dict[str, Any]]:
        """Rows of the heat map."""
        at, most = list(HEATS).index(self.wish.heat), self._most
        return [
            {
                "name": row["name"],
                "epoch": row["epoch"],
                "cells": [(words.grouped(cell[at]), level(cell[at], most)) for cell in row["shards"]],
            }
            for row in self.told["heat"]
        ]

    @property
    def _most(self) -> int:
        at = list(HEATS).index(self.wish.heat)
        return max((cell[at] for row in self.told["heat"] for cell in row["shards"]), default=0)

    @property
    def heat_most(self) -> str:
        """Number that the strongest colour stands for."""
        return words.grouped(self._most)

    @property
    def heat_more(self) -> str:
        """Note on rows that are left out."""
        return str(self.told["heat_more"])

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Worker processes and their running jobs."""
        now_ms = self.told["now_ms"]
        return [
            {
                **worker,
                "busy": busy(worker),
                "seen": _("heard of %s ago") % words.lag((now_ms - worker["seen_ms"]) / 1000),
                "jobs": [self._job(job, now_ms) for job in worker["jobs"]],
            }
            for worker in self.told["workers"]
        ]

    def _job(self, job: Mapping[str, Any], now_ms: float) -> dict[str, Any]:
        left = job["lease_ms"]
        return {
            "key": f"{job['slot']}/{job['started_ms']}/{job['queue']}/{job['id']}",
            "task": job["task"],
            "id": f"{job['id']} +{job['ids'] - 1}".strip() if job["ids"] > 1 else job["id"],
            "url": self.urls.job(f"{job['queue']}/{job['id']}"),
            "since": _("for %s") % words.millis(max(0.0, now_ms - job["started_ms"])),
            "lease": "" if left is None else _("lease: %s") % words.millis(max(0.0, left - now_ms)),
        }

    @property
    def workers_more(self) -> str:
        """Note on workers that are left out."""
        return str(self.told["workers_more"])

    @property
    def redis(self) -> words.Facts:
        """Facts about the Redis server."""
        return list(self.told["redis"])

    @property
    def outbox(self) -> words.Facts:
        """Facts about the outbox."""
        return list(self.told["outbox"])


def tiles(picture: Picture | None, urls: Addresses) -> list[tuple[str, str, str, str]]:
    """Return (key, name, text, URL) of the totals."""
    texts = picture.totals if picture else {}
    return [
        (key, str(name), texts.get(key, "–"), urls.jobs(place=place) if place else "") for key, name, place in TILES
    ]


def listed(place: str) -> str:
    """Return the job list that contains the jobs of a place."""
    return "waiting" if place in ("delayed", "ready") else place


def busy(worker: Mapping[str, Any]) -> str:
    """Return how many threads of a worker are busy."""
    return _("%(running)s of %(threads)s busy") % {"running": worker["running"], "threads": worker["threads"]}


def zone_ms() -> int:
    """Return the current UTC offset of the time zone in ms, for the clock in the browser."""
    offset = timezone.localtime().utcoffset() if timezone.is_aware(timezone.now()) else None
    return int(offset.total_seconds() * 1000) if offset else 0
