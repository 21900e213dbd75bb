"""Jobs made of a model's rows: options of `delayq_reconcile --model` and `delayq_pipeline bulk`, and the comparison."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections

from .. import connections as ours
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short, suggest
from ..core.task import Task, registry
from ..repair.row_comparison import RowJobs
from ..repair.rows import seconds as read_seconds
from ..settings.conf import conf
from .base import DelayQCommand, count_text, positive

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from ..repair.row_comparison import RowComparison


def seconds(text: str) -> float:
    """Return a time span like 90s or 2h30m in seconds, as an argparse type."""
    try:
        return read_seconds(text.removeprefix("+"))
    except Misconfigured as error:
        raise ArgumentTypeError(str(error)) from None


_LOOKUP: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)
_EXAMPLE: Final = '{"status": "pending", "total__gte": 10}'


def check_filter(given: str) -> tuple[Mapping[str, Any], ...]:
    """Return the filters in a JSON text: one object of field lookups, or a list of such objects.

    Raises:
        InvalidJob: it is neither; the message says what to write.
    """
    try:
        parsed = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"--filter must be JSON like {_EXAMPLE} ({error})") from None
    filters = parsed if isinstance(parsed, list) else [parsed]
    for one in filters:
        if not isinstance(one, dict):
            raise InvalidJob(f"--filter must be field lookups like {_EXAMPLE}, got {short(one)}")
        for lookup, value in one.items():
            if not _LOOKUP.fullmatch(lookup):  # names that begin with _ are internal to Django's filter()
                raise InvalidJob(f"--filter has {short(lookup)}, which is no field lookup; write it like {_EXAMPLE}")
            if any(isinstance(each, (dict, list)) for each in (value if isinstance(value, list) else [value])):
                raise InvalidJob(
                    f"--filter {lookup!r} has {short(value)}; a value is a text, a number, true, false, null, or a "
                    "list of these"
                )
    return tuple(one for one in filters if one)


def column_names(text: str) -> tuple[str, ...]:
    """Return columns or fields like ``pk,day``, as an argparse type."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def add_fields(jobs: _ArgumentGroup, noun: str, *, payload: str = "payload of merged tasks") -> None:
    """Add the options that name the parts of a row of which its job is made.

    Args:
        jobs: group of the options.
        noun: name of such a part: column or field.
        payload: meaning of ``--payload``.
    """
    for name, text in (("args", "positional arguments"), ("kwargs", "named arguments"), ("context", "the context")):
        # "args" is reserved among the options of a Django command
        dest, meaning = f"job_{name}", f"{noun}s that are {text}"
        jobs.add_argument(f"--{name}", dest=dest, type=column_names, default=(), metavar="A,B", help=meaning)
    jobs.add_argument("--payload", metavar=noun.upper(), help=payload)
    jobs.add_argument("--score", metavar=noun.upper(), help="score of the payload")


def known_task(name: str, *, payload: str | None) -> Task:
    """Return the task of this name, if its jobs can be created.

    Args:
        payload: source of the payload of a merged task.

    Raises:
        CommandError: there is no such task, or a payload is missing or superfluous.
    """
    task = registry.get(name)
    if task is None:
        raise CommandError(
            f"there is no task {name!r} here.{suggest(name, registry.tasks)} Give the name of a registered task: "
            "no worker runs the jobs of an unknown one",
            returncode=2,
        )
    if bool(task.options.merge) != (payload is not None):
        problem = "is merged: its jobs need a --payload" if task.options.merge else "is not merged: leave --payload out"
        raise CommandError(f"task {name!r} {problem}", returncode=2)
    return task


def writer_options(queue: str, task: Task | None, **overrides: object) -> dict[str, str]:
    """Return options of the writer: the values that ``schedule()`` takes from the task and the settings.

    Args:
        task: the task; None if the jobs have none.
        overrides: options that override those of the task; None = not given.
    """
    values: dict[str, Any] = {
        "shards": ours.configured_shards(queue),
        "maxArgsBytes": conf().max_args_bytes,
        "allowFar": str(conf().allow_far).lower(),
        "codec": conf().codec,
    }
    if task is not None:
        values |= {"priority": task.options.priority, "expires": task.options.expires}
    if task is not None and task.options.merge:
        values |= {
            "duePolicy": task.options.due_policy,
            "scorePolicy": task.options.score_policy,
            "payloads": task.options.payloads,
            "maxPayloads": task.options.max_payloads,
        }
    values |= {name: value for name, value in overrides.items() if value is not None}
    return {name: str(value) for name, value in values.items() if value is not None}


def known_database(alias: str | None) -> str | None:
    """Return the alias of a database; None = chosen by the router.

    Raises:
        CommandError: there is no such database.
    """
    if alias is not None and alias not in connections:
        raise CommandError(f"--using: there is no database {alias!r}.{suggest(alias, connections)}", returncode=2)
    return alias


