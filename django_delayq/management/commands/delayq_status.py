"""Command ``manage.py delayq_status``: show queues, workers and Redis."""

from __future__ import annotations

import contextlib
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any

from ... import connections
from ...core.broker import Broker
from ...core.errors import QueueUnavailable
from ...status import Change, Snapshot, compare, take
from ...status.drawing import report
from ...status.json_form import as_json
from ...status.screen import HORIZON, Screen, Trail, screen
from ..base import DelayQCommand, positive
from ..screen import draw, live
from ..terminal import console_of, exit_on_sigterm


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
            help="refresh every SECONDS (default: 2) until Ctrl-C, with rates and the job of each thread",
        )

    def run(self, **options: Any) -> None:
        """Print the status once, or repeatedly."""
        broker = connections.broker()
        if options["watch"] is not None:
            self.watch(broker, options["watch"], json=options["json"])
        elif options["json"]:
            self.print_json(take(broker, recurring=True).as_json())
        else:
            self.print_lines(report(take(broker, recurring=True)))

    def watch(self, broker: Broker, seconds: float, *, json: bool) -> None:
        """Show the status every ``seconds`` until interrupted.

        An unavailable Redis is an error at the start only; later the command waits for it.
        """
        pause = threading.Event()
        before: Snapshot | None = None
        try:
            with self.display(json=json) as (show, warn):
                while True:
                    try:
                        now = take(broker, horizon=() if json else HORIZON, recurring=json)
                    except QueueUnavailable as error:
                        if before is None:
                            raise
                        warn(str(error))
                    else:
                        show(now, compare(before, now) if before is not None else None)
                        before = now
                    pause.wait(seconds)
        except KeyboardInterrupt:
            return

    @contextlib.contextmanager
    def display(self, *, json: bool) -> Iterator[tuple[Callable[[Snapshot, Change | None], None], Callable[..., Any]]]:
        """Open the display: JSON, a screen on a terminal, or lines. Yield the functions to show and to warn."""
        trail = Trail()
        if json:
            yield self.show_json, self.stderr.write
            return

        def contents(now: Snapshot, change: Change | None) -> Screen:
            if change is not None:
                trail.add(change)
            return screen(now, change or Change(), trail)

        console = console_of(self.stdout, no_color=self.no_color)
        if console is None:
            yield lambda now, change: self.print_lines([*contents(now, change).lines(), ""]), self.stderr.write
            return
        with exit_on_sigterm(), live(console) as show:
            yield lambda now, change: show(draw(contents(now, change), console)), show

    def show_json(self, now: Snapshot, change: Change | None) -> None:
        """Print a snapshot and the change since the last one as JSON."""
        self.print_json(as_json(now, change))
        self.stdout.flush()
