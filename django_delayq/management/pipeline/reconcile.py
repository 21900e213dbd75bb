"""Subcommand ``delayq_pipeline reconcile``: compare rows that need a job with existing jobs, restore missing ones."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.management.base import CommandError
from django.db import router

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.inputs import check_queue_name
from ...history.records import Record
from ...repair.row_jobs import database_now_ms
from ...settings.conf import conf
from .. import rows
from ..base import count_text
from . import common, job_writer
from .address import ENV
from .jobs import group_values, preview

if TYPE_CHECKING:
    from ...pipeline.reconcile import ComparisonResult, ReconcileOptions, Reconciliation
    from ...pipeline.selection import Selection


def _add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    rows.add_rows(parser, required=True)
    parser.add_argument("--id", required=True, metavar="TEMPLATE", help="job id made of fields, like 'order-{pk}'")
    parser.add_argument("--queue", type=check_queue_name, help="queue of the jobs (default: that of the task)")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what is missing")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation before orphans are cancelled")
    common.add_spark(parser)


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> None:
    """Compare, restore missing jobs, and print the result."""
    from ...pipeline.reconcile import Reconciliation
    from ...pipeline.table import attach

    reconcile_options = _reconcile_options(options)
    if options["cancel_orphans"] and not options["dry_run"]:
        command.check_confirmable(yes=options["yes"])
    clock = _clock(reconcile_options)
    run_id, began = common.new_run_id("reconcile"), time.monotonic()
    detail = {name: options[name] for name in ("model", "filter", "id", "created", "grace", "dry_run")}
    queue, task = reconcile_options.jobs.queue, reconcile_options.jobs.task or ""
    with (
        common.record_run(command, "reconcile", run_id, queue=queue, task=task, detail=detail) as record,
        common.session(command, options, f"delayq reconcile {run_id}") as spark,
    ):
        attach(spark)
        comparison = Reconciliation(spark, reconcile_options, now_ms=clock)
        counts = comparison.look()
        command.print_note(counts.summary(include_morgue=reconcile_options.include_morgue))
        result = {"run_id": run_id, "state": "dry run", **counts.values(), "outcomes": {}}
        record.progress(
            rows=counts.rows,
            bad=counts.bad,
            known=counts.rows - counts.missing - counts.bad,
            detail=counts.values(),
        )
        orphans = comparison.orphans() if options["report_orphans"] or options["cancel_orphans"] else None
        if not options["dry_run"]:
            outcomes = _restore(command, comparison, counts, run_id, record)
            result |= {"state": "finished", "outcomes": outcomes, "bad": counts.bad + outcomes.get("refused", 0)}
        if result["bad"]:
            first_bad = (*counts.first_bad, *comparison.refused)
            command.print_note(rows.bad_rows_text(result["bad"], first_bad))
            result["first_bad"] = [list(pair) for pair in first_bad]
        if orphans is not None:
            result |= _handle_orphans(command, comparison, orphans, options)
        result["seconds"] = round(time.monotonic() - began, 3)
        record.progress(detail=result)
    command.print_result(result)


def _restore(
    command: common.PipelineCommand,
    comparison: Reconciliation,
    counts: ComparisonResult,
    run_id: str,
    record: Record,
) -> dict[str, int]:
    if counts.missing:
        ours.queue(comparison.queue)  # created with the shards and limits of the settings, if it does not exist
    with command.progress("restore") as progress:

        def watch(done: Mapping[str, int], total: int | None) -> None:
            progress.update(sum(done.values()), total)

        outcomes = comparison.put_back(counts, run_id=run_id, watch=watch)
    record.progress(created=outcomes.get("created", 0), bad=counts.bad + outcomes.get("refused", 0))
    if counts.missing:
        command.print_note(f"restored: {count_text(outcomes)}")
    return outcomes


def _handle_orphans(
    command: common.PipelineCommand, comparison: Reconciliation, orphans: Selection, options: Mapping[str, Any]
) -> dict[str, Any]:
    preview(command, orphans, options)
    command.print_note(f"{orphans.total:,} live jobs of the task that no row needs")
    result: dict[str, Any] = {"orphans": orphans.total, "orphan_groups": group_values(orphans)}
    if not options["cancel_orphans"] or options["dry_run"] or not orphans.total:
        return result
    if command.confirmed(f"Cancel {orphans.total:,} jobs that no row needs?", yes=options["yes"]):
        with command.progress("cancel") as progress:
            result["cancelled"] = comparison.cancel_orphans(orphans, progress=progress.update)
    return result


# -- options -----------------------------------------------------------------------------------------------------------


def _reconcile_options(options: Mapping[str, Any]) -> ReconcileOptions:
    """Return the options of the comparison, checked as far as possible without Spark."""
    from ...pipeline.bulk import BulkOptions
    from ...pipeline.reconcile import ReconcileOptions
    from ...pipeline.table import Table
    from ...pipeline.table_options import TableOptions, check_filter

    settings, task = conf(), job_writer.known_task(options["task"], payload=options["payload"])
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
            more=job_writer.options(queue, task),
        )
        checked = ReconcileOptions(
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
        Table.of(TableOptions(checked.model, tuple(checked.filters), (*jobs.columns, checked.created), checked.using))
        return replace(checked, written=options["using"] or router.db_for_write(apps.get_model(checked.model)))
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from error


def _scratch(options: Mapping[str, Any]) -> str | None:
    """Return the folder for refused rows until they are reported; on a cluster, one that all machines can access."""
    local = (options["master"] or conf().pipeline.master).startswith("local")
    return None if local else f"{common.root()}/_reconcile"


def _clock(reconcile_options: ReconcileOptions) -> Callable[[], float]:
    """Return a function for the time of the rows' database in Unix ms."""
    return lambda: database_now_ms(apps.get_model(reconcile_options.model), reconcile_options.using)


SUBCOMMAND: Final = common.Subcommand(
    "compare the rows of a model with their jobs, and restore missing jobs",
    _add_arguments,
    _run,
    ("delayq_pipeline reconcile --model shop.Order --created created_at --task shop.remind --id '{pk}' --dry-run",),
)
