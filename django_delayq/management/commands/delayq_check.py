"""Command ``manage.py delayq_check``: check the requirements of a worker."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ... import connections
from ..base import DelayQCommand, positive
from ..diagnosis import findings


class Command(DelayQCommand):
    """Command that checks the requirements of a worker."""

    help = (
        "Checks the settings, the database, Redis (version, persistence, eviction policy, scripts, clock), the workers "
        "and the task names of stored jobs. Exit code 1 if there is an error."
    )
    examples = ("delayq_check", "delayq_check --deploy --fail-level warning", "delayq_check --max-outbox-age 300")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--deploy", action="store_true", help="also run the checks for production")
        parser.add_argument(
            "--fail-level",
            choices=("warning", "error"),
            default="error",
            help="lowest level that makes the exit code 1 (default: error)",
        )
        parser.add_argument(
            "--max-outbox-age",
            type=positive(float, "a number of seconds"),
            metavar="SECONDS",
            help="report an error if a durable job has waited longer than this to be sent to Redis",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, **options: Any) -> None:
        """Run the checks, print the findings, and fail on errors."""
        found = findings(connections.broker, deploy=options["deploy"], max_outbox_age=options["max_outbox_age"])
        results = self.print_findings(found)
        if options["json"]:
            self.print_answer([finding.values() for finding in results])
        errors = sum(finding.level == "ERROR" for finding in results)
        warnings = sum(finding.level == "WARN" for finding in results)
        if errors or (warnings and options["fail_level"] == "warning"):
            raise CommandError(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
