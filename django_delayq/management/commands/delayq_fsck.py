"""Command ``manage.py delayq_fsck``: check the consistency of the data in Redis."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from ... import connections
from ...core.figures import Figures
from ...core.fsck import check
from ...status.formatting import printable
from ..base import DelayQCommand


class Command(DelayQCommand):
    """Command that checks the consistency of the data in Redis."""

    help = (
        "Checks the consistency of the data in Redis. Exit code 1 if a violation is left unrepaired, or a part of a "
        "cluster could not be checked."
    )
    examples = ("delayq_fsck", "delayq_fsck --queues orders --repair")

    options = """
        --queues QUEUES  only these queues (default: all)
        --repair         repair what can be repaired without losing a job
        --json           print one JSON object
    """

    def run(self, **options: Any) -> None:
        """Check, print, and fail if violations remain."""
        broker, queues = connections.broker(), options["queues"] or ()
        for name in queues:
            broker.require_queue(name)
        with self.progress("fsck", unit="entries") as progress:
            report = check(broker, queues=queues, repair=options["repair"], progress=progress.update)
        violations = len(report.violations)
        counts = {"checked": report.checked, "violations": report.violations, "repaired": report.repaired}
        self.print_answer(
            {**counts, "unreachable": report.unreachable},
            *(self.style.WARNING(printable(violation, 500)) for violation in report.violations),
            f"{report.checked} entries checked, {violations} violations, {report.repaired} repaired",
        )
        if report.unreachable:
            missing = printable("; ".join(report.unreachable), 2000)
            raise CommandError(f"not checked, because no answer came: {missing}. Run the command again when all do")
        if not queues:  # a part of the deployment gives no total for the metric
            found = {("fsck", "violations"): violations, ("fsck", "at_ms"): int(broker.now_ms())}
            broker.note_figures(Figures(counts=found), replace=True)
        if violations > report.repaired:
            hint = "" if options["repair"] else ": run the command again with --repair"
            raise CommandError(f"{violations - report.repaired} violations are left{hint}")
