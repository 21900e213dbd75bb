"""``manage.py shop_pictures FOLDER``: the history as a table, as charts, and as one line of JSON."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from django_delayq.admin.charts import Chart
from django_delayq.history.periods import SeriesQuery, named
from django_delayq.history.series import COUNTS, FAILURES, summary
from django_delayq.models.history import HourlyStat
from django_delayq.settings.conf import conf
from shop import charts, seconds
from shop.tasks import greet

HEAD = ("hour (UTC)", "queue", "task", "runs", "succeeded", "failed", "retries", "late p50", "late p99", "run p50")


class Command(BaseCommand):
    help = "Writes the history of the last 24 hours as charts into a folder, and prints it as a table."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "folder", nargs="?", type=Path, help="for the page with charts; without one only the table is made"
        )
        parser.add_argument(
            "--queue",
            default="greetings",
            help="which is drawn by the second, and whose totals the JSON has (default greetings)",
        )

    def handle(self, *args: Any, folder: Path | None, queue: str, **options: Any) -> None:
        period = named("24h")
        rows = SeriesQuery(period=period).rows(HourlyStat.objects.all()).order_by("hour", "queue", "task")
        table = _table(list(rows))
        self.stdout.write(table)
        mine = summary(SeriesQuery(queue=queue, period=period), period)
        files: list[Path] = []
        if folder is not None:
            drawn = charts.by_the_hour(summary(SeriesQuery(period=period), period))
            drawn += self.fine(queue)
            files = charts.write(folder, f"The history, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", table, drawn)
        totals = {name: mine.total[name] for name in COUNTS}
        self.stdout.write(json.dumps({**totals, "files": [str(file) for file in files]}))

    def fine(self, queue: str) -> list[Chart]:
        """Return the charts by the second, if the history is in a folder of this machine."""
        root = conf().pipeline.root
        found = None if "://" in root else seconds.read(Path(root), queue, greet.name)
        return [] if found is None else charts.by_the_second(found, greet.name)


def _table(rows: list[HourlyStat]) -> str:
    cells = [
        HEAD,
        *(
            (
                f"{row.hour:%Y-%m-%d %H}h",
                row.queue,
                row.task or "-",
                f"{row.runs:,}",
                f"{row.succeeded:,}",
                f"{sum(getattr(row, name) for name in FAILURES):,}",
                f"{row.retries:,}",
                _ms(row.lateness_p50_ms),
                _ms(row.lateness_p99_ms),
                _ms(row.duration_p50_ms),
            )
            for row in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _ms(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"
