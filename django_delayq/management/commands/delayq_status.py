"""``manage.py delayq_status``: what lies where, and who works on it."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from ... import connections
from ...core.broker import Broker
from ...core.errors import QueueUnavailable
from ...status import Change, Snapshot, compare, take
from ...status.drawing import report
from ...status.screen import HORIZON, Trail, screen
from ...status.telling import as_json
from ..base import DelayQCommand, positive


class Command(DelayQCommand):
    """See ``help``."""

    help = "Shows the queues (delayed, ready, reserved, gated, failed, morgue, lag), the workers and Redis."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--watch",
            nargs="?",
            const=2.0,
            type=positive(float, "a number of seconds"),
            metavar="SECONDS",
            help="draw it anew every SECONDS (default 2) with rates and what each thread runs, until Ctrl-C",
        )

    def run(self, **options: Any) -> None:
        """Print once, or again and again."""
        broker = connections.broker()
        if options["watch"] is not None:
            self.watch(broker, options["watch"], json=options["json"])
        elif options["json"]:
            self.print_json(take(broker, recurring=True).as_json())
        else:
            self.print_lines(report(take(broker, recurring=True)))

    def watch(self, broker: Broker, seconds: float, *, json: bool) -> None:
        """Look every ``seconds`` until interrupted. A Redis that is away is waited for, once it was there."""
        rest = threading.Event()
        before: Snapshot | None = None
        trail = Trail()
        try:
            while True:
                try:
                    now = take(broker, horizon=() if json else HORIZON, recurring=json)
                except QueueUnavailable as error:
                    if before is None:
                        raise
                    self.stderr.write(str(error))
                else:
                    self.show(now, compare(before, now) if before is not None else None, trail, json=json)
                    before = now
                rest.wait(seconds)
        except KeyboardInterrupt:
            return
        except BrokenPipeError:  # whoever read it is gone; the interpreter's own last flush must not fail for it too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def show(self, now: Snapshot, change: Change | None, trail: Trail, *, json: bool) -> None:
        """One look of many."""
        if json:
            self.print_json(as_json(now, change))
            self.stdout.flush()
            return
        if change is not None:
            trail.add(change)
        width, height = shutil.get_terminal_size()
        on_terminal = self.stdout.isatty()
        if on_terminal:
            self.stdout.write("\x1b[2J\x1b[H", ending="")
        self.print_lines(screen(now, change or Change(), trail, width, height - 1 if on_terminal else None))
        if not on_terminal:
            self.stdout.write("")
        self.stdout.flush()

    def print_lines(self, lines: Sequence[str]) -> None:
        """Lines of text."""
        for line in lines:
            self.stdout.write(line)
