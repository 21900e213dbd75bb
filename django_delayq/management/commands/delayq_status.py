"""Command ``manage.py delayq_status``: show queues, workers and Redis."""

from __future__ import annotations

import shutil
import time
from argparse import ArgumentParser
from typing import Any

from ... import connections
from ...core.broker import Broker
from ...core.errors import QueueUnavailable
from ...status import take
from ...status.json_form import as_json
from ...status.report import HORIZON, report
from ..base import DelayQCommand, positive

#: ANSI sequences that clear a terminal and move to its top
CLEAR = "\x1b[H\x1b[2J"


class Command(DelayQCommand):
    """Command that shows the status of the deployment."""

    help = "Shows the queues (delayed, ready, reserved, gated, failed, morgue, lag), the workers and Redis."
    examples = ("delayq_status", "delayq_status --watch 5", "delayq_status --json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--watch",
            nargs="?",
            const=2.0,
            type=positive(float, "a number of seconds"),
            metavar="SECONDS",
            help="print it again every SECONDS (default: 2) until Ctrl-C",
        )

    def run(self, **options: Any) -> None:
        """Print the status once, or again and again."""
        broker, seconds = connections.broker(), options["watch"]
        self.print_status(broker, clear=seconds is not None)
        try:
            while seconds is not None:
                time.sleep(seconds)
                try:
                    self.print_status(broker, clear=True)
                except QueueUnavailable as error:  # at the start it ends the command; later the command waits for Redis
                    self.stderr.write(str(error))
        except KeyboardInterrupt:
            return

    def print_status(self, broker: Broker, *, clear: bool) -> None:
        """Print the status; with ``clear`` alone on a terminal."""
        now = take(broker, horizon=HORIZON, recurring=True, rates=True)
        if self.as_json:
            self.print_answer(as_json(now))
        elif clear and self.stdout.isatty():
            self.print_lines([CLEAR + "\n".join(_fitting(report(now)))])
        else:
            self.print_lines([*report(now), ""])


def _fitting(lines: list[str]) -> list[str]:
    """Return the lines cut to the size of the terminal, with the number of those that do not fit."""
    columns, rows = shutil.get_terminal_size()
    if len(lines) >= rows:
        lines = [*lines[: rows - 2], f"… {len(lines) - rows + 2} more lines: make the terminal higher"]
    return [line[:columns] for line in lines]
