"""Subcommand ``delayq_pipeline reconcile``: compare rows that need a job with existing jobs, restore missing ones."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections, router
from django.db.models.functions import Now

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.inputs import check_queue_name, short
from ...history.records import Record
from ...settings.conf import conf
from ..base import positive
from . import asking, common, keeping, making
from .address import ENV
from .jobs import groups, seconds

if TYPE_CHECKING:
    from ...pipeline.reconcile import Found, ReconcileOptions, Reconciliation
    from ...pipeline.selection import Selection

HELP: Final = "compare a table with the queue: put back the jobs that rows need and that are missing"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    rows = parser.add_argument_group("rows that need a job")
    rows.add_argument("--model", required=True, metavar="APP.MODEL")
    rows.add_argument("--filter", metavar="JSON", help="""lookups that are true of them, like '{"status": "placed"}'""")
    rows.add_argument("--using", metavar="ALIAS", help="the database of the model")
    rows.add_argument(
        "--created",
        required=True,
        metavar="FIELD",
        help="a field with the moment (or the day) from which on a row needs its job",
    )
    rows.add_argument(
        "--grace", type=seconds, default=600.0, metavar="TIME", help="leave rows alone that are younger than this (10m)"
    )
    jobs = parser.add_argument_group("their jobs")
    jobs.add_argument(
        "--task",
        required=True,
        help="its name; queue, priority, expiry and how payloads are merged are those of the task",
    )
    jobs.add_argument("--queue", type=check_queue_name, help="another queue")
    jobs.add_argument("--id", required=True, metavar="TEMPLATE", help="like 'order-{pk}', of fields of the model")
    jobs.add_argument(
        "--due",
        metavar="WHAT",
        help="when a job is due that is put back: a field, a moment like "
        "2026-11-21T08:00:00+01:00, or a time from now on like +2h30m; without it at once",
    )
    # Django uses the name args itself.
    for name, text in (("args", "positional arguments"), ("kwargs", "named arguments"), ("context", "the context")):
        jobs.add_argument(
            f"--{name}",
            dest=f"job_{name}",
            type=making.names,
            default=(),
            metavar="A,B",
            help=f"fields that are {text}",
        )
    jobs.add_argument("--payload", metavar="FIELD", help="of merged tasks")
    jobs.add_argument("--score", metavar="FIELD", help="the order of the payload")
    how = parser.add_argument_group("what is done")
    how.add_argument(
        "--include-morgue",
        action="store_true",
        help="put back also what has nothing but a job in the morgue, or refused by the outbox; those records stay",
    )
    how.add_argument("--report-orphans", action="store_true", help="tell of live jobs of the task that no row needs")
    how.add_argument("--cancel-orphans", action="store_true", help="cancel them; --filter decides what is needed")
    how.add_argument("--rate", type=positive(float, "a number of jobs"), metavar="N", help="jobs a second at most")
    how.add_argument("--dry-run", action="store_true", help="say what is missing; nothing is done")
    how.add_argument("--yes", action="store_true", help="do not ask before orphans are cancelled")
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> None:
    """Compare, restore missing jobs, and print the result."""
    from ...pipeline.reconcile import Reconciliation
    from ...pipeline.table import attach

    wanted = _wanted(options)
    if options["cancel_orphans"] and not options["dry_run"]:
        asking.check(options)
    clock = _clock(wanted)
    run_id, began = keeping.new_run("reconcile"), time.monotonic()
    detail = {name: options[name] for name in ("model", "filter", "id", "created", "grace", "dry_run")}
    queue, task = wanted.jobs.queue, wanted.jobs.task or ""
    with (
        common.recorded(command, "reconcile", run_id, queue=queue, task=task, detail=detail) as kept,
        common.session(command, options, f"delayq reconcile {run_id}") as spark,
    ):
        attach(spark)
        comparison = Reconciliation(spark, wanted, now_ms=clock)
        found = comparison.look()
        common.say(command, _sentence(found, wanted), options)
        told = {"run_id": run_id, "state": "dry run", **_told(found), "outcomes": {}}
        kept.progress(rows=found.rows, bad=found.bad, known=found.rows - found.missing - found.bad, detail=_told(found))
        orphans = comparison.orphans() if options["report_orphans"] or options["cancel_orphans"] else None
        if not options["dry_run"]:
            outcomes = _put_back(command, comparison, found, run_id, kept, options)
            told |= {"state": "finished", "outcomes": outcomes, "bad": found.bad + outcomes.get("refused", 0)}
        told |= _warned(command, told["bad"], (*found.first_bad, *comparison.refused), options)
        if orphans is not None:
            told |= _orphans(command, comparison, orphans, options)
        told["seconds"] = round(time.monotonic() - began, 3)
        kept.progress(detail=told)
    common.finish(command, told)


def _put_back(
    command: common.Desk,
    comparison: Reconciliation,
    found: Found,
    run_id: str,
    kept: Record,
    options: Mapping[str, Any],
) -> dict[str, int]:
    if found.missing:
        ours.queue(comparison.queue)  # created with the shards and limits of the settings, if it does not exist
    with command.progress("put back") as shown:

        def watch(counts: Mapping[str, int], total: int | None) -> None:
            shown.update(sum(counts.values()), total)

        outcomes = comparison.put_back(found, run_id=run_id, watch=watch)
    kept.progress(created=outcomes.get("created", 0), bad=found.bad + outcomes.get("refused", 0))
    if found.missing:
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(outcomes.items()) if count)
        common.say(command, f"put back: {words}", options)
    return outcomes


def _warned(
    command: common.Desk, bad: int, first: Sequence[tuple[str | None, str]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Report on stderr, and in the last line, the rows that cannot have a job until they are corrected."""
    if not bad:
        return {}
    lines = [f"WARNING: {bad:,} rows can have no job, and are passed over until they are mended. The first:"]
    lines += [f"    {short(ident)}: {reason}" for ident, reason in first]
    common.say(command, "\n".join(lines), options)
    return {"first_bad": [list(pair) for pair in first]}


