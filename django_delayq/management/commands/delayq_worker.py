"""Command ``manage.py delayq_worker``: run jobs. The started process supervises the processes that do the work."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import ArgumentParser, BooleanOptionalAction
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.utils import autoreload

from ... import __version__, connections
from ...runtime import wiring
from ...settings.conf import Conf, conf
from ...worker.child import EXIT_NO_REDIS, child_spec
from ...worker.config import WorkerConfig
from ..base import LoggingCommand, positive, queue_list

NAME = "delayq_worker"
#: options that are those of a worker's configuration
CONFIG_OPTIONS = ("queues", "threads", "processes", "quarantine", "max_jobs", "max_rss", "grace", "dispatcher")
#: seconds for which a burst waits for Redis
BURST_PATIENCE_SECONDS = 60.0


class Command(LoggingCommand):
    """Command that runs a worker."""

    help = (
        "Runs jobs until SIGTERM or Ctrl-C; running jobs get --grace seconds to finish, and a second signal ends the "
        "worker at once. SIGUSR1: finish the running jobs without a time limit, then end. SIGTTIN: log the stacks of "
        "all threads."
    )
    requires_system_checks = "__all__"
    examples = (
        "delayq_worker",
        "delayq_worker --queues orders,mail --processes 2 --threads 10",
        "delayq_worker --reload",
        "delayq_worker --burst",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        number = positive(int, "a whole number")
        parser.add_argument("--queues", type=queue_list, metavar="A,B", help="only these queues (default: all)")
        parser.add_argument(
            "--threads", type=number, metavar="N", help="jobs that run at the same time in one process (default: 5)"
        )
        parser.add_argument("--processes", type=number, metavar="N", help="number of processes (default: 1)")
        parser.add_argument(
            "--quarantine",
            type=number,
            metavar="N",
            help="most additional processes for jobs during which a process died, one job each (default: 2)",
        )
        parser.add_argument("--max-jobs", type=number, metavar="N", help="replace a process after this many jobs")
        parser.add_argument(
            "--max-rss", type=number, metavar="MIB", help="replace a process that uses more memory than this"
        )
        parser.add_argument(
            "--grace",
            type=positive(float, "a number of seconds", zero=True),
            metavar="SECONDS",
            help="time for running jobs to finish after a signal to stop (default: 25)",
        )
        parser.add_argument(
            "--dispatcher",
            action=BooleanOptionalAction,
            default=None,
            help="do the housekeeping of the queues, too (default: yes)",
        )
        parser.add_argument(
            "--reload", action="store_true", help="replace the processes when a source file changes; for development"
        )
        parser.add_argument("--burst", action="store_true", help="run in one process, and end when no job is ready")
        parser.add_argument(
            "--redis-patience",
            type=positive(float, "a number of seconds", zero=True),
            metavar="SECONDS",
            help=f"with --burst: end with exit code {EXIT_NO_REDIS} when Redis has been away for so long (default: "
            f"{BURST_PATIENCE_SECONDS:g}); without it a worker waits for Redis",
        )
        super().add_arguments(parser)

    def run(self, **options: Any) -> None:
        """Run as a child, a single process, or a supervisor."""
        patience = options["redis_patience"]
        if patience is not None and not options["burst"]:
            raise CommandError("--redis-patience is for --burst: every other worker waits for Redis", returncode=2)
        child = child_spec()
        if child is not None:
            wiring.run_worker(child.config, child)
        settings = conf()
        given = {name: options[name] for name in CONFIG_OPTIONS}
        if options["burst"]:
            given |= {"burst": True, "redis_patience": BURST_PATIENCE_SECONDS if patience is None else patience}
        config = wiring.make_config(settings, **given)
        redis_error = wiring.ensure_server()
        if not redis_error:
            wiring.check_queues(config.queues, settings)
        self.announce(settings, config, redis_error)
        if options["burst"]:
            wiring.run_worker(config)
        self.supervise(config, options)

    def announce(self, settings: Conf, config: WorkerConfig, redis_error: str) -> None:
        """Print one line on stdout, and warnings on stderr."""
        size = f"{config.processes} process{'es' if config.processes > 1 else ''} × {config.threads} threads"
        self.stdout.write(
            f"delayq_worker {__version__} (pid {os.getpid()}): {size}, queues {', '.join(config.queues)}, "
            f"{wiring.redis_name(settings)}{'' if config.dispatcher else ', no dispatcher'}. Ctrl-C stops."
        )
        self.stdout.flush()
        if redis_error:
            self.stderr.write(self.style.WARNING(f"Redis is not available; the worker waits for it: {redis_error}"))
        else:
            notes = (*wiring.pulled_queues(config.queues, settings), *connections.other_shards(connections.broker()))
            for note in notes:
                self.stderr.write(self.style.WARNING(f"Note: {note}"))

    def supervise(self, config: WorkerConfig, options: dict[str, Any]) -> None:
        """Run the supervisor until it is stopped."""
        command = wiring.child_command(NAME, options)
        reload_on: frozenset[int] = frozenset()
        if options["reload"]:
            reload_on = frozenset({int(signal.SIGHUP)})
            self.watch_code()
        code = wiring.make_supervisor(config, command, reload_on=reload_on).run()
        if code:
            sys.exit(code)

    def watch_code(self) -> None:
        """Send this process SIGHUP when a file of the project changes, as detected by Django's autoreloader."""

        def changed(sender: object, file_path: Path, **_: object) -> bool:
            self.stdout.write(f"{file_path} changed: replacing the processes")
            self.stdout.flush()
            os.kill(os.getpid(), signal.SIGHUP)
            return True  # handled: Django must not end this process

        autoreload.file_changed.connect(changed, weak=False, dispatch_uid=NAME)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the supervisor handles it
        reloader = autoreload.get_reloader()
        main = threading.main_thread()
        main.__dict__.setdefault("autoreload", True)
        threading.Thread(target=_watch, args=(reloader, main), name="delayq-reload", daemon=True).start()


def _watch(reloader: autoreload.BaseReloader, main: threading.Thread) -> None:
    try:
        reloader.run(main)
    except autoreload.WatchmanUnavailable:
        autoreload.StatReloader().run(main)
