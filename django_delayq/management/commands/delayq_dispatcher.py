"""Command ``manage.py delayq_dispatcher``: do the housekeeping for workers that run with ``--no-dispatcher``."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...runtime import wiring
from ...settings.conf import conf
from ..base import LoggingCommand
from . import delayq_worker


class Command(delayq_worker.Command):
    """Command that runs a dispatcher without a consumer."""

    help = (
        "Does the housekeeping of the queues without running jobs: wakes workers when jobs become due, and returns the "
        "jobs of dead workers to their queues. Several dispatchers may run. Each delayq_worker includes one, unless it "
        "is started with --no-dispatcher."
    )
    examples = ("delayq_dispatcher", "delayq_dispatcher --queues orders,mail --log-format json")
    options = "--queues QUEUES  only these queues (default: all)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        LoggingCommand.add_arguments(self, parser)

    def run(self, **options: Any) -> None:
        """Run until stopped."""
        what: dict[str, Any] = {"consumer": False, "dispatcher": True, "processes": 1, "grace": 1.0}
        config = wiring.make_config(conf(), queues=options["queues"], **what)
        self.announce(config)
        wiring.run_worker(config)
