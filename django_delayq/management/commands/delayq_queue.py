"""Command ``manage.py delayq_queue``: list, pause and delete queues, and choose the workers that serve them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...core import layouts
from ...core.counts import Counts
from ...core.queue import Queue
from ...core.times import iso_of
from ...core.workers import IGNORE, WATCH
from ...outbox.row_verbs import forget_queue
from ...settings.conf import conf
from ...status.formatting import duration, printable
from ...status.report import NO_QUEUE
from ..base import DelayQCommand, count_text, dict_table, share_options, span

#: actions on one queue, and those on all
OF_QUEUE: Final = {
    "pause": "pause a queue",
    "resume": "resume a paused queue",
    WATCH: "let running workers serve a queue too, until they end",
    IGNORE: "let running workers reserve no more from a queue, until they end",
    "delete": "delete a queue",
}
OF_ALL: Final = {
    "list": "list every queue with its policy and its number of jobs",
    "pause-producers": "refuse new jobs in all queues, also in those that are created later; stored jobs run",
    "resume-producers": "accept new jobs in all queues again",
}


class Command(DelayQCommand):
    """Command that runs operator actions on queues."""

    help = "Lists, pauses, resumes or deletes queues, and adds them to running workers."
    examples = (
        "delayq_queue list",
        "delayq_queue pause orders --in",
        "delayq_queue pause orders --for 10m",
        "delayq_queue watch orders --worker web1:4711:9f3a02.1",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name, text in {**OF_ALL, **OF_QUEUE}.items():
            action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
            action.add_argument("--json", action="store_true", help="print JSON")
            if name in OF_QUEUE:
                action.add_argument("name", help="name of the queue")
        for name in ("pause", "resume"):
            directions = actions.choices[name].add_mutually_exclusive_group()
            for flag, text in (
                ("in", "the scheduling of new jobs, which is refused while it is paused"),
                ("out", "the workers, which start no jobs while it is paused"),
            ):
                directions.add_argument(
                    f"--{flag}",
                    action="store_const",
                    dest="direction",
                    const=flag,
                    default="both",
                    help=f"only {text}",
                )
        actions.choices["pause"].add_argument(
            "--for",
            type=span,
            dest="seconds",
            metavar="TIME",
            help="end the pause by itself after this time: 90, 90s, 10m, 2h30m or 1d",
        )
        for name in (WATCH, IGNORE):
            actions.choices[name].add_argument(
                "--worker",
                action="append",
                required=True,
                dest="workers",
                help="name of a worker, as in delayq_status; all processes of its program obey; may be repeated",
            )
        delete = actions.choices["delete"]
        delete.add_argument("--force", action="store_true", help="delete it even if it has jobs, which are lost")
        delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        share_options(parser, actions.choices.values())

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action = options["action"]
        if action == "list":
            self.print_list()
        elif action in OF_ALL:
            self.switch_producers(paused=action == "pause-producers")
        else:
            queue = connections.broker().require_queue(options["name"])
            if action in ("pause", "resume"):
                self.pause_or_resume(queue, action, options)
            elif action == "delete":
                self.delete(queue, options)
            else:
                self.choose(queue, action, options)

    def pause_or_resume(self, queue: Queue, action: str, options: Mapping[str, Any]) -> None:
        """Pause or resume a queue."""
        broker, direction = connections.broker(), options["direction"]
        if action == "pause":
            broker.pause(queue.name, direction, seconds=options["seconds"])
        else:
            broker.resume(queue.name, direction)
        orders = layouts.queue_policy(queue.layout)
        paused, until = orders["paused"], {word: iso_of(end) for word, end in orders["until"].items()}
        effects = ", and ".join(
            f"{effect} until {until[word]}" if word in until else effect
            for word, effect in (("in", "new jobs are refused"), ("out", "no jobs are started"))
            if paused in (word, "both")
        )
        text = f"is paused: {effects}" if paused else "is not paused"
        value = {"queue": queue.name, "paused": paused, "paused_until": until}
        self.print_answer(value, f"{printable(queue.name)} {text}")

    def switch_producers(self, *, paused: bool) -> None:
        """Pause all producers, or let them go on."""
        broker = connections.broker()
        (broker.pause_producers if paused else broker.resume_producers)()
        effect = "are paused: no queue takes new jobs; stored jobs run" if paused else "are not paused"
        self.print_answer({"producers_paused": paused}, f"producers {effect}")

    def choose(self, queue: Queue, word: str, options: Mapping[str, Any]) -> None:
        """Let workers watch or ignore a queue."""
        workers: list[str] = options["workers"]
        for worker in workers:
            if not connections.broker().tell_worker(worker, word, queue.name):
                raise CommandError(f"no worker {printable(worker)} is registered; delayq_status lists the workers")
        effect = "reserve from it too" if word == WATCH else "reserve no more from it"
        self.print_answer(
            {"queue": queue.name, "command": word, "workers": workers},
            f"{printable(queue.name)}: {', '.join(map(printable, workers))} and all processes of the same program "
            f"{effect} with their next heartbeat, until the program ends",
        )

    def delete(self, queue: Queue, options: Mapping[str, Any]) -> None:
        """Delete a queue."""
        force, counts = options["force"], connections.broker().inspector.counts(queue.name)
        live = counts.delayed + counts.ready + counts.reserved
        loss = f" with {live} jobs and {counts.morgue} in its morgue, for good" if force else ""
        self.confirm(f"Delete the queue {printable(queue.name)}{loss}?", yes=options["yes"])
        deleted = {"deleted": int(connections.broker().delete_queue(queue.name, force=force))}
        forgotten = forget_queue(conf().outbox.databases, queue.name) if force else 0
        if forgotten:
            deleted["outbox rows deleted"] = forgotten
        self.print_answer(deleted, count_text(deleted))

    def print_list(self) -> None:
        """Print every queue."""
        broker = connections.broker()
        counts = {counts.queue: counts for counts in broker.inspector.all_counts()}
        queues = [as_dict(queue, counts.get(queue.name) or Counts(queue.name)) for queue in broker.queues()]
        rows = [{name: _cell(name, value) for name, value in queue.items()} for queue in queues]
        self.print_answer(queues, *(dict_table(rows, left=3) if rows else [NO_QUEUE]))


def _cell(name: str, value: Any) -> object:
    """Return a value of :func:`as_dict` for a table."""
    if value in (None, ""):
        return "-"
    return duration(value) if name in ("morgue_ttl", "starve_after") else value


def as_dict(queue: Queue, counts: Counts) -> dict[str, Any]:
    """Return a queue, its policy and its counts as plain data. A missing limit is None."""
    limits = layouts.limits_in_force(queue.layout)
    return {
        "queue": queue.name,
        "kind": queue.kind,
        "paused": layouts.queue_policy(queue.layout)["paused"],
        "shards": queue.shards,
        "priorities": limits["priorities"],
        "starve_after": limits["starve_after"],
        "jobs": counts.delayed + counts.ready + counts.reserved,
        "max_length": limits["max_length"],
        "morgue": counts.morgue,
        "morgue_max": limits["morgue_max"],
        "morgue_ttl": limits["morgue_ttl"],
    }
