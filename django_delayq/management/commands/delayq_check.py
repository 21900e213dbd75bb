"""Command ``manage.py delayq_check``: check the requirements of a worker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.template.defaultfilters import pluralize

from ... import connections
from ..base import DelayQCommand
from ..diagnosis import findings


class Command(DelayQCommand):
    """Command that checks the requirements of a worker."""

    help = (
        "Checks the settings, the database, Redis (version, persistence, eviction policy, scripts, clock), the workers "
        "and the task names of stored jobs. Exit code 1 if there is an error."
    )
    examples = ("delayq_check", "delayq_check --deploy --fail-level warning", "delayq_check --max-outbox-age 300")

    options = """
        --deploy                    also run the checks for production
        --fail-level warning|error  lowest level that makes the exit code 1 (default: error)
        --max-outbox-age SECONDS    report an error if a durable job has waited longer than this to be sent to Redis
        --json                      print JSON
    """

    def run(self, **options: Any) -> None:
        """Run the checks, print the findings, and fail on errors."""
        found = findings(connections.broker, deploy=options["deploy"], max_outbox_age=options["max_outbox_age"])
        results = self.print_findings(found)
        if options["json"]:
            self.print_answer([finding.values() for finding in results])
        errors = sum(finding.level == "ERROR" for finding in results)
        warnings = sum(finding.level == "WARN" for finding in results)
        if errors or (warnings and options["fail_level"] == "warning"):
            raise CommandError(f"{errors} error{pluralize(errors)}, {warnings} warning{pluralize(warnings)}")
