"""Command ``manage.py delayq_queue``: operator actions on a whole queue."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...core import bulk, rules
from ...core.moments import iso_of
from ...core.operations.inspector import INDEXES, SEARCHED, Counts
from ...core.queue import Queue
from ...core.workers import IGNORE, WATCH
from ...masking import Mask
from ...outbox.retention import forget_queue
from ...settings.conf import conf
from ...status.drawing import NO_QUEUE
from ...status.formatting import duration, printable, table
from ..base import DelayQCommand, add_show_secrets, mask_for, positive, share_options, span
from ..rows import JOB_COLUMNS, as_dict, cell_of, job_as_dict

#: action -> help text, question for confirmation, and function
BULK_ACTIONS: Final[dict[str, tuple[str, str, Callable[..., dict[str, int]]]]] = {
    "run-now": (
        "make every waiting job due now; they keep their order",
        "Make all {delayed} delayed jobs of {queue} due now?",
        bulk.run_all_now,
    ),
    "kill-failed": (
        "move every waiting job that has failed to the morgue",
        "Move the {failed} jobs of {queue} that have failed to the morgue?",
        bulk.kill_failed,
    ),
    "delete-failed": (
        "delete every waiting job that has failed",
        "Delete the {failed} jobs of {queue} that have failed, for good?",
        bulk.delete_failed,
    ),
    "cancel-all": (
        "delete every waiting job",
        "Delete all {waiting} waiting jobs of {queue}, for good?",
        bulk.cancel_all,
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
        "delayq_queue run-now orders --yes",
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        self._action(actions, "list", "list every queue with its policy and its number of jobs", named=False)
        for name, text in (("pause", "pause a queue"), ("resume", "resume a paused queue")):
            action = self._action(actions, name, text)
            if name == "pause":
                action.add_argument(
                    "--for",
                    type=span,
                    dest="seconds",
                    metavar="TIME",
                    help="end the pause by itself after this time: 90, 90s, 10m, 2h or 1d",
                )
            directions = action.add_mutually_exclusive_group()
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
        for name, text in (
            ("pause-producers", "refuse new jobs in all queues, also in those that are created later; stored jobs run"),
            ("resume-producers", "accept new jobs in all queues again"),
        ):
            self._action(actions, name, text, named=False)
        for name, text in (
            (WATCH, "let running workers serve a queue too, until they end"),
            (IGNORE, "let running workers reserve no more from a queue, until they end"),
        ):
            self._action(actions, name, text).add_argument(
                "--worker",
                action="append",
                required=True,
                dest="workers",
                help="name of a worker, as in delayq_status; all processes of its program obey; may be repeated",
            )
        search = self._action(actions, "search", "search the jobs of a queue for a text")
        search.add_argument("text", help="text in the id, the task name, the arguments, payloads, context or error")
        search.add_argument(
            "--place",
            action="append",
            choices=tuple(INDEXES),
            dest="places",
            help="only jobs in this place; may be repeated",
        )
        search.add_argument(
            "--limit", type=positive(int, "a number of jobs"), default=50, help="at most this many jobs (default: 50)"
        )
        add_show_secrets(search)
        for name, (text, _, _) in BULK_ACTIONS.items():
            self._confirmable(self._action(actions, name, text))
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
        if action.endswith("-producers"):
            self.switch_producers(action, as_json=as_json)
            return
        queue = self.known_queue(options["name"])
        if action in ("pause", "resume"):
            self.pause_or_resume(queue, action, options, as_json=as_json)
        elif action in (WATCH, IGNORE):
            self.choose(queue, action, options["workers"], as_json=as_json)
        elif action == "search":
            self.search(queue, options, mask_for(options))
        elif action == "delete":
            self.delete(queue, yes=options["yes"], force=options["force"], as_json=as_json)
        else:
            _, question, function = BULK_ACTIONS[action]
            self.confirm(self.question(question, queue), yes=options["yes"])
            with self.progress(action) as progress:
                counts = function(queue, progress=progress.update)
            self.print_counts(counts, as_json=as_json)

    def question(self, text: str, queue: Queue) -> str:
        """Return a question with the numbers of jobs, so that the operator sees the effect."""
        counts = queue.broker.inspector.counts(queue.name)
        return text.format(
            queue=printable(queue.name),
            delayed=counts.delayed,
            failed=counts.failed,
            waiting=counts.delayed + counts.ready,
        )

    def switch_producers(self, action: str, *, as_json: bool) -> None:
        """Pause all producers, or let them go on."""
        broker, paused = connections.broker(), action == "pause-producers"
        (broker.pause_producers if paused else broker.resume_producers)()
        if as_json:
            self.print_json({"producers_paused": paused})
            return
        effect = "are paused: no queue takes new jobs; stored jobs run" if paused else "are not paused"
        self.stdout.write(f"producers {effect}")

    def pause_or_resume(self, queue: Queue, action: str, options: Mapping[str, Any], *, as_json: bool) -> None:
        """Pause or resume a queue."""
        broker, direction = queue.broker, options["direction"]
        if action == "pause":
            broker.pause(queue.name, direction, seconds=options["seconds"])
        else:
            broker.resume(queue.name, direction)
        orders = rules.orders_of(queue.layout)
        paused, until = orders["paused"], {word: iso_of(end) for word, end in orders["until"].items()}
        if as_json:
            self.print_json({"queue": queue.name, "paused": paused, "paused_until": until})
        elif paused:
            effect = {
                "in": "new jobs are refused",
                "out": "no jobs are started",
                "both": "new jobs are refused, and no jobs are started",
            }[paused]
            ends = "".join(f"; {word} ends at {end}" for word, end in until.items())
            self.stdout.write(f"{printable(queue.name)} is paused: {effect}{ends}")
        else:
            self.stdout.write(f"{printable(queue.name)} is not paused")

    def choose(self, queue: Queue, word: str, workers: Sequence[str], *, as_json: bool) -> None:
        """Let workers watch or ignore a queue."""
        for worker in workers:
            if not queue.broker.tell_worker(worker, word, queue.name):
                raise CommandError(f"no worker {printable(worker)} is registered; delayq_status lists the workers")
        if as_json:
            self.print_json({"queue": queue.name, "command": word, "workers": list(workers)})
            return
        effect = "reserve from it too" if word == WATCH else "reserve no more from it"
        self.stdout.write(
            f"{printable(queue.name)}: {', '.join(map(printable, workers))} and all processes of the same program "
            f"{effect} with their next heartbeat, until the program ends"
        )

    def search(self, queue: Queue, options: Mapping[str, Any], hide: Mask) -> None:
        """Print the jobs that contain a text."""
        places, limit = options["places"] or SEARCHED, options["limit"]
        views = queue.broker.inspector.search(queue.name, options["text"], places=places, limit=limit)
        if options["json"]:
            self.print_json([job_as_dict(view, hide) for view in views])
            return
        rows = [[cell_of(value) for value in job_as_dict(view, hide).values()] for view in views]
        if not rows:
            self.stdout.write("no job found")
            return
        for line in table(JOB_COLUMNS, rows, left=len(JOB_COLUMNS)):
            self.stdout.write(line)
        if len(rows) == limit:
            self.stdout.write(f"These are the first {limit} jobs; there may be more. Raise --limit to see them.")

    def delete(self, queue: Queue, *, yes: bool, force: bool, as_json: bool) -> None:
        """Delete a queue."""
        counts = queue.broker.inspector.counts(queue.name)
        live = counts.delayed + counts.ready + counts.reserved
        loss = f" with {live} jobs and {counts.morgue} in its morgue, for good" if force else ""
        self.confirm(f"Delete the queue {printable(queue.name)}{loss}?", yes=yes)
        deleted = {"deleted": int(queue.broker.delete_queue(queue.name, force=force))}
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
        for line in table(names, rows, left=3):
            self.stdout.write(line)

    def cell(self, name: str, value: Any) -> object:
        """Return a value of :func:`as_dict` for a table."""
        if value in (None, ""):
            return "-"
        return duration(value) if name == "morgue_ttl" else value
