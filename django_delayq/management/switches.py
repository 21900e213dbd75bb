"""Switches of ``delayq_queue``: pauses, the producers of all queues, and the queues of running workers."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from django.core.management.base import CommandError

from .. import connections
from ..core import layouts
from ..core.broker import Broker
from ..core.queue import Queue
from ..core.times import iso_of
from ..core.workers import IGNORE, WATCH
from ..status.formatting import printable
from .base import DelayQCommand, span

PAUSES: Final = {"pause": "pause a queue", "resume": "resume a paused queue"}
PRODUCERS: Final = {
    "pause-producers": "refuse new jobs in all queues, also in those that are created later; stored jobs run",
    "resume-producers": "accept new jobs in all queues again",
}
CHOICES: Final = {
    WATCH: "let running workers serve a queue too, until they end",
    IGNORE: "let running workers reserve no more from a queue, until they end",
}


def add_directions(parser: ArgumentParser) -> None:
    """Add the options of a direction."""
    directions = parser.add_mutually_exclusive_group()
    directions.add_argument(
        "--in",
        action="store_const",
        dest="direction",
        const="in",
        default="both",
        help="only the scheduling of new jobs, which is refused while it is paused",
    )
    directions.add_argument(
        "--out",
        action="store_const",
        dest="direction",
        const="out",
        help="only the workers, which start no jobs while it is paused",
    )


def add_length(parser: ArgumentParser) -> None:
    """Add the option of the length of a pause."""
    parser.add_argument(
        "--for",
        type=span,
        dest="seconds",
        metavar="TIME",
        help="end the pause by itself after this time: 90, 90s, 10m, 2h30m or 1d",
    )


def add_workers(parser: ArgumentParser) -> None:
    """Add the option that names workers."""
    parser.add_argument(
        "--worker",
        action="append",
        required=True,
        dest="workers",
        help="name of a worker, as in delayq_status; all processes of its program obey; may be repeated",
    )


def pause_or_resume(command: DelayQCommand, queue: Queue, action: str, options: Mapping[str, Any]) -> None:
    """Pause or resume a queue."""
    broker, direction = connections.broker(), options["direction"]
    if action == "pause":
        broker.pause(queue.name, direction, seconds=options["seconds"])
    else:
        broker.resume(queue.name, direction)
    orders = layouts.queue_policy(queue.layout)
    paused, until = orders["paused"], {word: iso_of(end) for word, end in orders["until"].items()}
    if options["json"]:
        command.print_json({"queue": queue.name, "paused": paused, "paused_until": until})
    elif paused:
        effects = ", and ".join(
            f"{effect} until {until[word]}" if word in until else effect
            for word, effect in (("in", "new jobs are refused"), ("out", "no jobs are started"))
            if paused in (word, "both")
        )
        command.stdout.write(f"{printable(queue.name)} is paused: {effects}")
    else:
        command.stdout.write(f"{printable(queue.name)} is not paused")


def switch_producers(command: DelayQCommand, broker: Broker, action: str, *, as_json: bool) -> None:
    """Pause all producers, or let them go on."""
    paused = action == "pause-producers"
    (broker.pause_producers if paused else broker.resume_producers)()
    if as_json:
        command.print_json({"producers_paused": paused})
        return
    effect = "are paused: no queue takes new jobs; stored jobs run" if paused else "are not paused"
    command.stdout.write(f"producers {effect}")


def choose(command: DelayQCommand, queue: Queue, word: str, options: Mapping[str, Any]) -> None:
    """Let workers watch or ignore a queue."""
    workers: list[str] = options["workers"]
    for worker in workers:
        if not connections.broker().tell_worker(worker, word, queue.name):
            raise CommandError(f"no worker {printable(worker)} is registered; delayq_status lists the workers")
    if options["json"]:
        command.print_json({"queue": queue.name, "command": word, "workers": workers})
        return
    effect = "reserve from it too" if word == WATCH else "reserve no more from it"
    command.stdout.write(
        f"{printable(queue.name)}: {', '.join(map(printable, workers))} and all processes of the same program "
        f"{effect} with their next heartbeat, until the program ends"
    )
