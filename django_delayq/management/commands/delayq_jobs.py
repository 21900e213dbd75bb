"""Command ``manage.py delayq_jobs``: list and show jobs, and act on one or on many."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError

from ... import connections
from ...core import bulk
from ...core.actions import Kick
from ...core.errors import InvalidJob, Misconfigured
from ...core.inputs import short
from ...core.job_filter import CONDITIONS, JobFilter
from ...core.job_view import JobView
from ...core.queue import Queue
from ...core.reading import INDEXES, SEARCHED
from ...core.times import ms_of, parse_moment
from ...outbox import row_verbs
from ...repair.rows import seconds
from ...status.formatting import printable, table
from ...status.job_content import job_as_dict
from ..base import DelayQCommand, add_show_secrets, count_text, mask_for, positive

PAGE: Final = 250
COLUMNS: Final = ("queue", "state", "id", "task", "time", "failures", "error", "content")
#: options that only one action has
OF_ACTION: Final = {"cursor": "list", "delay": "retry", "per_second": "retry", "replace": "retry"}
_SHARD: Final = attrgetter("job.shard")


class JobAction(NamedTuple):
    """Action on jobs.

    Attributes:
        verbs: by the places whose jobs it can change; the first one is the default.
        question: asked before it changes many jobs; "" = not asked.
        on_all: does it to a whole queue, also to durable jobs that Redis does not have yet.
    """

    help: str
    verbs: Mapping[str, bulk.Verb]
    question: str = ""
    on_all: Callable[..., dict[str, int]] | None = None


ACTIONS: Final[dict[str, JobAction]] = {
    "run": JobAction(
        "make waiting jobs due now; they keep their order",
        {"waiting": bulk.RUN_NOW},
        "Make {number} delayed jobs of {queues} due now?",
        row_verbs.run_all_now,
    ),
    "cancel": JobAction(
        "delete waiting jobs; with --all this is the admin's Purge",
        {"waiting": bulk.CANCEL},
        "Delete {number} waiting jobs of {queues}, for good?",
        row_verbs.cancel_all,
    ),
    "bury": JobAction(
        "move waiting jobs that have failed to the morgue",
        {"failed": bulk.KILL_FAILED},
        "Move {number} jobs of {queues} that have failed to the morgue?",
    ),
    "retry": JobAction("move jobs from the morgue back into their queues", {"morgue": bulk.kick()}),
    "discard": JobAction(
        "delete jobs of the morgue; with --place failed, waiting jobs that have failed",
        {"morgue": bulk.DISCARD, "failed": bulk.DELETE_FAILED},
        "Delete {number} {place} jobs of {queues}, for good?",
    ),
}


class Command(DelayQCommand):
    """Command that lists and shows jobs, and acts on them."""

    help = (
        "Lists or shows jobs, or acts on them: "
        + "; ".join(f"{name}: {action.help}" for name, action in ACTIONS.items())
        + ". Without an action it lists."
    )
    examples = (
        "delayq_jobs list --queue orders --text invoice-17",
        "delayq_jobs list --place morgue",
        "delayq_jobs show --id invoice-17",
        "delayq_jobs run --queue orders --all",
        "delayq_jobs cancel --queue orders --task shop.remind --prefix north-",
        "delayq_jobs retry --id invoice-17",
        "delayq_jobs retry --all --queue orders --per-second 50",
        "delayq_jobs discard --buried-before 30d",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        actions = ("list", "show", *ACTIONS)
        parser.add_argument("action", nargs="?", default="list", choices=actions, help="default: list")
        parser.add_argument("--queue", help="only this queue (default: all)")
        parser.add_argument(
            "--place",
            action="append",
            choices=tuple(INDEXES),
            dest="places",
            help="only jobs in this place; may be repeated for list and show",
        )
        parser.add_argument(
            "--id", action="append", default=[], dest="ids", help="only the job of this id; may be repeated"
        )
        parser.add_argument("--all", action="store_true", help="act on every job of the place")
        parser.add_argument(
            "--limit", type=positive(int, "a number of jobs"), help="at most this many jobs (default: 50 for list)"
        )
        parser.add_argument("--cursor", default="", help="list: continue an earlier list, which printed this")
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
        parser.add_argument("--replace", action="store_true", help="retry: replace a live job of the same id")
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_show_secrets(parser)
        _add_conditions(parser)

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action = options["action"]
        where = JobFilter(**{name: options[name] for name in CONDITIONS if options[name] is not None})
        for option, of in OF_ACTION.items():
            if options[option] and action != of:
                raise CommandError(f"--{option.replace('_', '-')} is for {of}: leave it out", returncode=2)
        if options["ids"] and not where.is_empty:
            raise CommandError("--id names the jobs already; leave the conditions out, or leave --id out")
        name = options["queue"]
        queues = connections.broker().queues() if name is None else [connections.broker().require_queue(name)]
        if action == "list":
            self.print_list(queues, where, options)
        elif action == "show":
            self.print_jobs(queues, options)
        else:
            self.act(action, queues, where, options)

    # -- list and show

    def print_list(self, queues: list[Queue], where: JobFilter, options: Mapping[str, Any]) -> None:
        """Print the jobs that meet the conditions."""
        hide, search = mask_for(options), Search(queues, where, options)
        found = search.find(options["limit"] or 50)
        jobs = [job_as_dict(view, hide) for view in found]
        lines = table(COLUMNS, map(_row, jobs), left=len(COLUMNS)) if jobs else ["no job found"]
        self.print_answer(jobs, *lines)
        if cursor := search.cursor:
            note = (
                f"These are the first {len(found)} jobs; there may be more. Raise --limit to see them, or continue "
                f"with --cursor {cursor}"
            )
            (self.stderr if self.as_json else self.stdout).write(note)

    def print_jobs(self, queues: list[Queue], options: Mapping[str, Any]) -> None:
        """Print all details of the jobs of the given ids."""
        if not options["ids"] or options["all"]:
            raise CommandError("show needs --id ID (and --queue NAME if several queues have that id)")
        hide, views = mask_for(options), Search(queues, JobFilter(), options).find()
        for view in views:
            if view.job.merged and view.state != "morgue":
                payloads = connections.broker().inspector.payloads(view.job.queue, view.id)
                view.payloads = tuple(islice(payloads, PAGE))
        jobs = [job_as_dict(view, hide, details=True) for view in views]
        if not jobs:
            raise CommandError("there is no such job")
        self.print_answer(jobs, *(line for job in jobs for line in _details(job)))

    # -- actions

    def act(self, name: str, queues: list[Queue], where: JobFilter, options: dict[str, Any]) -> None:
        """Act on the jobs of the given ids, on those that meet the conditions, or on all."""
        action, ids, limit = ACTIONS[name], options["ids"], options["limit"]
        if bool(ids) + options["all"] + (not where.is_empty) != 1:
            raise CommandError(f"{name} which jobs? Give --id ID (may be repeated), --all, or conditions")
        if options["per_second"] and (ids or limit):
            raise CommandError("--per-second needs --all or conditions, without --limit")
        (place, *others) = options["places"] or list(action.verbs)[:1]
        if others or place not in action.verbs:
            raise CommandError(f"{name} is for jobs in one of these places: {', '.join(action.verbs)}")
        verb, selected = action.verbs[place], {**options, "places": [place]}
        if action.question and not ids:
            self.confirm(_question(action.question, place, queues, options), yes=options["yes"])
        counts: Counter[str] = Counter()
        with self.progress(name) as progress:
            for queue in queues:
                if name == "retry":
                    verb = _kick(queue, options)
                if ids or limit:
                    left = None if limit is None else limit - counts.total()
                    views = Search([queue], where, selected).find(left) if left != 0 else []
                    counts.update(_act_on(queue, views, verb, progress.part()))
                elif where.is_empty and action.on_all is not None:
                    counts.update(action.on_all(queue, progress=progress.part()))
                else:
                    counts.update(bulk.change(queue, verb, where, progress=progress.part()).counts)
        self.print_outcome(bulk.retried(counts), options)

    def print_outcome(self, counts: Counter[str], options: dict[str, Any]) -> None:
        """Print counts by outcome, and fail if jobs need a decision of the operator."""
        self.print_answer(dict(counts), count_text(counts))
        if options["ids"] and not counts:
            raise CommandError("there is no such job in that place")
        if counts["live"]:
            raise CommandError(
                f"{counts['live']} of the jobs stay in the morgue, because a live job has the id: wait until it ends, "
                f"or replace it with --replace"
            )


class Search:
    """Search for jobs in places of queues, one after the other.

    ``cursor`` continues it, and is empty at the end.
    """

    def __init__(self, queues: list[Queue], where: JobFilter, options: Mapping[str, Any]) -> None:
        self._where = where
        self._ids: list[str] = options["ids"]
        places = dict.fromkeys(options["places"] or SEARCHED)
        self._stops = [(queue.name, place) for queue in queues for place in places]
        self._position = ""
        self.cursor: str = options["cursor"]
        if self.cursor:
            begin, _, self._position = self.cursor.partition(":")
            names = ["/".join(stop) for stop in self._stops]
            if begin not in names:
                cursor = short(self.cursor)
                raise InvalidJob(f"{cursor} is not a cursor of this list; give the same --queue and --place again")
            self._stops = self._stops[names.index(begin) :]

    def find(self, limit: int | None = None) -> list[JobView]:
        """Return the jobs of the given ids, or up to ``limit`` jobs that meet the conditions, each once.

        Raises:
            InvalidJob: the cursor is not valid.
        """
        return list(islice(self._of_ids(), limit) if self._ids else self._of_places(limit or PAGE))

    def _of_ids(self) -> Iterator[JobView]:
        inspector = connections.broker().inspector
        for ident in self._ids:
            for queue, place in self._stops:
                if place == "morgue":
                    yield from inspector.graves(queue, ident)
                elif (view := inspector.get(queue, ident)) is not None and _is_in(view, place):
                    yield view

    def _of_places(self, limit: int) -> Iterator[JobView]:
        inspector = connections.broker().inspector
        seen: set[tuple[str, str, bytes]] = set()
        position = self._position
        for queue, place in self._stops:
            while len(seen) < limit:
                page = inspector.page(
                    queue,
                    place,
                    cursor=position,
                    limit=min(PAGE, limit - len(seen)),
                    reverse=place == "morgue",
                    where=self._where,
                )
                for view in page.jobs:
                    name = queue, view.id, view.job.key if place == "morgue" else b""
                    if name not in seen:
                        seen.add(name)
                        yield view
                position = page.cursor
                if not position:
                    break
            else:
                self.cursor = f"{queue}/{place}:{position}"
                return
        self.cursor = ""


def _is_in(view: JobView, place: str) -> bool:
    """Return True if a job is in a live place."""
    if view.state in ("reserved", "morgue") or place == "reserved":
        return view.state == place
    return place == "waiting" or view.job.failures > 0


def _details(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a job, its traceback at the end."""
    error = dict(job["error"])
    trace = str(error.pop("traceback", "")).splitlines()
    values = {**job, **{f"error {name}": value for name, value in error.items()}}
    del values["error"]
    yield from (f"{name:<14}{printable(str(value), 2000)}" for name, value in values.items())
    yield from (*(f"  {printable(line, 500)}" for line in trace), "")


