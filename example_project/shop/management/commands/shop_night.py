"""``manage.py shop_night``: the shop's nightly Spark work. For cron.

Each step may be repeated, because finished work is recognised by its ids. The same command therefore resumes a night
that was interrupted.
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import date
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.utils import timezone


class Command(BaseCommand):
    help = (
        "Schedules tonight's greetings, puts back what is missing of unpaid orders' cancellations, and brings the "
        "history up to date. Needs what `manage.py delayq_pipeline doctor` asks for."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--day", type=date.fromisoformat, help="of the greetings (today); a customer gets one for each day")
        add("--grace", type=float, default=600, metavar="SECONDS", help="leave younger orders alone (600)")

    def handle(self, *args: Any, day: date | None, grace: float, **options: Any) -> None:
        day = day or timezone.localdate()
        self.step(
            "delayq_pipeline bulk --model shop.Customer --task shop.greet --args id,email --due +5m --yes"
            f" --id night:{{id}}:{day} --run-id night-{day}"
        )
        self.step(
            'delayq_reconcile --model shop.Order --filter {"status":"placed"} --task shop.cancel_order --id order-{id}'
            f" --args id --due expires_at --created created_at --grace {grace:g}s --json"
        )
        for name in ("run", "compact", "purge"):
            self.step(f"delayq_pipeline {name}")

    def step(self, command: str) -> None:
        """Run one step. An error ends the night; the next call of the command resumes there."""
        self.stdout.write(command)
        call_command(*command.split(), stdout=self.stdout, stderr=self.stderr)
