"""``manage.py delayq_status``: what lies where, and who works on it."""

from __future__ import annotations

import threading
import time
from argparse import ArgumentParser
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from django_delayq import connections
from django_delayq.conf import conf
from django_delayq.core.broker import Broker
from django_delayq.core.inspector import Counts
from django_delayq.core.rules import NOTHING_ORDERED, orders_of
from django_delayq.core.task import registry
from django_delayq.management.base import DelayQCommand, duration, moment, positive, printable, table
from django_delayq.outbox.stock import Stock, stock
from django_delayq.worker.recurring import works_of

#: counters whose growth is shown as a rate
RATES = {"scheduled": ("created", "changed"), "done": ("acked",), "failing": ("failed", "timeout", "crashed")}
#: a worker that was not heard of for so long is shown as lost
LOST_AFTER = 30.0


class Command(DelayQCommand):
    """See ``help``."""

    help = "Shows the queues (delayed, ready, reserved, gated, failed, morgue, lag), the workers and Redis."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--watch", nargs="?", const=2.0, type=positive(float, "a number of seconds"), metavar="SECONDS",
            help="repeat every SECONDS (default 2) with rates, until Ctrl-C",
        )  # fmt: skip

    def run(self, **options: Any) -> None:
        """Print once, or again and again."""
        broker = connections.broker()
        if options["watch"] is None:
            self.show(snapshot(broker), as_json=options["json"])
            return
        self.watch(broker, options["watch"], as_json=options["json"])

    def watch(self, broker: Broker, seconds: float, *, as_json: bool) -> None:
        """Print every ``seconds`` until interrupted."""
        rest = threading.Event()
        before: dict[str, Any] | None = None
        taken_at = 0.0
        try:
            while True:
                now = snapshot(broker)
                taken_before, taken_at = taken_at, time.monotonic()
                if before is not None:
                    add_rates(now["queues"], before["queues"], taken_at - taken_before)
                if not as_json and self.stdout.isatty():
                    self.stdout.write("\x1b[2J\x1b[H", ending="")
                self.show(now, as_json=as_json)
                self.stdout.flush()
                before = now
                rest.wait(seconds)
        except KeyboardInterrupt:
            return

    def show(self, status: dict[str, Any], *, as_json: bool) -> None:
        """Print one snapshot."""
        if as_json:
            self.print_json(status)
            return
        for line in render(status):
            self.stdout.write(line)


def snapshot(broker: Broker) -> dict[str, Any]:
    """The whole status as plain data."""
    status = {
        "queues": _queues(broker),
        "workers": _workers(broker),
        "recurring": _recurring(broker),
        "redis": _redis(broker.server_info()),
    }
    kept = stock(conf().outbox.databases)
    return status if kept is None else {**status, "outbox": kept}


def _queues(broker: Broker) -> list[dict[str, Any]]:
    counts = broker.inspector.all_counts()
    orders = {queue.name: orders_of(queue.layout) for queue in broker.queues()}
    return [{**_queue(one), **orders.get(one.queue, NOTHING_ORDERED)} for one in counts]


def _queue(counts: Counts) -> dict[str, Any]:
    return {
        "name": counts.queue,
        "delayed": counts.delayed,
        "ready": counts.ready,
        "reserved": counts.reserved,
        "gated": counts.gated,
        "failed": counts.failed,
        "morgue": counts.morgue,
        "lag_seconds": round(counts.lag_seconds, 3),
        "counters": counts.counters,
    }


def add_rates(queues: list[dict[str, Any]], before: list[dict[str, Any]], seconds: float) -> None:
    """Add to each queue's status the growth of its counters per second since an earlier status."""
    old = {queue["name"]: queue["counters"] for queue in before}
    for queue in queues:
        was, now = old.get(queue["name"], {}), queue["counters"]
        queue["rates"] = {
            rate: round(max(0, sum(now.get(n, 0) - was.get(n, 0) for n in names)) / max(seconds, 0.001), 1)
            for rate, names in RATES.items()
        }


def _workers(broker: Broker) -> list[dict[str, Any]]:
    now_ms = broker.now_ms()
    return [
        {**info, "seen_seconds_ago": round(max(0.0, now_ms - info["seen_ms"]) / 1000, 1)} for info in broker.workers()
    ]


