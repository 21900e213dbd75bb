"""Command ``manage.py delayq_jobs``: list and show jobs, and act on one or on many."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError

from ... import connections
from ...core import bulk
from ...core.actions import Kick
from ...core.errors import InvalidJob, Misconfigured
from ...core.job_filter import CONDITIONS, EVERY_JOB, JobFilter
from ...core.job_view import JobView
from ...core.queue import Queue
from ...core.reading import SEARCHED
from ...core.times import ms_of, parse_moment
from ...outbox import row_verbs
from ...repair.rows import seconds
from ...status.formatting import printable, table
from ...status.job_content import job_as_dict
from ..base import DelayQCommand, add_options, count_text, mask_for, positive, refuse_options

#: jobs that are read in one call, and payloads that are shown of a merged job
PAGE: Final = 250
#: options that only one action has
OF_ACTION: Final = {"delay": ("retry",), "per_second": ("retry",), "replace": ("retry",)}


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
    on_all: Callable[..., bulk.Changed] | None = None


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

    options = """
        [action] list|show|run|cancel|bury|retry|discard  default: list
        --queue NAME   only this queue (default: all)
        --place waiting|reserved|failed|morgue…  only jobs in this place; may be repeated for list and show
        --id ID…       only the job of this id; may be repeated
        --all          act on every job of the place
        --limit N      at most this many jobs (default: 50 for list)
        --delay SECONDS  retry: run the jobs after this time (default: at once)
        --per-second RATE  retry without --id: how many jobs of each queue become due per second (default: all at once)
        --replace      retry: replace a live job of the same id
        --yes          do not ask for confirmation
        --json         print JSON
        --show-secrets  do not mask values whose names suggest secrets (password, token)
    """

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        super().add_arguments(parser)
        _add_conditions(parser)

    def run(self, **options: Any) -> None:
        """Run the chosen action."""
        action, queue = options["action"] or "list", options["queue"]
        given = {name: options[_option_of(name)] for name in CONDITIONS}
        where = JobFilter(**{name: value for name, value in given.items() if value is not None})
        refuse_options(options, OF_ACTION)
        if options["id"] and not where.is_empty:
            raise CommandError("--id names the jobs already; leave the conditions out, or leave --id out")
        queues = connections.broker().queues() if queue is None else [connections.broker().require_queue(queue)]
        if action == "list":
            self.print_list(queues, where, options)
        elif action == "show":
            self.print_jobs(queues, options)
        else:
            self.act(action, queues, where, options)

    # -- list and show

    def print_list(self, queues: list[Queue], where: JobFilter, options: Mapping[str, Any]) -> None:
        """Print the jobs of the given ids, or those that meet the conditions."""
        limit, hide = options["limit"] or 50, mask_for(options)
        found = list(find(queues, options["place"] or SEARCHED, options["id"] or (), where, limit + 1))
        jobs = [job_as_dict(view, hide) for view in found[:limit]]
        self.print_answer(jobs, *(table(map(_row, jobs), left=8) or ["no job found"]))
        if len(found) > limit:
            note = f"These are the first {limit} jobs; there are more. Raise --limit to see them, or give conditions"
            (self.stderr if self.as_json else self.stdout).write(note)

    def print_jobs(self, queues: list[Queue], options: Mapping[str, Any]) -> None:
        """Print all details of the jobs of the given ids."""
        if not options["id"] or options["all"]:
            raise CommandError("show needs --id ID (and --queue NAME if several queues have that id)")
        views = list(find(queues, options["place"] or SEARCHED, options["id"]))
        for view in views:
            if view.job.merged and view.state != "morgue":
                payloads = connections.broker().inspector.payloads(view.job.queue, view.id)
                view.payloads = tuple(islice(payloads, PAGE))
        jobs = [job_as_dict(view, mask_for(options), details=True) for view in views]
        if not jobs:
            raise CommandError("there is no such job")
        self.print_answer(jobs, *(line for job in jobs for line in _details(job)))

    # -- actions

    def act(self, name: str, queues: list[Queue], where: JobFilter, options: dict[str, Any]) -> None:
        """Act on the jobs of the given ids, on those that meet the conditions, or on all."""
        action, ids, limit = ACTIONS[name], options["id"] or (), options["limit"]
        if bool(ids) + options["all"] + (not where.is_empty) != 1:
            raise CommandError(f"{name} which jobs? Give --id ID (may be repeated), --all, or conditions")
        if options["per_second"] and (ids or limit):
            raise CommandError("--per-second needs --all or conditions, without --limit")
        (place, *others) = options["place"] or list(action.verbs)[:1]
        if others or place not in action.verbs:
            raise CommandError(f"{name} is for jobs in one of these places: {', '.join(action.verbs)}")
        if action.question and not ids:
            self.confirm(_question(action.question, place, queues, options), yes=options["yes"])
        counts: Counter[str] = Counter()
        with self.progress(name) as progress:
            for queue in queues:
                verb = _kick(queue, options) if name == "retry" else action.verbs[place]
                if ids or limit:
                    left = None if limit is None else limit - counts.total()
                    for view in list(find([queue], [place], ids, where, left)):
                        member = (view.id, view.job.key)
                        counts.update(bulk.act_in_shard(queue, view.job.shard, [member], verb.action))
                        progress.update(counts.total())
                elif where.is_empty and action.on_all is not None:
                    counts.update(action.on_all(queue, progress=progress.part()).counts)
                else:
                    counts.update(bulk.change(queue, verb, where, progress=progress.part()).counts)
        counts = bulk.retried(counts)
        self.print_answer(dict(counts), count_text(counts))
        if ids and not counts:
            raise CommandError("there is no such job in that place")
        if counts["live"]:
            raise CommandError(
                f"{counts['live']} of the jobs stay in the morgue, because a live job has the id: wait until it ends, "
                f"or replace it with --replace"
            )


def find(
    queues: Sequence[Queue],
    places: Sequence[str],
    ids: Sequence[str] = (),
    where: JobFilter = EVERY_JOB,
    limit: int | None = None,
) -> Iterator[JobView]:
    """Return up to ``limit`` jobs of these ids in these places, or without an id those that meet the conditions."""
    stops = list(product([queue.name for queue in queues], dict.fromkeys(places)))
    return islice(_of_ids(stops, ids) if ids else _of_places(stops, where, min(PAGE, limit or PAGE)), limit)


def _of_ids(stops: Sequence[tuple[str, str]], ids: Sequence[str]) -> Iterator[JobView]:
    inspector = connections.broker().inspector
    for ident, (queue, place) in product(ids, stops):
        if place == "morgue":
            yield from inspector.graves(queue, ident)
        elif (view := inspector.get(queue, ident)) is not None and _is_in(view, place):
            yield view


def _is_in(view: JobView, place: str) -> bool:
    """Return True if a job is in a live place."""
    if view.state in ("reserved", "morgue") or place == "reserved":
        return view.state == place
    return place == "waiting" or view.job.failures > 0


def _of_places(stops: Sequence[tuple[str, str]], where: JobFilter, size: int) -> Iterator[JobView]:
    """Yield each job once, also one that moves to another place meanwhile."""
    seen: set[tuple[str, str, bytes]] = set()
    for queue, place in stops:
        cursor: str | None = ""
        while cursor is not None:
            page = connections.broker().inspector.page(
                queue, place, cursor=cursor, limit=size, reverse=place == "morgue", where=where
            )
            for view in page.jobs:
                name = queue, view.id, view.job.key if place == "morgue" else b""
                if name not in seen:
                    seen.add(name)
                    yield view
            cursor = page.cursor or None


def _details(job: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a job, its traceback at the end."""
    error = dict(job["error"])
    trace = str(error.pop("traceback", "")).splitlines()
    values = {**job, **{f"error {name}": value for name, value in error.items()}}
    del values["error"]
    yield from (f"{name:<14}{printable(str(value), 2000)}" for name, value in values.items())
    yield from (*(f"  {printable(line, 500)}" for line in trace), "")


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    """Return a job for the table: the arguments in their stored form, the error's class without its module."""
    error = job["error_class"].rpartition(".")[2] or job["error_class"]
    content = {"a": job["args"], "k": job["kwargs"]} if job.get("kwargs") else job.get("args")
    for name in ("body", "body_base64", "payloads"):
        content = job.get(name, content)
    if content is None:
        content = f"{job.get('payload_count', 0)} payloads"
    texts = {
        **{name: job[name] for name in ("queue", "state", "id", "task")},
        "time": job["buried"] or job["due"],
        "failures": str(job["failures"]),
        "error": " ".join(filter(None, (job["reason"], error))),
        "content": content if isinstance(content, str) else json.dumps(content, ensure_ascii=False),
    }
    return {name: printable(text) for name, text in texts.items()}


