"""Command ``manage.py delayq_queue``: list, pause and delete queues, and choose the workers that serve them."""

from __future__ import annotations

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
from ...status.formatting import duration, printable, table
from ...status.report import NO_QUEUE
from ..base import DelayQCommand, actions_help, count_text, refuse_options

#: actions on all queues, and those on one
OF_ALL: Final = {
    "list": "list every queue with its policy and its number of jobs",
    "pause-producers": "refuse new jobs in all queues, also in those that are created later; stored jobs run",
    "resume-producers": "accept new jobs in all queues again",
}
OF_QUEUE: Final = {
    "pause": "pause a queue",
    "resume": "resume a paused queue",
    WATCH: "let running workers serve a queue too, until they end",
    IGNORE: "let running workers reserve no more from a queue, until they end",
    "delete": "delete a queue",
}
#: arguments that only some actions have
OF_ACTION: Final = {
    "name": tuple(OF_QUEUE),
    "in": ("pause", "resume"),
    "out": ("pause", "resume"),
    "for": ("pause",),
    "worker": (WATCH, IGNORE),
    "force": ("delete",),
}


class Command(DelayQCommand):
    """Command that runs operator actions on queues."""

    help = (
        f"Lists, pauses, resumes or deletes queues, and adds them to running workers. {actions_help(OF_ALL | OF_QUEUE)}"
    )
    examples = (
        "delayq_queue list",
        "delayq_queue pause orders --in",
        "delayq_queue pause orders --for 10m",
        "delayq_queue watch orders --worker web1:4711:9f3a02.1",
    )

    options = f"""
        action {"|".join((*OF_ALL, *OF_QUEUE))}  what to do
        [name]      name of the queue
        --in        pause, resume: only the scheduling of new jobs, which is refused while it is paused
        --out       pause, resume: only the workers, which start no jobs while it is paused
        --for TIME  pause: end the pause by itself after this time: 90, 90s, 10m, 2h30m or 1d
        --worker NAME…  watch, ignore: name of a worker, as in delayq_status; all processes of its program obey; may be
                    repeated
        --force     delete: delete it even if it has jobs, which are lost
        --yes       delete: do not ask for confirmation
        --json      print JSON
    """

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action = options["action"]
        refuse_options(options, OF_ACTION)
        if action == "list":
            self.print_list()
        elif action in OF_ALL:
            self.switch_producers(paused=action == "pause-producers")
        elif options["name"] is None:
            raise CommandError(f"{action} which queue? Give its name", returncode=2)
        else:
            queue = connections.broker().require_queue(options["name"])
            if action in ("pause", "resume"):
                self.pause_or_resume(queue, action, options)
            elif action == "delete":
                self.delete(queue, options)
            else:
                self.choose(queue, action, options["worker"])

    def pause_or_resume(self, queue: Queue, action: str, options: Mapping[str, Any]) -> None:
        """Pause or resume a queue."""
        broker = connections.broker()
        direction = "both" if options["in"] == options["out"] else "in" if options["in"] else "out"
        if action == "pause":
            broker.pause(queue.name, direction, seconds=options["for"])
        else:
            broker.resume(queue.name, direction)
        policy = layouts.queue_policy(queue.layout)
        paused, until = policy["paused"], {word: iso_of(end) for word, end in policy["paused_until"].items()}
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

    def choose(self, queue: Queue, word: str, workers: list[str] | None) -> None:
        """Let workers watch or ignore a queue."""
        if not workers:
            raise CommandError(f"which workers {word} it? Give --worker NAME", returncode=2)
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
        loss = f" with {counts.live} jobs and {counts.morgue} in its morgue, for good" if force else ""
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
        self.print_answer(queues, *(table(rows, left=3) if rows else [NO_QUEUE]))


def _cell(name: str, value: Any) -> object:
    """Return a value of :func:`as_dict` for a table."""
    if value in (None, ""):
        return None
    return duration(value) if name in ("morgue_ttl", "starve_after") else value


def as_dict(queue: Queue, counts: Counts) -> dict[str, Any]:
    """Return a queue, its policy and its counts as plain data. A missing limit is None."""
    return {
        "queue": queue.name,
        "kind": queue.kind,
        "paused": layouts.queue_policy(queue.layout)["paused"],
        "shards": queue.shards,
        "jobs": counts.live,
        "morgue": counts.morgue,
        **layouts.limits_in_force(queue.layout),
    }