def add_rows(parser: ArgumentParser) -> None:
    """Add the options that select the rows and describe their jobs, but for the queue and the id of the jobs."""
    rows = parser.add_argument_group("rows that need a job")
    rows.add_argument("--model", metavar="APP.MODEL", help="model of the rows")
    rows.add_argument("--filter", metavar="JSON", help="""lookups that select them, like '{"status": "placed"}'""")
    rows.add_argument("--using", metavar="ALIAS", help="database of the model (default: by the router)")
    rows.add_argument(
        "--created",
        metavar="FIELD",
        help="field with the moment or the day since when a row needs its job",
    )
    rows.add_argument(
        "--grace",
        type=seconds,
        default=600.0,
        metavar="TIME",
        help="skip rows that are younger than this (default: 10m)",
    )
    jobs = parser.add_argument_group("jobs of the rows")
    jobs.add_argument(
        "--task",
        help="name of the task; it sets the queue, the priority, the expiry and how payloads are merged",
    )
    jobs.add_argument(
        "--due",
        metavar="WHAT",
        help="due time of restored jobs: a field, a moment like 2026-11-21T08:00:00+01:00, or a delay like +2h30m "
        "(default: at once)",
    )
    add_fields(jobs, "field")
    how = parser.add_argument_group("actions on the jobs of the rows")
    how.add_argument(
        "--include-morgue",
        action="store_true",
        help="also restore jobs that are in the morgue or were refused by the outbox; those records are kept",
    )
    how.add_argument("--report-orphans", action="store_true", help="report live jobs of the task that no row needs")
    how.add_argument(
        "--cancel-orphans",
        action="store_true",
        help="cancel live jobs of the task that no row selected by --filter needs",
    )
    how.add_argument(
        "--rate", type=positive(float, "a number of jobs"), metavar="N", help="at most this many jobs per second"
    )


def bad_rows_text(bad: int, first: Iterable[tuple[str | None, str]]) -> str:
    """Return the lines that name the first rows which cannot have a job."""
    lines = [f"WARNING: {bad:,} rows cannot have a job, and are skipped until they are corrected. The first:"]
    return "\n".join(lines + [f"    {short(ident)}: {reason}" for ident, reason in first])


def row_jobs(options: Mapping[str, Any]) -> RowJobs:
    """Return the jobs that the options of `delayq_reconcile --model` describe.

    Raises:
        CommandError: an option is missing or wrong.
    """
    for name in ("created", "task"):
        if options[name] is None:
            raise CommandError(f"--model needs --{name}: see --help", returncode=2)
    if len(options["ids"]) != 1:
        raise CommandError("--model needs one --id, a template like 'order-{pk}'", returncode=2)
    task = known_task(options["task"], payload=options["payload"])
    try:
        return RowJobs(
            model=apps.get_model(options["model"]),
            task=task,
            queue=options["queue"] or task.options.queue,
            id=options["ids"][0],
            created=options["created"],
            filters=check_filter(options["filter"]) if options["filter"] else (),
            using=known_database(options["using"]),
            due=options["due"],
            args=options["job_args"],
            kwargs=options["job_kwargs"],
            context=options["job_context"],
            payload=options["payload"],
            score=options["score"],
            grace_ms=options["grace"] * 1000,
            include_morgue=options["include_morgue"],
        )
    except (Misconfigured, LookupError, ValueError) as error:
        raise CommandError(str(error), returncode=2) from error


def reconcile(command: DelayQCommand, options: Mapping[str, Any]) -> dict[str, Any]:
    """Compare rows with their jobs, restore missing jobs, cancel orphans if that is requested; return the counts."""
    from ..repair.row_comparison import RowComparison

    if options["cancel_orphans"] and not options["dry_run"]:
        command.check_confirmable(yes=options["yes"])
    jobs = row_jobs(options)
    with command.progress("compare", unit="rows") as progress:
        comparison = RowComparison(jobs, progress.update)
        counts = comparison.look()
    result: dict[str, Any] = {"state": "dry run" if options["dry_run"] else "finished", **counts.values()}
    command.stderr.write(counts.summary(include_morgue=jobs.include_morgue))
    if counts.bad:
        command.stderr.write(bad_rows_text(counts.bad, counts.first_bad))
        result["first_bad"] = [list(pair) for pair in counts.first_bad]
    result["outcomes"] = {}
    if counts.missing and not options["dry_run"]:
        with command.progress("restore") as progress:
            result["outcomes"] = comparison.put_back(rate=options["rate"], progress=progress.update)
    if options["report_orphans"] or options["cancel_orphans"]:
        result |= _handle_orphans(command, comparison, options)
    return result


def _handle_orphans(command: DelayQCommand, comparison: RowComparison, options: Mapping[str, Any]) -> dict[str, Any]:
    from ..repair.row_comparison import MOST_ORPHANS

    orphans = comparison.orphans()
    result: dict[str, Any] = {"orphans": len(orphans), "first_orphans": sorted(one.id for one in orphans)[:10]}
    more = "; there may be more: repeat the command" if len(orphans) >= MOST_ORPHANS else ""
    command.stderr.write(f"{len(orphans):,} live jobs of the task that no row needs{more}")
    if not orphans or not options["cancel_orphans"] or options["dry_run"]:
        return result
    if command.confirmed(f"Cancel {len(orphans):,} jobs that no row needs?", yes=options["yes"]):
        with command.progress("cancel") as progress:
            result["cancelled"] = comparison.cancel_orphans(orphans, progress.update)
        command.stderr.write(f"orphans: {count_text(result['cancelled'])}")
    return result
