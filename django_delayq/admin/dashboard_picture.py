"""The dashboard's first picture: what it is told, as words for the templates. So it says the same without a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..status import Change
from . import dashboard_words as words
from .dashboard_data import HEATS, PLACES, Wish, level
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
    """An answer of :mod:`.dashboard_data` in words.

    Args:
        told: the answer, of a look with a span.
        change: since an earlier look; without one nothing is said of what goes on.
        urls: where it leads to.
    """

    told: Mapping[str, Any]
    wish: Wish
    change: Change | None
    urls: Addresses

    @property
    def time(self) -> str:
        """When that was."""
        now = moment(self.told["now_ms"], self.told["now_ms"])
        return now.full.partition("(")[2].rstrip(")") if now else ""

    @property
    def totals(self) -> dict[str, str]:
        """The tiles."""
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
        """What somebody should do something about."""
        return list(self.told["warnings"])

    @property
    def bars(self) -> list[tuple[str, str]]:
        """The backlog as a table."""
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
        """How many of how many."""
        return str(self.told["queues_said"])

    @property
    def queues(self) -> list[dict[str, Any]]:
        """Rows of the table."""
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
        """What the strongest colour stands for."""
        return words.grouped(self._most)

    @property
    def heat_more(self) -> str:
        """What is left out."""
        return str(self.told["heat_more"])

    @property
    def workers(self) -> list[dict[str, Any]]:
        """Worker processes, and what they run."""
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
        """How many are left out."""
        return str(self.told["workers_more"])

    @property
    def redis(self) -> words.Facts:
        """Facts of the server."""
        return list(self.told["redis"])

    @property
    def outbox(self) -> words.Facts:
        """Facts of the durable jobs."""
        return list(self.told["outbox"])


def tiles(picture: Picture | None, urls: Addresses) -> list[tuple[str, str, str, str]]:
    """(key, name, text, address) of the totals."""
    texts = picture.totals if picture else {}
    return [
        (key, str(name), texts.get(key, "–"), urls.jobs(place=place) if place else "") for key, name, place in TILES
    ]


def listed(place: str) -> str:
    """The job list in which the jobs of a place stand."""
    return "waiting" if place in ("delayed", "ready") else place


def busy(worker: Mapping[str, Any]) -> str:
    """How many of its threads run something."""
    return _("%(running)s of %(threads)s busy") % {"running": worker["running"], "threads": worker["threads"]}


def zone_ms() -> int:
    """What the current time zone adds to UTC now, ms, so that the browser's clock says the same as the server's."""
    offset = timezone.localtime().utcoffset() if timezone.is_aware(timezone.now()) else None
    return int(offset.total_seconds() * 1000) if offset else 0
