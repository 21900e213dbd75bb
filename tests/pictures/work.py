"""Work beside that of the shop's customers, so that every page has content. Imported when Django is set up."""

from __future__ import annotations

import random
import time
from datetime import timedelta

from django.utils import timezone

from django_delayq import schedule_many
from django_delayq.models.history import PipelineRun
from shop.models import Customer
from shop.tasks import greet
from tests.admin.pasts import lively_past

#: greetings for the next hour (and as many for the next day), and for now
LATER, NOW = 4_000, 300


def fill(seconds: float) -> None:
    """Put work into the queue for ``seconds``, and a made-up past into the tables of the history."""
    lively_past(24 * 7)
    dice = random.Random(7)
    customers = list(Customer.objects.values_list("pk", flat=True))
    providers = ("mail.example",) * 20 + ("slow.example", "nowhere.example")

    def greetings(delays: list[float], name: str) -> None:
        rows = [
            {
                "args": [dice.choice(customers), f"c{number}@{dice.choice(providers)}"],
                "id": f"greeting-{name}-{number}",
                "delay": timedelta(seconds=delay),
            }
            for number, delay in enumerate(delays)
        ]
        schedule_many(greet, rows)

    greetings([seconds + dice.triangular(-seconds, 3_700, 2_400) for _ in range(LATER)], "evening")
    greetings([dice.uniform(3_600, 24 * 3_600) for _ in range(LATER)], "tomorrow")
    greetings([dice.uniform(0, seconds) for _ in range(int(NOW * max(seconds, 30) / 60))], "today")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        print(f"\rcustomers buy for another {left:3.0f} s", end="", flush=True)
        time.sleep(min(left, 5))
    print()
    _runs()


def _runs() -> None:
    """Store pipeline runs of every kind of end."""
    now = timezone.now()

    def run(run_id: str, kind: str, minutes: float, **more: object) -> None:
        started = now - timedelta(minutes=minutes)
        took = more.pop("took", 40)
        ended = started + timedelta(seconds=float(str(took))) if more.get("state") else None
        PipelineRun.objects.create(
            **{
                "run_id": run_id,
                "kind": kind,
                "started_at": started,
                "seen_at": ended or now,
                "ended_at": ended,
                **more,
            }
        )

    run(
        "greetings-2026",
        "bulk",
        6,
        queue="greetings",
        task="shop.greet",
        rows=640_000,
        total=1_000_000,
        created=640_000,
    )
    run("history-4", "history", 16, state="finished", rows=81_402, total=81_402, took=14)
    unread = "FileNotFoundError: /srv/lists/newsletter.parquet"
    run("newsletter", "bulk", 31, state="failed", queue="greetings", task="shop.greet", error=unread, took=2)
    run("orders", "reconcile", 60, state="finished", queue="orders", rows=12_200, total=12_200, created=7, known=12_193)
    run("compact", "compact", 400, state="finished", took=95)
