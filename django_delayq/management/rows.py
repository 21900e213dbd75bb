"""Jobs made of a model's rows: options of `delayq_reconcile --model` and `delayq_pipeline bulk`, and the comparison."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, Final

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections

from .. import connections as ours
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short, suggest
from ..core.task import Task, registry
from ..repair.row_comparison import RowJobs
from ..repair.rows import GRACE_MS
from ..settings.conf import conf
from .base import DelayQCommand, add_options

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


#: parts of a row of which its job is made; ``{noun}`` is column or field. "args" is reserved among a command's options
FIELDS: Final = """
    --args=job_args NAMES        {noun}s that are positional arguments, separated by commas
    --kwargs=job_kwargs NAMES    {noun}s that are named arguments
    --context=job_context NAMES  {noun}s that are the context
    --score NAME                 {noun} with the score of the payload
"""


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


ROWS: Final = """
    --model APP.MODEL  model of the rows
    --filter JSON      lookups that select them, like '{"status": "placed"}'
    --using ALIAS      database of the model (default: by the router)
    --created FIELD    field with the moment or the day since when a row needs its job
    --grace TIME       skip rows that are younger than this (default: 10m)
"""
JOBS: Final = """
    --task TASK  name of the task; it sets the queue, the priority, the expiry and how payloads are merged
    --due WHAT   due time of restored jobs: a field, a moment like 2026-11-21T08:00:00+01:00, or a delay like +2h30m
                 (default: at once)
    --payload FIELD  payload of merged tasks
"""
HOW: Final = """
    --include-morgue  also restore jobs that are in the morgue or were refused by the outbox; those records are kept
    --rate RATE       at most this many jobs per second
"""


def add_rows(parser: ArgumentParser) -> None:
    """Add the options that select the rows and describe their jobs, but for the queue and the id of the jobs."""
    add_options(parser.add_argument_group("rows that need a job"), ROWS)
    add_options(parser.add_argument_group("jobs of the rows"), JOBS + FIELDS.format(noun="field"))
    add_options(parser.add_argument_group("actions on the jobs of the rows"), HOW)


def row_jobs(options: Mapping[str, Any]) -> RowJobs:
    """Return the jobs that the options of `delayq_reconcile --model` describe.

    Raises:
        CommandError: an option is missing or wrong.
    """
    for name in ("created", "task"):
        if options[name] is None:
            raise CommandError(f"--model needs --{name}: see --help", returncode=2)
    if len(options["id"] or ()) != 1:
        raise CommandError("--model needs one --id, a template like 'order-{pk}'", returncode=2)
    task = known_task(options["task"], payload=options["payload"])
    known_database(options["using"])
    parts: dict[str, Any] = {name: options[f"job_{name}"] or () for name in ("args", "kwargs", "context")}
    parts |= {name: options[name] for name in ("created", "using", "due", "payload", "score", "include_morgue")}
    try:
        return RowJobs(
            model=apps.get_model(options["model"]),
            task=task,
            queue=options["queue"] or task.options.queue,
            id=options["id"][0],
            filters=check_filter(options["filter"]) if options["filter"] else (),
            grace_ms=GRACE_MS if options["grace"] is None else options["grace"] * 1000,
            **parts,
        )
    except (Misconfigured, LookupError, ValueError) as error:
        raise CommandError(str(error), returncode=2) from error


def reconcile(command: DelayQCommand, options: Mapping[str, Any]) -> dict[str, Any]:
    """Compare rows with their jobs, restore missing jobs, and return the counts."""
    from ..repair.row_comparison import RowComparison

    jobs = row_jobs(options)
    with command.progress("compare", unit="rows") as progress:
        comparison = RowComparison(jobs, progress.update)
        counts = comparison.look()
    result: dict[str, Any] = {"state": "dry run" if options["dry_run"] else "finished", **counts.values()}
    command.stderr.write(counts.summary(include_morgue=jobs.include_morgue))
    if counts.bad:
        lines = [f"WARNING: {counts.bad:,} rows cannot have a job, and are skipped until they are corrected."]
        lines += ["The first:", *(f"    {short(ident)}: {reason}" for ident, reason in counts.first_bad)]
        command.stderr.write("\n".join(lines))
    result["outcomes"] = {}
    if counts.missing and not options["dry_run"]:
        with command.progress("restore") as progress:
            result["outcomes"] = comparison.put_back(rate=options["rate"], progress=progress.update)
    return result