def _row(job: Mapping[str, Any]) -> list[object]:
    """Return a job for the table: the arguments in their stored form, the error's class without its module."""
    error = job["error_class"].rpartition(".")[2] or job["error_class"]
    content = {"a": job["args"], "k": job["kwargs"]} if job.get("kwargs") else job.get("args")
    for name in ("body", "body_base64", "payloads"):
        content = job.get(name, content)
    if content is None:
        content = f"{job.get('payload_count', 0)} payloads"
    texts = (
        job["queue"],
        job["state"],
        job["id"],
        job["task"],
        job["buried"] or job["due"],
        str(job["failures"]),
        " ".join(filter(None, (job["reason"], error))),
        content if isinstance(content, str) else json.dumps(content, ensure_ascii=False),
    )
    return [printable(text) for text in texts]


def _question(question: str, place: str, queues: list[Queue], options: Mapping[str, Any]) -> str:
    """Return a question with the number of jobs, so that the operator sees the effect."""
    inspector, number = connections.broker().inspector, 0
    for queue in queues:
        counts = inspector.counts(queue.name)
        if place == "waiting":
            number += counts.delayed + (row_verbs.count_unsent(queue) if options["all"] else 0)
            number += counts.ready if options["action"] == "cancel" else 0
        else:
            number += getattr(counts, place)
    up_to = "" if options["all"] and not options["limit"] else "up to "
    names = "all queues" if options["queue"] is None else printable(options["queue"])
    return question.format(number=f"{up_to}{number}", place=place, queues=names)


