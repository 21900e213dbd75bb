"""``manage.py delayq_dispatcher``: the housekeeping alone, for workers that run with ``--no-dispatcher``."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from ... import __version__, logs
from ...runtime import wiring
from ...settings.conf import conf
from ..base import DelayQCommand, queue_list


class Command(DelayQCommand):
    """See ``help``."""

    help = (
        "Wakes workers when a job falls due and takes jobs from workers that died, without running any job itself. "
        "Several may run. delayq_worker does the same beside its work, unless it has --no-dispatcher."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("--queues", type=queue_list, metavar="A,B", help="only these queues (default: all)")
        parser.add_argument(
            "--log-format",
            choices=("plain", "json"),
            default="plain",
            help="used when the project's LOGGING has no handler for 'django_delayq'",
        )

    def run(self, **options: Any) -> None:
        """Work until told to stop."""
        logs.configure(options["log_format"], options["verbosity"])
        settings = conf()
        config = wiring.make_config(
            settings, queues=options["queues"], consumer=False, dispatcher=True, processes=1, grace=1.0
        )
        away = wiring.ensure_server()
        if not away:
            wiring.check_queues(config.queues, settings)
        self.stdout.write(
            f"delayq_dispatcher {__version__} (pid {os.getpid()}): queues {', '.join(config.queues)}, "
            f"{wiring.redis_name(settings)}. Ctrl-C stops."
        )
        self.stdout.flush()
        if away:
            self.stderr.write(self.style.WARNING(f"Redis cannot be used now, waiting for it: {away}"))
        wiring.run_worker(config)
