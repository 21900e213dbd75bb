"""A lively deployment for the dashboard: queues of every kind, workers that say what they run, and what has ended."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.job import Job
from django_delayq.core.outcomes import ack
from tests.admin.support import Yard

TASKS = ("shop.cancel_order", "shop.remind", "shop.send_newsletter", "shop.check_payment")


def settle(yard: Yard, jobs: list[Job], *, late_ms: int = 40, took_ms: int = 120) -> None:
    """These ran, so late and so long, and Redis knows the figures of it."""
    ends = [ack(job, job.due_ms + late_ms, took_ms) for job in jobs]
    yard.queue.settle(ends)
    tally = yard.queue.tally
    tally.ended(yard.queue.name, ends)
    tally.flush()


def say(broker: Broker, name: str, jobs: list[Job], *, threads: int = 8, **more: Any) -> None:
    """A worker's announcement: it runs these."""
    now_ms = int(broker.now_ms())
    running = [
        {
            "slot": slot,
            "queue": job.queue,
            "id": job.id,
            "task": job.task,
            "started_ms": now_ms - 1_700 * (slot + 1),
            "ids": 1,
        }
        for slot, job in enumerate(jobs)
    ]
    broker.announce(
        name,
        {
            "host": name.partition("@")[2].partition(":")[0],
            "pid": int(name.rpartition(":")[2]),
            "queues": ["orders", "crm", "mail"],
            "threads": threads,
            "running": len(jobs),
            "rss_mib": 84,
            "started": now_ms - 3_600_000,
            "jobs": running,
            **more,
        },
    )


def lively(broker: Broker) -> dict[str, Yard]:
    """Several queues with work in every place, two workers and a dispatcher."""
    orders = Yard(broker, "orders", shards=16, worker="worker-0@app-1:2107")
    crm = Yard(broker, "crm", shards=8, worker="worker-1@app-2:2117")
    mail = Yard(broker, "mail", shards=4, worker="worker-1@app-2:2117")
    for number in range(400):
        orders.put(f"order-{number}", number, task=TASKS[number % 4], delay_ms=9_000 * (number + 1) + number**2 * 40)
    for number in range(24):
        orders.put(f"now-{number}", number, task=TASKS[number % 4])
    for number in range(30):
        crm.add(f"customer-{number}", {"name": "Ada"}, str(number))
    for number in range(9):
        mail.put(f"mail-{number}", number, task="shop.send_newsletter")
    running = orders.take()
    settle(orders, running[6:20])
    orders.failed(running[20], delay_ms=30_000)
    orders.buried(running[21])
    say(broker, orders.worker, running[:3])
    held = mail.take()
    settle(mail, held[2:4], late_ms=900)
    mail.failed(held[4], delay_ms=20_000, message="connection refused")
    mail.failed(held[5], delay_ms=60_000, message="connection refused")
    say(broker, mail.worker, held[:2], threads=4, stopping=True)
    broker.announce(
        "dispatcher@app-1:2100",
        {"host": "app-1", "pid": 2100, "queues": [], "threads": 0, "running": 0, "dispatcher": True, "rss_mib": 51},
    )
    now_ms = int(broker.now_ms())
    for number in range(5):
        crm.put(f"late-{number}", number, due_ms=now_ms - 95_000 - number, delay_ms=None)
    broker.pause("mail", "out")
    broker.queue("uploads", kind="pull", shards=2)
    return {"orders": orders, "crm": crm, "mail": mail}


class _Tiles(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._key = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._key = dict(attrs).get("data-total") or ""

    def handle_data(self, data: str) -> None:
        if self._key:
            self.found[self._key] = data
            self._key = ""


def tiles(html: bytes) -> dict[str, str]:
    parser = _Tiles()
    parser.feed(html.decode())
    return parser.found
