"""``manage.py shop_night``: the shop's nightly Spark work. For cron.

Each step may be repeated, because finished work is recognised by its ids. The same command therefore resumes a night
that was interrupted.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from datetime import date, timedelta
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.utils import timezone

#: a younger order may still be on its way into the queue
GRACE = timedelta(minutes=10)


def a_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day; write it like 2026-11-21") from None


def span(text: str) -> timedelta:
    if not text.isdigit():
        raise ArgumentTypeError(f"{text!r} is no number of seconds")
    return timedelta(seconds=int(text))


class Command(BaseCommand):
    help = (
        "Schedules tonight's greetings, puts back what is missing of unpaid orders' cancellations, and brings the "
        "history up to date. Needs what `manage.py delayq_pipeline doctor` asks for."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--day",
            type=a_day,
            help="whose greetings these are (default: today); a customer gets one "
            "for each day, however often this runs",
        )
        parser.add_argument(
            "--grace",
            type=span,
            default=GRACE,
            metavar="SECONDS",
            help="leave orders alone that are younger than this (600)",
        )

    def handle(self, *args: Any, day: date | None, grace: timedelta, **options: Any) -> None:
        day = day or timezone.localdate()
        self.pipeline(
            "bulk",
            "--model",
            "shop.Customer",
            "--task",
            "shop.greet",
            "--id",
            f"night:{{id}}:{day}",
            "--args",
            "id,email",
            "--due",
            "+5m",
            "--run-id",
            f"night-{day}",
            "--yes",
        )
        self.pipeline(
            "reconcile",
            "--model",
            "shop.Order",
            "--filter",
            json.dumps({"status": "placed"}),
            "--task",
            "shop.cancel_order",
            "--id",
            "order-{id}",
            "--args",
            "id",
            "--due",
            "expires_at",
            "--created",
            "created_at",
            "--grace",
            f"{grace.total_seconds():g}s",
        )
        self.pipeline("run")
        self.pipeline("compact")
        self.pipeline("purge")

    def pipeline(self, *arguments: str) -> None:
        """Run one step. An error ends the night; the next call of the command resumes there."""
        self.stdout.write(f"delayq_pipeline {arguments[0]}")
        call_command("delayq_pipeline", *arguments, stdout=self.stdout, stderr=self.stderr)