def _question(question: str, place: str, queues: list[Queue], options: Mapping[str, Any]) -> str:
    """Return a question with the number of jobs, so that the operator sees the effect."""
    number = 0
    for queue in queues:
        counts = connections.broker().inspector.counts(queue.name)
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
    delay_ms, per_second = int((options["delay"] or 0) * 1000), options["per_second"]
    first_ms = int(queue.deployment.now_ms()) + delay_ms if per_second else 0
    kick = Kick(delay_ms, per_second=per_second, first_ms=first_ms, replace=options["replace"])
    return bulk.Verb("morgue", kick)


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


#: names of the values of conditions, by their kinds
_VALUES: Final = {"text": " TEXT", "id": " ID", "moment": " MOMENT", "failures": " COUNT", "flag": ""}


def _option_of(condition: str) -> str:
    """Return the name of a condition among the options."""
    return condition.removesuffix("_ms")


def _add_conditions(parser: ArgumentParser) -> None:
    """Add an option for each condition of a filter."""
    text = "Only jobs that meet all of them. A MOMENT is ISO 8601, or the time since then (90s, 2h30m, 30d)."
    lines = [
        f"--{_option_of(name).replace('_', '-')}{_VALUES[kind]}  jobs {text}"
        for name, (kind, text) in CONDITIONS.items()
    ]
    count = positive(int, "a number of failures", zero=True)
    add_options(
        parser.add_argument_group("conditions", text), "\n".join(lines), TEXT=_text, MOMENT=_moment, COUNT=count
    )
