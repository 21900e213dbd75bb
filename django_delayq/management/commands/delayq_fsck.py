"""Command ``manage.py delayq_fsck``: check the invariants of the stored data."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ... import connections
from ...core.operations.fsck import check
from ...status.formatting import printable
from ..base import DelayQCommand, queue_list


class Command(DelayQCommand):
    """Command that checks the consistency of the data in Redis."""

    help = "Checks that what Redis stores is consistent. Exit code 1 if something is wrong and was not repaired."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--queues", type=queue_list, default=(), metavar="A,B", help="only these queues")
        parser.add_argument("--repair", action="store_true", help="mend what can be mended without losing a job")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, **options: Any) -> None:
        """Check, print, and fail if violations remain."""
        broker = connections.broker()
        with self.progress("fsck", unit="entries") as shown:
            report = check(broker, queues=options["queues"], repair=options["repair"], progress=shown.update)
        wrong = len(report.violations)
        if options["json"]:
            self.print_json({"checked": report.checked, "violations": report.violations, "repaired": report.repaired})
        else:
            for violation in report.violations:
                self.stdout.write(self.style.WARNING(printable(violation, 500)))
            self.stdout.write(f"{report.checked} entries checked, {wrong} violations, {report.repaired} repaired")
        if not options["queues"]:  # a part of the deployment gives no total for the metric
            broker.set_level("fsck_violations", wrong)
        if wrong > report.repaired:
            hint = "" if options["repair"] else ": run it again with --repair"
            raise CommandError(f"{wrong - report.repaired} violations{hint}")
