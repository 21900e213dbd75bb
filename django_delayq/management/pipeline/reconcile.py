"""Subcommand ``delayq_pipeline reconcile``: compare rows that need a job with existing jobs, restore missing ones."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import CommandError
from django.db import router

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.inputs import check_queue_name
from ...history.records import Record
from ...models import OutboxJob
from ...repair.row_comparison import RowJobs, database_now_ms
from ...settings.conf import conf
from .. import rows
from ..base import count_text
from ..rows import writer_options
from . import common
from .address import ENV
from .jobs import group_values, preview
from .model_rows import write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...pipeline.reconcile import ComparisonResult, ReconcileOptions, Reconciliation
    from ...pipeline.repair import Selection


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
    from ...pipeline.quarantine import temporary_folder
    from ...pipeline.reconcile import Reconciliation

    row_jobs = rows.row_jobs({**options, "ids": [options["id"]]})
    reconcile_options = _reconcile_options(options, row_jobs)
    if options["cancel_orphans"] and not options["dry_run"]:
        command.check_confirmable(yes=options["yes"])
    run_id, began = common.new_run_id("reconcile"), time.monotonic()
    detail = {name: options[name] for name in ("model", "filter", "id", "created", "grace", "dry_run")}
    queue, task = reconcile_options.jobs.queue, reconcile_options.jobs.task or ""
    with (
        common.record_run(command, "reconcile", run_id, queue=queue, task=task, detail=detail) as record,
        common.session(command, options, f"delayq reconcile {run_id}") as spark,
        temporary_folder(reconcile_options.scratch, run_id) as folder,
    ):
        outboxes = conf().outbox.databases
        tables = Tables(spark, row_jobs, folder, outboxes)
        comparison = Reconciliation(
            spark,
            reconcile_options,
            tables.rows,
            outbox=tables.outbox if outboxes else None,
            now_ms=lambda: database_now_ms(row_jobs.model, row_jobs.using),
        )
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


def _reconcile_options(options: Mapping[str, Any], row_jobs: RowJobs) -> ReconcileOptions:
    from ...pipeline.bulk import BulkOptions
    from ...pipeline.reconcile import ReconcileOptions

    settings, task = conf(), row_jobs.task
    try:
        jobs = BulkOptions(
            queue=row_jobs.queue,
            task=task.name,
            id=row_jobs.id,
            due=row_jobs.due,
            args=tuple(row_jobs.args),
            kwargs=tuple(row_jobs.kwargs),
            context=tuple(row_jobs.context),
            payload=row_jobs.payload,
            score=row_jobs.score,
            redis_env=ENV,
            prefix=settings.prefix,
            rate=options["rate"],
            more=writer_options(row_jobs.queue, task),
        )
        return ReconcileOptions(
            jobs=jobs,
            id_pattern=row_jobs.id_pattern,
            grace_ms=row_jobs.grace_ms,
            include_morgue=row_jobs.include_morgue,
            scratch=_scratch(options),
        )
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from error


def _scratch(options: Mapping[str, Any]) -> str | None:
    """Return the parent of temporary folders; on a cluster, one that all machines can access."""
    local = (options["master"] or conf().pipeline.master).startswith("local")
    return None if local else f"{common.root()}/_reconcile"


class Tables:
    """Tables that a comparison reads, as frames of files that this process writes into a folder.

    Each call reads the database anew.
    """

    def __init__(self, spark: SparkSession, jobs: RowJobs, folder: str, outboxes: Sequence[str]) -> None:
        self._spark = spark
        self._jobs = jobs
        self._folder = folder
        self._outboxes = outboxes
        self._numbers = count()

    def rows(self, before: datetime | None, written: bool) -> DataFrame:
        """Return the rows that need a job; see :data:`~django_delayq.pipeline.reconcile.Rows`."""
        jobs = self._jobs
        using = jobs.using or (router.db_for_write(jobs.model) if written else None)
        return self._frame([jobs.rows(before, using)], jobs.columns)

    def outbox(self) -> DataFrame:
        """Return the durable jobs of the queue."""
        tables = [OutboxJob.objects.using(alias).filter(queue=self._jobs.queue) for alias in self._outboxes]
        return self._frame(tables, ["job_id", "state"])

    def _frame(self, tables: Sequence[Any], names: Sequence[str]) -> DataFrame:
        from ...pipeline.quarantine import file_system

        system, home = file_system(self._folder)
        system.create_dir(home, recursive=True)
        files = [f"rows-{next(self._numbers)}.parquet" for _ in tables]
        for table, name in zip(tables, files, strict=True):
            write_rows(table, names, f"{home}/{name}", system)
        return self._spark.read.parquet(*(f"{self._folder}/{name}" for name in files))


SUBCOMMAND: Final = common.Subcommand(
    "compare the rows of a model with their jobs, and restore missing jobs",
    _add_arguments,
    _run,
    ("delayq_pipeline reconcile --model shop.Order --created created_at --task shop.remind --id '{pk}' --dry-run",),
)
