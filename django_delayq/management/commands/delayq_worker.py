"""Command ``manage.py delayq_worker``: run jobs. The started process supervises the processes that do the work."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import ArgumentParser, BooleanOptionalAction
from pathlib import Path
from typing import Any

from django.utils import autoreload

from ... import __version__, connections, logs
from ...runtime import wiring
from ...settings.conf import Conf, conf
from ...worker import WorkerConfig, child_spec
from ..base import DelayQCommand, positive, queue_list

NAME = "delayq_worker"


class Command(DelayQCommand):
    """Command that runs a worker."""

    help = (
        "Runs jobs until SIGTERM or Ctrl-C (the second one ends it at once). "
        "SIGUSR1: finish what is running, then end. SIGTTIN: show the stacks of all threads."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        number = positive(int, "a whole number")
        parser.add_argument("--queues", type=queue_list, metavar="A,B", help="only these queues (default: all)")
        parser.add_argument("--threads", type=number, metavar="N", help="jobs at the same time in one process (5)")
        parser.add_argument("--processes", type=number, metavar="N", help="processes (1)")
        parser.add_argument(
            "--quarantine",
            type=number,
            metavar="N",
            help="further processes at most, for jobs whose process died under them, one job each (2)",
        )
        parser.add_argument(
            "--nodes",
            type=number,
            metavar="N",
            help="machines that share the work; each begins with its own shards (splitter by_node)",
        )
        parser.add_argument(
            "--node", type=positive(int, "a whole number", zero=True), metavar="N", help="which of them this is, from 0"
        )
        parser.add_argument("--max-jobs", type=number, metavar="N", help="replace a process after so many jobs")
        parser.add_argument("--max-rss", type=number, metavar="MIB", help="replace a process that uses more memory")
        parser.add_argument(
            "--grace",
            type=positive(float, "a number of seconds", zero=True),
            metavar="SECONDS",
            help="time that running jobs get to finish at the end (25)",
        )
        parser.add_argument(
            "--dispatcher",
            action=BooleanOptionalAction,
            default=None,
            help="also do the housekeeping of the queues (default: yes)",
        )
        parser.add_argument("--reload", action="store_true", help="start fresh processes when code changes")
        parser.add_argument("--burst", action="store_true", help="one process; end when nothing is ready any more")
        parser.add_argument(
            "--log-format",
            choices=("plain", "json"),
            default="plain",
            help="used when the project's LOGGING has no handler for 'django_delayq'",
        )

    def run(self, **options: Any) -> None:
        """Run as a child, a single process, or a supervisor."""
        logs.configure(options["log_format"], options["verbosity"])
        told = child_spec()
        settings = conf()
        config = wiring.make_config(
            settings,
            queues=options["queues"],
            threads=options["threads"],
            processes=options["processes"],
            quarantine=options["quarantine"],
            nodes=options["nodes"],
            node=options["node"],
            max_jobs=options["max_jobs"],
            max_rss=options["max_rss"],
            grace=options["grace"],
            dispatcher=options["dispatcher"],
            burst=options["burst"] or None,
            index=told.index if told is not None else None,
        )
        if told is not None:
            wiring.run_worker(config, told)
        away = wiring.ensure_server()
        if not away:
            wiring.check_queues(config.queues, settings)
        self.announce(settings, config, away)
        if options["burst"]:
            wiring.run_worker(config)
        self.supervise(config, options)

    def announce(self, settings: Conf, config: WorkerConfig, away: str) -> None:
        """Print one line on stdout, and warnings on stderr."""
        many = f"{config.processes} process{'es' if config.processes > 1 else ''} × {config.threads} threads"
        self.stdout.write(
            f"delayq_worker {__version__} (pid {os.getpid()}): {many}, queues {', '.join(config.queues)}, "
            f"{wiring.redis_name(settings)}{'' if config.dispatcher else ', no dispatcher'}. Ctrl-C stops."
        )
        self.stdout.flush()
        if away:
            self.stderr.write(self.style.WARNING(f"Redis cannot be used now, waiting for it: {away}"))
        else:
            differing = connections.other_shards(connections.broker())
            for sentence in (*wiring.pulled_queues(config.queues, settings), *differing):
                self.stderr.write(self.style.WARNING(f"Note: {sentence}"))

    def supervise(self, config: WorkerConfig, options: dict[str, Any]) -> None:
        """Run the supervisor until it is stopped."""
        command = wiring.child_command(NAME, options, config)
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
            self.stdout.write(f"{file_path} changed, starting fresh processes")
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