def _kick(queue: Queue, options: Mapping[str, Any]) -> bulk.Verb:
    """Return the verb that retries jobs of a queue as the options say."""
    delay_ms, per_second = int(options["delay"] * 1000), options["per_second"]
    first_ms = int(queue.deployment.now_ms()) + delay_ms if per_second else 0
    kick = Kick(delay_ms, per_second=per_second, first_ms=first_ms, replace=options["replace"])
    return bulk.Verb("morgue", kick)


def _act_on(queue: Queue, views: list[JobView], verb: bulk.Verb, progress: bulk.Progress) -> Iterator[str]:
    """Apply a verb to jobs; yield the outcome of each."""
    done = 0
    for number, mine in groupby(sorted(views, key=_SHARD), key=_SHARD):
        outcomes = bulk.act_in_shard(queue, number, [(view.id, view.job.key) for view in mine], verb.action)
        yield from outcomes
        done += len(outcomes)
        progress(done, len(views))


# -- conditions --------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if not text:
        raise ArgumentTypeError("search for what? The text is empty; give a part of an id, a task or the arguments")
    return text


def _moment(text: str) -> int:
    """Return a moment, or a time span before now, as Unix ms."""
    try:
        return round((time.time() - seconds(text)) * 1000)
    except Misconfigured:
        pass
    try:
        return ms_of(parse_moment(text))
    except InvalidJob as error:
        raise ArgumentTypeError(str(error)) from None


#: kind of a condition → type of its option
_TYPES: Final[dict[str, Any]] = {
    "text": {"type": _text},
    "id": {},
    "moment": {"type": _moment, "metavar": "TIME"},
    "failures": {"type": positive(int, "a number of failures", zero=True)},
    "flag": {"action": "store_true"},
}


def _add_conditions(parser: ArgumentParser) -> None:
    """Add an option for each condition of a filter."""
    group = parser.add_argument_group(
        "conditions",
        "Only jobs that meet all of them. A TIME is a moment (ISO 8601), or the time since then (90s, 2h30m, 30d).",
    )
    for name, (kind, text) in CONDITIONS.items():
        flags = [f"--{name.removesuffix('_ms').replace('_', '-')}", *(["--match"] if name == "text" else [])]
        group.add_argument(*flags, dest=name, help=f"jobs {text}", **_TYPES[kind])