def _orphans(
    command: common.Desk, comparison: Reconciliation, orphans: Selection, options: Mapping[str, Any]
) -> dict[str, Any]:
    asking.preview(command, orphans, options)
    common.say(command, f"{orphans.total:,} live jobs of the task that no row needs", options)
    told: dict[str, Any] = {"orphans": orphans.total, "orphan_groups": groups(orphans)}
    if not options["cancel_orphans"] or options["dry_run"] or not orphans.total:
        return told
    if asking.agreed(command, f"Cancel {orphans.total:,} jobs that no row needs?", options):
        with command.progress("cancel") as shown:
            told["cancelled"] = comparison.cancel_orphans(orphans, progress=shown.update, stop=command.stopping)
        if sum(told["cancelled"].values()) < orphans.total:
            command.stopping.check()
    return told


def _sentence(found: Found, wanted: ReconcileOptions) -> str:
    lines = [f"{found.rows:,} rows need a job, {found.known:,} jobs are known: {found.missing:,} are missing"]
    if found.buried and not wanted.include_morgue:
        lines.append(
            f"{found.buried:,} have nothing but a job in the morgue, or refused by the outbox; retry those, "
            "or use --include-morgue"
        )
    if found.first:
        lines.append(f"the first: {', '.join(map(repr, found.first))}")
    return "\n".join(lines)


def _told(found: Found) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "known": found.known,
        "missing": found.missing,
        "buried": found.buried,
        "bad": found.bad,
        "first": list(found.first),
    }


# -- options -----------------------------------------------------------------------------------------------------------


def _wanted(options: Mapping[str, Any]) -> ReconcileOptions:
    """Return the options of the comparison, checked as far as possible without Spark."""
    from ...pipeline.bulk import BulkOptions
    from ...pipeline.reconcile import ReconcileOptions
    from ...pipeline.table import Table
    from ...pipeline.table_options import TableOptions, check_filter

    settings, task = conf(), making.known_task(options["task"], payload=options["payload"])
    queue = options["queue"] or task.options.queue
    try:
        jobs = BulkOptions(
            queue=queue,
            task=task.name,
            id=options["id"],
            due=options["due"],
            args=options["job_args"],
            kwargs=options["job_kwargs"],
            context=options["job_context"],
            payload=options["payload"],
            score=options["score"],
            redis_env=ENV,
            prefix=settings.prefix,
            rate=options["rate"],
            more=making.policies(queue, task),
        )
        found = ReconcileOptions(
            jobs=jobs,
            model=options["model"],
            created=options["created"],
            filters=check_filter("--filter", options["filter"]) if options["filter"] else (),
            using=options["using"],
            grace_ms=options["grace"] * 1000,
            include_morgue=options["include_morgue"],
            scratch=_scratch(options),
            outbox=tuple(settings.outbox.databases),
        )
        # Checked here, because a Spark worker takes twenty seconds and a long message to report it.
        Table.of(TableOptions(found.model, tuple(found.filters), (*found.columns, found.created), found.using))
        return replace(found, written=options["using"] or router.db_for_write(apps.get_model(found.model)))
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from error


def _scratch(options: Mapping[str, Any]) -> str | None:
    """Return the folder for refused rows until they are reported; on a cluster, one that all machines can access."""
    local = (options["master"] or conf().pipeline.master).startswith("local")
    return None if local else f"{common.root()}/_reconcile"


def _clock(wanted: ReconcileOptions) -> Callable[[], float]:
    """Return a function for the time of the rows' database in Unix ms."""
    model: Any = apps.get_model(wanted.model)
    alias = wanted.using or router.db_for_read(model)

    def now_ms() -> float:
        rows = model._base_manager.using(alias).order_by()
        moment = rows.annotate(delayq_now=Now()).values_list("delayq_now", flat=True).first()
        connections[alias].close_if_unusable_or_obsolete()
        return float("inf") if moment is None else float(moment.timestamp() * 1000)

    return now_ms
