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
from ...settings.conf import conf
from ...worker.child import EXIT_NO_REDIS, child_spec
from ...worker.config import WorkerConfig
from ..base import LoggingCommand

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
    examples: tuple[str, ...] = (
        "delayq_worker",
        "delayq_worker --queues orders,mail --processes 2 --threads 10",
        "delayq_worker --reload",
        "delayq_worker --burst",
    )

    options = f"""
        --queues QUEUES  only these queues (default: all)
        --threads N      jobs that run at the same time in one process (default: 5)
        --processes N    number of processes (default: 1)
        --quarantine N   most additional processes for jobs during which a process died, one job each (default: 2)
        --max-jobs N     replace a process after this many jobs
        --max-rss N      replace a process that uses more memory than this, in MiB
        --grace SECONDS  time for running jobs to finish after a signal to stop (default: 25)
        --reload         replace the processes when a source file changes; for development
        --burst          run in one process, and end when no job is ready
        --redis-patience SECONDS  with --burst: end with exit code {EXIT_NO_REDIS} when Redis has been away for so long
                         (default: {BURST_PATIENCE_SECONDS:g}); without it a worker waits for Redis
    """

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        text = "do the housekeeping of the queues, too (default: yes)"
        parser.add_argument("--dispatcher", action=BooleanOptionalAction, default=None, help=text)
        super().add_arguments(parser)

    def run(self, **options: Any) -> None:
        """Run as a child, a single process, or a supervisor."""
        patience = options["redis_patience"]
        if patience is not None and not options["burst"]:
            raise CommandError("--redis-patience is for --burst: every other worker waits for Redis", returncode=2)
        child = child_spec()
        if child is not None:
            wiring.run_worker(child.config, child)
        given = {name: options[name] for name in CONFIG_OPTIONS}
        if options["burst"]:
            given |= {"burst": True, "redis_patience": BURST_PATIENCE_SECONDS if patience is None else patience}
        config = wiring.make_config(conf(), **given)
        self.announce(
            config, f"{config.processes} process{'es' if config.processes > 1 else ''} × {config.threads} threads, "
        )
        if options["burst"]:
            wiring.run_worker(config)
        self.supervise(config, options)

    def announce(self, config: WorkerConfig, size: str = "") -> None:
        """Check the queues, unless Redis is away; print one line on stdout, and warnings on stderr.

        Args:
            size: number of processes and threads that run jobs; "" = none does.
        """
        settings, notes, redis_error = conf(), [], wiring.ensure_server()
        if redis_error:
            notes = [f"Redis is not available; this process waits for it: {redis_error}"]
        else:
            wiring.check_queues(config.queues, settings)
            found = (*wiring.pulled_queues(config.queues, settings), *connections.other_shards(connections.broker()))
            notes = [f"Note: {note}" for note in found if size]
        self.stdout.write(
            f"{self.__module__.rpartition('.')[2]} {__version__} (pid {os.getpid()}): {size}"
            f"queues {', '.join(config.queues)}, {wiring.redis_name(settings)}"
            f"{'' if config.dispatcher else ', no dispatcher'}. Ctrl-C stops."
        )
        self.stdout.flush()
        for note in notes:
            self.stderr.write(self.style.WARNING(note))

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
