"""Command ``manage.py delayq_queue``: operator actions on a whole queue."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError

from ... import connections
from ...core import bulk, layouts
from ...core.counts import Counts
from ...core.job_filter import JobFilter
from ...core.queue import Queue
from ...outbox import row_verbs
from ...outbox.row_verbs import forget_queue
from ...settings.conf import conf
from ...status.formatting import duration, printable, table
from ...status.report import NO_QUEUE
from .. import switches
from ..base import DelayQCommand, share_options
from ..conditions import add_conditions, filter_of
from ..found_jobs import add_search, print_found


class QueueAction(NamedTuple):
    """Action on the jobs of a queue that match; ``on_all`` also changes durable jobs that Redis does not have yet."""

    help: str
    question: str
    verb: bulk.Verb
    on_all: Callable[..., dict[str, int]] | None = None


QUEUE_ACTIONS: Final[dict[str, QueueAction]] = {
    "run-now": QueueAction(
        "make every waiting job due now; they keep their order",
        "Make all {delayed} delayed jobs of {queue} due now?",
        bulk.RUN_NOW,
        row_verbs.run_all_now,
    ),
    "kill-failed": QueueAction(
        "move every waiting job that has failed to the morgue",
        "Move the {failed} jobs of {queue} that have failed to the morgue?",
        bulk.KILL_FAILED,
    ),
    "delete-failed": QueueAction(
        "delete every waiting job that has failed",
        "Delete the {failed} jobs of {queue} that have failed, for good?",
        bulk.DELETE_FAILED,
    ),
    "cancel": QueueAction(
        "delete the waiting jobs that meet the conditions",
        "",
        bulk.CANCEL,
        row_verbs.cancel_all,
    ),
    "cancel-all": QueueAction(
        "delete every waiting job (the admin's Purge)",
        "Delete all {waiting} waiting jobs of {queue}, for good?",
        bulk.CANCEL,
        row_verbs.cancel_all,
    ),
}


class Command(DelayQCommand):
    """Command that runs operator actions on a whole queue."""

    help = "Lists, searches, pauses, resumes, empties or deletes queues, and adds them to running workers."
    examples = (
        "delayq_queue list",
        "delayq_queue pause orders --in",
        "delayq_queue pause orders --for 10m",
        "delayq_queue watch orders --worker web1:4711:9f3a02.1",
        "delayq_queue search orders invoice-17",
        "delayq_queue search orders --due-before 2030-01-31T00:00:00Z --failures 3",
        "delayq_queue cancel orders --task shop.remind --prefix north-",
        "delayq_queue run-now orders --yes",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        self._action(actions, "list", "list every queue with its policy and its number of jobs", named=False)
        for name, text in switches.PAUSES.items():
            pause = self._action(actions, name, text)
            switches.add_directions(pause)
            if name == "pause":
                switches.add_length(pause)
        for name, text in switches.PRODUCERS.items():
            self._action(actions, name, text, named=False)
        for name, text in switches.CHOICES.items():
            switches.add_workers(self._action(actions, name, text))
        add_search(self._action(actions, "search", "list the jobs of a queue that meet conditions"))
        for name, action in QUEUE_ACTIONS.items():
            bulk_action = self._confirmable(self._action(actions, name, action.help))
            if name != "cancel-all":
                add_conditions(bulk_action)
        delete = self._confirmable(self._action(actions, "delete", "delete a queue"))
        delete.add_argument("--force", action="store_true", help="delete it even if it has jobs, which are lost")
        share_options(parser, actions.choices.values())

    def _action(self, actions: Any, name: str, text: str, *, named: bool = True) -> ArgumentParser:
        parser: ArgumentParser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if named:
            parser.add_argument("name", help="name of the queue")
        parser.add_argument("--json", action="store_true", help="print JSON")
        return parser

    def _confirmable(self, parser: ArgumentParser) -> ArgumentParser:
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        return parser

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action, as_json = options["action"], options["json"]
        if action == "list":
            self.print_list(as_json=as_json)
            return
        if action in switches.PRODUCERS:
            switches.switch_producers(self, connections.broker(), action, as_json=as_json)
            return
        queue = self.known_queue(options["name"])
        if action in switches.PAUSES:
            switches.pause_or_resume(self, queue, action, options)
        elif action in switches.CHOICES:
            switches.choose(self, queue, action, options)
        elif action == "search":
            print_found(self, queue, options)
        elif action == "delete":
            self.delete(queue, yes=options["yes"], force=options["force"], as_json=as_json)
        else:
            self.change(queue, action, options)

    def change(self, queue: Queue, name: str, options: Mapping[str, Any]) -> None:
        """Run a bulk action on all jobs, or on those that meet the conditions."""
        action = QUEUE_ACTIONS[name]
        where = JobFilter() if name == "cancel-all" else filter_of(options)
        if name == "cancel" and where.is_empty:
            raise CommandError("cancel which jobs? Give a condition, or use cancel-all")
        question = action.question if where.is_empty else "{action} the jobs of {queue} that meet the conditions?"
        self.confirm(self.question(question, queue, name), yes=options["yes"])
        with self.progress(name) as progress:
            if where.is_empty and action.on_all is not None:
                counts = action.on_all(queue, progress=progress.update)
            else:
                counts = bulk.change(queue, action.verb, where, progress=progress.update).counts
        self.print_counts(counts, as_json=options["json"])

    def question(self, text: str, queue: Queue, action: str) -> str:
        """Return a question with the numbers of jobs, so that the operator sees the effect."""
        counts = connections.broker().inspector.counts(queue.name)
        sums_up = "{delayed}" in text or "{waiting}" in text
        delayed = counts.delayed + (row_verbs.count_unsent(queue) if sums_up else 0)
        return text.format(
            action=action.capitalize(),
            queue=printable(queue.name),
            delayed=delayed,
            failed=counts.failed,
            waiting=delayed + counts.ready,
        )

    def delete(self, queue: Queue, *, yes: bool, force: bool, as_json: bool) -> None:
        """Delete a queue."""
        counts = connections.broker().inspector.counts(queue.name)
        live = counts.delayed + counts.ready + counts.reserved
        loss = f" with {live} jobs and {counts.morgue} in its morgue, for good" if force else ""
        self.confirm(f"Delete the queue {printable(queue.name)}{loss}?", yes=yes)
        deleted = {"deleted": int(connections.broker().delete_queue(queue.name, force=force))}
        forgotten = forget_queue(conf().outbox.databases, queue.name) if force else 0
        if forgotten:
            deleted["outbox rows deleted"] = forgotten
        self.print_counts(deleted, as_json=as_json)

    def print_list(self, *, as_json: bool) -> None:
        """Print every queue."""
        broker = connections.broker()
        counts = {counts.queue: counts for counts in broker.inspector.all_counts()}
        queues = [as_dict(queue, counts.get(queue.name) or Counts(queue.name)) for queue in broker.queues()]
        if as_json:
            self.print_json(queues)
            return
        if not queues:
            self.stdout.write(NO_QUEUE)
            return
        names = tuple(queues[0])
        rows = [[self.cell(name, queue[name]) for name in names] for queue in queues]
        self.print_lines(table(names, rows, left=3))

    def cell(self, name: str, value: Any) -> object:
        """Return a value of :func:`as_dict` for a table."""
        if value in (None, ""):
            return "-"
        return duration(value) if name in ("morgue_ttl", "starve_after") else value


def as_dict(queue: Queue, counts: Counts) -> dict[str, Any]:
    """Return a queue, its policy and its counts as plain data. A missing limit is None."""
    orders = layouts.queue_policy(queue.layout)
    limits = layouts.limits_in_force(queue.layout)
    return {
        "queue": queue.name,
        "kind": queue.kind,
        "paused": orders["paused"],
        "shards": queue.shards,
        "priorities": limits["priorities"],
        "starve_after": limits["starve_after"],
        "jobs": counts.delayed + counts.ready + counts.reserved,
        "max_length": limits["max_length"],
        "morgue": counts.morgue,
        "morgue_max": limits["morgue_max"],
        "morgue_ttl": limits["morgue_ttl"],
    }
