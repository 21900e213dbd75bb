"""``manage.py shop_night``: the shop's nightly Spark work. For cron.

Each step may be repeated, because finished work is recognised by its ids. The same command therefore resumes a night
that was interrupted.
"""

from __future__ import annotations

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
        add = parser.add_argument
        add("--day", type=a_day, help="whose greetings these are (default: today); a customer gets one for each day")
        add("--grace", type=span, default=GRACE, metavar="SECONDS", help="leave younger orders alone (600)")

    def handle(self, *args: Any, day: date | None, grace: timedelta, **options: Any) -> None:
        day = day or timezone.localdate()
        self.pipeline(
            "bulk --model shop.Customer --task shop.greet --args id,email --due +5m --yes"
            f" --id night:{{id}}:{day} --run-id night-{day}"
        )
        self.pipeline(
            'reconcile --model shop.Order --filter {"status":"placed"} --task shop.cancel_order --id order-{id}'
            f" --args id --due expires_at --created created_at --grace {grace.total_seconds():g}s"
        )
        for step in ("run", "compact", "purge"):
            self.pipeline(step)

    def pipeline(self, command: str) -> None:
        """Run one step. An error ends the night; the next call of the command resumes there."""
        self.stdout.write(f"delayq_pipeline {command.partition(' ')[0]}")
        call_command("delayq_pipeline", *command.split(), stdout=self.stdout, stderr=self.stderr)
