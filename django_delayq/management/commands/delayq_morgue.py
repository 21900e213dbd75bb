"""Command ``manage.py delayq_morgue``: list, show, retry and discard the jobs in the morgue."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final

from django.core.management.base import CommandError

from ... import connections
from ...core import bulk
from ...core.actions import Action, Discard, Kick
from ...core.job_filter import JobFilter
from ...core.job_view import JobView
from ...core.queue import Queue
from ...core.reading import INDEXES
from ...core.times import iso_of
from ...masking import Mask
from ...status.formatting import printable, table
from ..base import DelayQCommand, add_show_secrets, call_of, mask_for, payload_of, positive
from ..conditions import add_conditions, filter_of

PAGE = 250
_SHARD: Final = attrgetter("job.shard")


class Command(DelayQCommand):
    """Command for the jobs in the morgue."""

    help = (
        "Lists, shows, retries or discards the jobs in the morgue: jobs that used up their attempts, or that cannot be "
        "run. Without an action it lists them."
    )
    examples = (
        "delayq_morgue list --queue orders",
        "delayq_morgue show --id invoice-17",
        "delayq_morgue retry --id invoice-17",
        "delayq_morgue retry --all --queue orders --per-second 50",
        "delayq_morgue retry --queue orders --task shop.remind --buried-from 2030-01-31T00:00:00Z",
        "delayq_morgue discard --all --older-than 2592000",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument(
            "action", nargs="?", default="list", choices=("list", "show", "retry", "discard"), help="default: list"
        )
        parser.add_argument("--queue", help="only this queue (default: all)")
        parser.add_argument(
            "--id", action="append", default=[], dest="ids", help="only the job of this id; may be repeated"
        )
        parser.add_argument("--all", action="store_true", help="retry or discard every job, of --queue if it is given")
        parser.add_argument(
            "--limit", type=positive(int, "a number of jobs"), help="at most this many jobs (default: 50 for list)"
        )
        parser.add_argument(
            "--delay",
            type=positive(float, "a number of seconds", zero=True),
            default=0.0,
            metavar="SECONDS",
            help="retry: run the jobs after this time (default: at once)",
        )
        parser.add_argument(
            "--per-second",
            type=positive(float, "a number of jobs"),
            metavar="JOBS",
            help="retry without --id: how many jobs of each queue become due per second (default: all at once)",
        )
        parser.add_argument(
            "--older-than",
            type=positive(float, "a number of seconds"),
            metavar="SECONDS",
            help="discard without --id: only jobs that have been in the morgue for longer than this",
        )
        parser.add_argument("--replace", action="store_true", help="retry: replace a live job of the same id")
        parser.add_argument("--yes", action="store_true", help="discard without --id: do not ask for confirmation")
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_conditions(parser)
        add_show_secrets(parser)

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action, hide, where = options["action"], mask_for(options), filter_of(options)
        queues = self.queues(options["queue"])
        if options["ids"] and not where.is_empty:
            raise CommandError("--id names the jobs already; leave the conditions out, or leave --id out")
        if action == "list":
            found = _select(queues, options["ids"], options["limit"] or 50, where)
            self.print_list([view for _, view in found], hide, options)
            return
        if action == "show":
            if not options["ids"] or options["all"]:
                raise CommandError("show needs --id ID (and --queue NAME if several queues have that id)")
            self.print_jobs(list(_select(queues, options["ids"], None, where)), hide, as_json=options["json"])
            return
        if bool(options["ids"]) + options["all"] + (not where.is_empty) != 1:
            raise CommandError(f"{action} needs either --id ID (may be repeated), --all, or conditions")
        for option, command in (("per_second", "retry"), ("older_than", "discard")):
            if options[option] is not None and (action != command or options["ids"] or options["limit"]):
                raise CommandError(f"--{option.replace('_', '-')} needs {command} --all or conditions, without --limit")
        if action == "discard" and not options["ids"]:
            self.confirm_discard(queues, options)
        counts: Counter[str] = Counter()
        selected: dict[str, list[JobView]] = {}
        if options["ids"] or options["limit"]:
            for queue, view in _select(queues, options["ids"], options["limit"], where):
                selected.setdefault(queue.name, []).append(view)
        with self.progress(action) as progress:
            for queue in queues:
                act, part = _action_of(queue, action, options), progress.part()
                if options["ids"] or options["limit"]:
                    counts.update(_act_on(queue, selected.get(queue.name, []), act, part))
                else:
                    verb = bulk.Verb("morgue", act)
                    counts.update(bulk.change(queue, verb, _older(queue, where, options), progress=part).counts)
        self.print_outcome(bulk.retried(counts), options)

    def confirm_discard(self, queues: list[Queue], options: dict[str, Any]) -> None:
        """Ask for confirmation, because discarded jobs cannot be restored."""
        inspector = connections.broker().inspector
        buried = sum(inspector.counts(queue.name).morgue for queue in queues)
        if buried:
            number = min(buried, options["limit"] or buried)
            is_part = options["older_than"] is not None or not options["all"]
            up_to = "up to " if is_part else ""
            self.confirm(
                f"Discard {up_to}{number} job{'s' if number > 1 else ''} of the morgue for good?", yes=options["yes"]
            )

    def queues(self, name: str | None) -> list[Queue]:
        """Return the chosen queue, or all."""
        return connections.broker().queues() if name is None else [self.known_queue(name)]

    def print_list(self, views: list[JobView], hide: Mask, options: dict[str, Any]) -> None:
        """Print jobs of the morgue."""
        if options["json"]:
            self.print_json([as_dict(view, hide) for view in views])
            return
        if not views:
            is_all = not options["ids"] and filter_of(options).is_empty
            self.stdout.write("The morgue is empty." if is_all else "No such job in the morgue.")
            return
        rows = [
            (
                view.job.queue,
                printable(view.id, 40),
                printable(view.job.task, 40),
                view.job.failures,
                printable(hide.text(view.reason), 30),
                printable(_class_of(view), 30),
                iso_of(view.buried_ms),
            )
            for view in views
        ]
        self.print_lines(table(("queue", "id", "task", "failures", "reason", "error", "buried"), rows, left=3))

    def print_jobs(self, jobs: list[tuple[Queue, JobView]], hide: Mask, *, as_json: bool) -> None:
        """Print all details of the jobs."""
        if not jobs:
            raise CommandError("no such job in the morgue")
        if as_json:
            self.print_json([as_dict(view, hide, details=True) for _, view in jobs])
            return
        for _, view in jobs:
            for name, value in as_dict(view, hide, details=True).items():
                if name == "error":
                    self.stdout.write(f"error     {printable(str(value.get('class', '')))}")
                    self.stdout.write(f"          {printable(str(value.get('message', '')), 2000)}")
                    for key in value.keys() - {"class", "message", "traceback"}:  # added by the project's format_error
                        self.stdout.write(f"          {printable(f'{key}: {value[key]}', 2000)}")
                    for line in str(value.get("traceback", "")).splitlines():
                        self.stdout.write(f"  {printable(line, 500)}")
                else:
                    self.stdout.write(f"{name:<10}{printable(str(value), 2000)}")
            self.stdout.write("")

    def print_outcome(self, counts: Counter[str], options: dict[str, Any]) -> None:
        """Print counts by outcome, and fail if jobs need a decision of the operator."""
        self.print_counts(counts, as_json=options["json"])
        if options["ids"] and not counts:
            raise CommandError("no such job in the morgue")
        if counts["live"]:
            raise CommandError(
                f"{counts['live']} of the jobs stay in the morgue, because a live job has the id: wait until it ends, "
                f"or replace it with --replace"
            )


def _action_of(queue: Queue, action: str, options: Mapping[str, Any]) -> Action:
    """Return an action of the command line: discard, or retry with its options."""
    if action == "discard":
        return Discard()
    delay_ms, per_second = int(options["delay"] * 1000), options["per_second"]
    first_ms = int(queue.deployment.now_ms()) + delay_ms if per_second else 0
    return Kick(delay_ms, per_second=per_second, first_ms=first_ms, replace=options["replace"])


def _act_on(queue: Queue, views: list[JobView], action: Action, progress: bulk.Progress) -> Iterator[str]:
    """Apply an action to jobs; yield the outcome of each."""
    done = 0
    for number, mine in groupby(sorted(views, key=_SHARD), key=_SHARD):
        outcomes = bulk.act_in_shard(queue, number, [(view.id, view.job.key) for view in mine], action)
        yield from outcomes
        done += len(outcomes)
        progress(done, len(views))


def _older(queue: Queue, where: JobFilter, options: Mapping[str, Any]) -> JobFilter:
    """Return the conditions with the age of the command line."""
    if options["older_than"] is None:
        return where
    before_ms = queue.deployment.now_ms() - options["older_than"] * 1000
    known = where.buried_before_ms
    return replace(where, buried_before_ms=before_ms if known is None else min(known, before_ms))


def _select(
    queues: list[Queue], ids: list[str], limit: int | None, where: JobFilter
) -> Iterator[tuple[Queue, JobView]]:
    """Return an iterator over the selected jobs of the morgue, newest first in each queue."""
    found = ((queue, view) for queue in queues for view in (_of_ids(queue, ids) if ids else _all(queue, where)))
    return islice(found, limit)


def _of_ids(queue: Queue, ids: list[str]) -> Iterator[JobView]:
    for job_id in ids:
        yield from connections.broker().inspector.graves(queue.name, job_id)


def _all(queue: Queue, where: JobFilter) -> Iterator[JobView]:
    by = where.best_order("morgue", tuple(INDEXES["morgue"]))
    cursor = ""
    while True:
        page = connections.broker().inspector.page(
            queue.name, "morgue", by, cursor=cursor, limit=PAGE, reverse=True, where=where
        )
        yield from page.jobs
        cursor = page.cursor
        if not cursor:
            return


def _class_of(view: JobView) -> str:
    """Return the class of the last error without its module, which would not fit into the column."""
    name = view.error_class or str(view.error.get("class", ""))
    return name.rpartition(".")[2] or name


def as_dict(view: JobView, hide: Mask, *, details: bool = False) -> dict[str, Any]:
    """Return a buried job as plain data, masked; ``details`` adds its arguments and its last error."""
    job = view.job
    summary: dict[str, Any] = {
        "queue": job.queue,
        "id": job.id,
        "key": job.key.hex(),
        "task": job.task,
        "due": iso_of(view.due_ms),
        "buried": iso_of(view.buried_ms),
        "created": None if view.created_ms is None else iso_of(view.created_ms),
        **view.history,
        "outcome": view.outcome,
        "reason": hide.text(view.reason),
    }
    if not details:
        return {**summary, "error_class": view.error_class}
    summary |= (
        {"payloads": [payload_of(payload.data, hide) for payload in view.payloads]}
        if job.merged
        else call_of(job, hide)
    )
    error = hide.value(view.error)
    if "traceback" in error:
        error["traceback"] = hide.traceback(str(view.error["traceback"]))
    return {**summary, "options": hide.value(job.options), "error": {"class": view.error_class, **error}}
