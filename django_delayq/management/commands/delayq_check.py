"""``manage.py delayq_check``: is everything as a worker needs it?"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ... import connections
from ..base import DelayQCommand, positive
from ..diagnosis import answers


class Command(DelayQCommand):
    """See ``help``."""

    help = (
        "Checks settings, database, Redis (version, persistence, eviction policy, scripts, clock) and unknown tasks. "
        "Exit code 1 if there is an error."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("--deploy", action="store_true", help="also check what matters in production only")
        parser.add_argument(
            "--fail-level",
            choices=("warning", "error"),
            default="error",
            help="what makes the exit code 1 (default: error)",
        )
        parser.add_argument(
            "--max-outbox-age",
            type=positive(float, "a number of seconds"),
            metavar="SECONDS",
            help="an error if a durable job has waited longer than this to be sent to Redis",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, **options: Any) -> None:
        """Ask, print, and fail if something is wrong."""
        styles = {"OK": self.style.SUCCESS, "WARN": self.style.WARNING, "ERROR": self.style.ERROR}
        found = []
        for finding in answers(connections.broker, deploy=options["deploy"], max_outbox_age=options["max_outbox_age"]):
            found.append(finding)
            if not options["json"]:
                self.stdout.write(f"{styles[finding.level](finding.level.ljust(5))} {finding.what}: {finding.text}")
        if options["json"]:
            self.print_json([{"level": item.level, "what": item.what, "text": item.text} for item in found])
        errors = sum(finding.level == "ERROR" for finding in found)
        warnings = sum(finding.level == "WARN" for finding in found)
        if errors or (warnings and options["fail_level"] == "warning"):
            raise CommandError(f"{errors} errors, {warnings} warnings")