def _recurring(broker: Broker) -> list[dict[str, Any]]:
    """The recurring tasks that this process knows; another release of the project may know others."""
    works = works_of(registry, settings.TIME_ZONE or "UTC")
    now_ms = broker.now_ms() if works else 0.0
    found = []
    for work in works:
        options = work.task.options
        queue = broker.known_queue(options.queue)
        found.append(
            {
                "task": work.task.name,
                "queue": options.queue,
                "schedule": work.recurrence.text,
                "timezone": work.recurrence.zone or None,
                "missed": options.missed,
                "last_tick": moment(queue.last_tick(work.id) if queue is not None else None),
                "next_tick": moment(work.recurrence.following(now_ms)),
            }
        )
    return sorted(found, key=lambda one: str(one["task"]))


def _redis(info: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": info.get("redis_version"),
        "mode": info.get("redis_mode"),
        "uptime_seconds": info.get("uptime_in_seconds"),
        "used_memory": info.get("used_memory"),
        "used_memory_human": info.get("used_memory_human"),
        "maxmemory": info.get("maxmemory"),
        "maxmemory_policy": info.get("maxmemory_policy"),
        "aof": bool(info.get("aof_enabled")),
        "clients": info.get("connected_clients"),
    }


def render(status: dict[str, Any]) -> list[str]:
    """The status as lines for a terminal."""
    redis = status["redis"]
    lines = [f"Redis {redis['version']}, {redis['used_memory_human']} used, {'AOF' if redis['aof'] else 'no AOF'}", ""]
    places = ("delayed", "ready", "reserved", "gated", "failed", "morgue")
    with_rates = any("rates" in queue for queue in status["queues"])
    last = tuple(f"{rate}/s" for rate in RATES) if with_rates else ("done",)
    with_orders = any(map(_ordered, status["queues"]))
    last += ("ordered",) if with_orders else ()
    rows = []
    for queue in status["queues"]:
        rates = queue.get("rates") or dict.fromkeys(RATES, "-")
        tail = tuple(rates.values()) if with_rates else (queue["counters"].get("acked", 0),)
        tail += (_ordered(queue),) if with_orders else ()
        rows.append((queue["name"], *(queue[place] for place in places), duration(queue["lag_seconds"]), *tail))
    lines += table(("queue", *places, "lag", *last), rows) if rows else ["No queue yet: nothing was ever scheduled."]
    kept = status.get("outbox")
    if kept is not None and any(kept.values()):
        lines += ["", _render_outbox(kept)]
    lines += ["", *_render_workers(status["workers"])]
    return [*lines, "", *_render_recurring(status["recurring"])] if status["recurring"] else lines


def _ordered(queue: dict[str, Any]) -> str:
    """What an operator ordered for a queue, in a few words."""
    words = {"both": "paused", "in": "paused in", "out": "paused out"}.get(queue["paused"], "")
    limits = [name if value is True else f"{name} {value}" for name, value in queue["limits"].items()]
    return ", ".join(filter(None, (words, *limits)))


def _render_outbox(kept: Stock) -> str:
    """Durable jobs in the database, in one line."""
    age = kept["oldest_waiting_seconds"]
    since = "" if age is None else f" (for {duration(age)})"
    return (f"outbox: {kept['waiting']} waiting{since}, {kept['sent']} sent, {kept['buried']} buried, "
            f"{kept['refused']} refused")  # fmt: skip


def _render_workers(workers: list[dict[str, Any]]) -> list[str]:
    if not workers:
        return ["No worker is running. Start one: manage.py delayq_worker"]
    rows = []
    for worker in workers:
        seen = worker["seen_seconds_ago"]
        queues = worker.get("queues") or ()
        rows.append(
            (
                printable(str(worker["name"])),
                printable(", ".join(map(str, queues)) if isinstance(queues, (list, tuple)) else str(queues)),
                worker.get("running", "-"),
                worker.get("threads", "-"),
                "lost" if seen > LOST_AFTER else f"{duration(seen)} ago",
            )
        )
    return table(("worker", "queues", "running", "threads", "seen"), rows, left=2)


def _render_recurring(tasks: list[dict[str, Any]]) -> list[str]:
    head = ("recurring task", "schedule", "time zone", "last tick", "next tick")
    rows = []
    for one in tasks:
        zone = one["timezone"] or "UTC"
        ticks = (_local(one[name], zone) for name in ("last_tick", "next_tick"))
        rows.append((printable(one["task"]), printable(one["schedule"]), zone, *ticks))
    return table(head, rows, left=len(head))


def _local(tick: str | None, zone: str) -> str:
    """A tick as a person of that time zone reads it."""
    return "-" if tick is None else f"{datetime.fromisoformat(tick).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}"
