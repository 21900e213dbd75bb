"""``manage.py delayq_morgue``: jobs whose attempts are exhausted, or that were buried, and what to do with them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from django.core.management.base import CommandError

from django_delayq import connections
from django_delayq.core.codec import decode_args
from django_delayq.core.inspector import JobView
from django_delayq.core.queue import Queue
from django_delayq.management.base import DelayQCommand, moment, positive, printable, table

PAGE = 250


class Command(DelayQCommand):
    """See ``help``."""

    help = "Lists, shows, retries or discards the jobs in the morgue."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("action", nargs="?", default="list", choices=("list", "show", "retry", "discard"))
        parser.add_argument("--queue", help="only this queue (default: all)")
        parser.add_argument("--id", action="append", default=[], dest="ids", help="this job; may be repeated")
        parser.add_argument("--all", action="store_true", help="retry or discard every job (of --queue)")
        parser.add_argument(
            "--limit", type=positive(int, "a number of jobs"), help="at most so many jobs (list: 50 unless told)"
        )
        parser.add_argument(
            "--delay", type=positive(float, "a number of seconds", zero=True), default=0.0, metavar="SECONDS",
            help="retry: due after so many seconds",
        )  # fmt: skip
        parser.add_argument("--replace", action="store_true", help="retry: take the place of a live job of the same id")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, **options: Any) -> None:
        """Do the one action."""
        action = options["action"]
        queues = self.queues(options["queue"])
        if action == "list":
            self.print_list(queues, options["ids"], options["limit"] or 50, as_json=options["json"])
            return
        if action == "show":
            if not options["ids"] or options["all"]:
                raise CommandError("show needs --id ID (and --queue NAME if several queues have that id)")
            self.print_jobs(list(_chosen(queues, options["ids"], None)), as_json=options["json"])
            return
        if bool(options["ids"]) == options["all"]:
            raise CommandError(f"{action} needs either --id ID (may be repeated) or --all")

        def retry(queue: Queue, view: JobView) -> str:
            key = view.job.key
            return (
                queue.kick(view.id, key=key, delay_ms=int(options["delay"] * 1000), replace=options["replace"])
                or "gone"
            )

        def discard(queue: Queue, view: JobView) -> str:
            return "discarded" if queue.discard(view.id, key=view.job.key) else "gone"

        self.apply(retry if action == "retry" else discard, queues, options)

    def queues(self, name: str | None) -> list[Queue]:
        """The chosen queue, or all."""
        queues = connections.broker().queues()
        if name is None:
            return queues
        chosen = [queue for queue in queues if queue.name == name]
        if not chosen:
            known = ", ".join(queue.name for queue in queues) or "none yet"
            raise CommandError(f"there is no queue {printable(name)!r}. Known queues: {known}")
        return chosen

    def print_list(self, queues: list[Queue], ids: list[str], limit: int, *, as_json: bool) -> None:
        """The jobs that were buried last, newest first."""
        views = [view for _, view in _chosen(queues, ids, limit)]
        if as_json:
            self.print_json([as_dict(view) for view in views])
            return
        if not views:
            self.stdout.write("The morgue is empty." if not ids else "No such job in the morgue.")
            return
        rows = [
            (
                view.job.queue,
                printable(view.id, 40),
                printable(view.job.task, 40),
                view.job.failures,
                printable(view.reason, 30),
                printable(view.error_class, 30),
                moment(view.buried_ms),
            )
            for view in views
        ]
        for line in table(("queue", "id", "task", "failures", "reason", "error", "buried"), rows, left=3):
            self.stdout.write(line)

    def print_jobs(self, found: list[tuple[Queue, JobView]], *, as_json: bool) -> None:
        """Everything that is known of the jobs."""
        if not found:
            raise CommandError("no such job in the morgue")
        if as_json:
            self.print_json([as_dict(view, whole=True) for _, view in found])
            return
        for _, view in found:
            for name, value in as_dict(view, whole=True).items():
                if name == "error":
                    self.stdout.write(f"error     {printable(str(value.get('class', '')))}")
                    self.stdout.write(f"          {printable(str(value.get('message', '')), 2000)}")
                    for line in str(value.get("traceback", "")).splitlines():
                        self.stdout.write(f"  {printable(line, 500)}")
                else:
                    self.stdout.write(f"{name:<10}{printable(str(value), 2000)}")
            self.stdout.write("")

    def apply(self, act: Callable[[Queue, JobView], str], queues: list[Queue], options: dict[str, Any]) -> None:
        """Do ``act`` to each chosen job and print how often it came to what."""
        counts: Counter[str] = Counter()
        for queue, view in _chosen(queues, options["ids"], options["limit"]):
            counts[act(queue, view)] += 1
        if options["json"]:
            self.print_json(dict(counts))
        else:
            self.stdout.write(", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "nothing to do")
        if options["ids"] and not counts:
            raise CommandError("no such job in the morgue")
        if counts["live"]:
            raise CommandError(
                f"{counts['live']} jobs were left in the morgue, because a live job has their id now; "
                f"--replace takes its place"
            )


def _chosen(queues: list[Queue], ids: list[str], limit: int | None) -> Iterator[tuple[Queue, JobView]]:
    """The jobs of the morgue that are meant, newest first in each queue."""
    left = limit
    for queue in queues:
        for view in _of_ids(queue, ids) if ids else _all(queue):
            if left is not None:
                if left == 0:
                    return
                left -= 1
            yield queue, view


def _of_ids(queue: Queue, ids: list[str]) -> Iterator[JobView]:
    for ident in ids:
        yield from queue.broker.inspector.graves(queue.name, ident)


def _all(queue: Queue) -> Iterator[JobView]:
    cursor = ""
    while True:
        page = queue.broker.inspector.page(queue.name, "morgue", cursor=cursor, limit=PAGE, reverse=True)
        yield from page.jobs
        cursor = page.cursor
        if not cursor:
            return


def as_dict(view: JobView, *, whole: bool = False) -> dict[str, Any]:
    """A buried job as plain data; ``whole`` = with its arguments and its last error."""
    job = view.job
    known: dict[str, Any] = {
        "queue": job.queue,
        "id": job.id,
        "key": job.key.hex(),
        "task": job.task,
        "due": moment(view.due_ms),
        "buried": moment(view.buried_ms),
        "failures": job.failures,
        "reserves": job.reserves,
        "crashes": job.crashes,
        "outcome": view.outcome,
        "reason": view.reason,
    }
    if not whole:
        return {**known, "error_class": view.error_class}
    try:
        args, kwargs = decode_args(job.args)
        known |= {"args": args, "kwargs": kwargs}
    except Exception as error:  # stored bytes may be anything; a person wants to see them all the same
        known |= {"bytes": job.args[:2000].decode(errors="backslashreplace"), "undecodable": str(error)}
    return {**known, "options": job.options, "error": {"class": view.error_class, **view.error}}
