"""Command ``manage.py delayq_dispatcher``: do the housekeeping for workers that run with ``--no-dispatcher``."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from ... import __version__
from ...runtime import wiring
from ...settings.conf import conf
from ..base import LoggingCommand, queue_list


class Command(LoggingCommand):
    """Command that runs a dispatcher without a consumer."""

    help = (
        "Does the housekeeping of the queues without running jobs: wakes workers when jobs become due, and returns the "
        "jobs of dead workers to their queues. Several dispatchers may run. Each delayq_worker includes one, unless it "
        "is started with --no-dispatcher."
    )
    requires_system_checks = "__all__"
    examples = ("delayq_dispatcher", "delayq_dispatcher --queues orders,mail --log-format json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--queues", type=queue_list, metavar="A,B", help="only these queues (default: all)")
        super().add_arguments(parser)

    def run(self, **options: Any) -> None:
        """Run until stopped."""
        settings = conf()
        config = wiring.make_config(
            settings, queues=options["queues"], consumer=False, dispatcher=True, processes=1, grace=1.0
        )
        redis_error = wiring.ensure_server()
        if not redis_error:
            wiring.check_queues(config.queues, settings)
        self.stdout.write(
            f"delayq_dispatcher {__version__} (pid {os.getpid()}): queues {', '.join(config.queues)}, "
            f"{wiring.redis_name(settings)}. Ctrl-C stops."
        )
        self.stdout.flush()
        if redis_error:
            self.stderr.write(self.style.WARNING(f"Redis is not available; the dispatcher waits for it: {redis_error}"))
        wiring.run_worker(config)
