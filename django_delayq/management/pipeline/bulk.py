"""Subcommand ``delayq_pipeline bulk``: create a job for each row of files or of a model."""

from __future__ import annotations

import hashlib
import json
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.exceptions import EmptyResultSet, FieldError, ValidationError
from django.core.management.base import CommandError
from django.db import connections

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.inputs import check_queue_name
from ...core.loads import read_load
from ...core.times import iso_of
from ...history.records import Record
from ...pipeline.errors import without_user
from ...pipeline.inputs import FORMATS, PART_BYTES, format_of
from ...settings.conf import conf
from ...status.formatting import table
from ..base import positive
from ..rows import add_fields, check_filter, known_database, known_task, writer_options
from . import common
from .model_rows import write_rows

if TYPE_CHECKING:
    from ...pipeline.bulk import BulkOptions, BulkResult, DryRun
    from ...pipeline.inputs import Files


def _add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    source = parser.add_argument_group("rows")
    source.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, or URLs that Spark can open")
    source.add_argument(
        "--format", choices=FORMATS, help="format of the files (default: by their extension, else parquet)"
    )
    source.add_argument(
        "--schema",
        metavar="COLUMNS",
        help="columns of csv and json, like 'pk LONG, day DATE' (default for csv: all columns are text)",
    )
    source.add_argument("--no-header", action="store_true", help="treat the first line of a csv file as data")
    source.add_argument("--model", metavar="APP.MODEL", help="read the rows of a Django model instead of files")
    source.add_argument(
        "--filter", metavar="JSON", help="""lookups that select its rows, like '{"status": "pending"}'"""
    )
    source.add_argument("--using", metavar="ALIAS", help="database of the model (default: by the router)")
    made = parser.add_argument_group("jobs")
    made.add_argument(
        "--task", help="name of the task; it sets the queue, the priority, the expiry and how payloads are merged"
    )
    made.add_argument(
        "--queue", type=check_queue_name, help="queue of the jobs, if not that of the task; alone, a queue of kind pull"
    )
    made.add_argument("--id", required=True, metavar="TEMPLATE", help="job id made of columns, like 'sms:{pk}:{day}'")
    made.add_argument(
        "--due",
        metavar="WHAT",
        help="due time: a column, a moment like 2026-11-21T08:00:00+01:00, or a delay like +2h30m (default: at once)",
    )
    add_fields(made, "column", payload="payload of merged tasks, or body of the jobs of a queue of kind pull")
    made.add_argument(
        "--on-conflict",
        choices=("ignore", "replace", "merge", "error"),
        help="what to do if there is a live job of the same id (default: ignore; merge for jobs with a payload)",
    )
    made.add_argument("--group", metavar="COLUMN", help="group of the jobs")
    made.add_argument("--priority", type=int, help="priority from 0 (first) to 7 (default: that of the task)")
    how = parser.add_argument_group("run")
    how.add_argument("--run-id", metavar="X", help="resume this run, or name a new one")
    how.add_argument(
        "--chunk", type=positive(int, "a number of jobs"), default=250, help="jobs in one call of Redis (default: 250)"
    )
    how.add_argument(
        "--rate", type=positive(float, "a number of jobs"), metavar="N", help="at most this many jobs per second"
    )
    how.add_argument(
        "--parts", type=positive(int, "a number of tasks"), help="number of Spark tasks (default: one per core)"
    )
    how.add_argument(
        "--part-bytes",
        type=positive(int, "a number of bytes"),
        default=PART_BYTES,
        help="most bytes of a file that one Spark task reads (default: 64 MiB)",
    )
    how.add_argument(
        "--quarantine",
        metavar="DIR",
        help="folder for rows that cannot become jobs (default: the first such row ends the run)",
    )
    how.add_argument("--dry-run", action="store_true", help="write nothing, print what would be written")
    how.add_argument(
        "--storm",
        type=positive(int, "a number of jobs"),
        default=60_000,
        metavar="N",
        help="warn if more jobs than this become due in one minute (default: 60,000)",
    )
    how.add_argument("--yes", action="store_true", help="write even if the preview has warnings")
    common.add_spark(parser)


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> int | None:
    """Show what would be written, write it unless it is a dry run, and print the result."""
    _check_source(options)
    run_id = options["run_id"] or common.new_run_id("bulk")
    bulk_options = replace(_bulk_options(options), run_id=run_id)
    if options["dry_run"]:
        with _files(options, bulk_options) as source, common.session(command, options, "delayq bulk dry run") as spark:
            from ...pipeline.bulk import rehearse

            print_dry_run(command, rehearse(spark, source, bulk_options, storm_above=options["storm"]))
        return None
    hint = f"resume it with the same command and --run-id {run_id}"
    command.resume_hint = f"run {run_id} is incomplete: {hint}"
    detail = _run_detail(options)
    try:
        with (
            common.record_run(
                command, "bulk", run_id, queue=bulk_options.queue, task=bulk_options.task or "", detail=detail
            ) as record,
            _files(options, bulk_options) as source,
            common.session(command, options, f"delayq bulk {run_id}") as spark,
        ):
            result = _write(command, spark, source, bulk_options, options, record)
    except DelayQError as error:
        if options["run_id"] is None and run_id not in str(error):
            raise CommandError(f"{error}\nRun {run_id}: {hint}") from error
        raise
    if result.was_over:
        command.print_note(f"Run {run_id} was complete already, so nothing was written.")
    command.print_result(_result_values(result))
    return None


@contextmanager
def _files(options: Mapping[str, Any], bulk_options: BulkOptions) -> Iterator[Files]:
    """Yield the files with the rows. Those of a model are copied to one, which is kept until the load is complete.

    A resumed load therefore has the rows of its beginning, whatever has happened to the table. A load that is complete
    needs no rows.
    """
    from pyarrow.fs import FileType

    from ...pipeline.inputs import Files
    from ...pipeline.quarantine import file_system, stem

    if not options["model"]:
        yield Files(tuple(options["paths"]), _format(options), options["schema"], not options["no_header"])
        return
    rows, run_id = _rows_of(options), bulk_options.run_id or ""
    load = read_load(ours.broker(), run_id)
    selection = json.dumps([options["model"], options["filter"], options["using"], bulk_options.columns])
    name = f"rows-{hashlib.sha256(selection.encode()).hexdigest()[:16]}.parquet"
    folder = f"{common.root()}/_bulk/{stem(run_id)}"
    system, home = file_system(folder)
    is_copied = system.get_file_info(f"{home}/{name}").is_file
    if not is_copied and not (load is not None and load.closed):
        system.create_dir(home, recursive=True)
        write_rows(rows, bulk_options.columns, f"{home}/.{name}", system)
        system.move(f"{home}/.{name}", f"{home}/{name}")
    try:
        yield Files((f"{folder}/{name}",))
    except BaseException:
        if options["dry_run"]:
            system.delete_dir(home)
        raise
    if system.get_file_info(home).type != FileType.NotFound:
        system.delete_dir(home)


def _rows_of(options: Mapping[str, Any]) -> Any:
    """Return the selected rows of the model."""
    try:
        rows = apps.get_model(options["model"])._default_manager.using(known_database(options["using"]))
        for one in check_filter(options["filter"]) if options["filter"] else ():
            rows = rows.filter(**one)
        rows.query.sql_with_params()
    except EmptyResultSet:
        return rows.none()
    except (LookupError, FieldError, ValidationError, TypeError, ValueError) as error:
        raise CommandError(f"--model and --filter cannot be used: {error}", returncode=2) from error
    return rows.order_by()


def _write(
    command: common.PipelineCommand,
    spark: Any,
    source: Files,
    bulk_options: BulkOptions,
    options: Mapping[str, Any],
    record: Record,
) -> BulkResult:
    from ...pipeline.bulk import bulk, closed_result, rehearse

    over = closed_result(bulk_options) if options["model"] else None
    if over is not None:
        return over
    # An existing bulk load is resumed without a preview, which was shown when it began.
    if not options["yes"] and read_load(ours.broker(), bulk_options.run_id or "") is None:
        preview = rehearse(spark, source, bulk_options, storm_above=options["storm"])
        warnings = preview.dangers if bulk_options.quarantine else preview.warnings
        if warnings:
            raise CommandError(
                "\n".join(
                    [*warnings, "Nothing was written. --dry-run shows the details; --yes writes despite the warnings."]
                )
            )
    ours.queue(bulk_options.queue)  # created with the shards and limits of the settings, if it does not exist
    with command.progress("bulk", unit="rows") as progress:

        def watch(counts: Mapping[str, int], total: int | None) -> None:
            rows = sum(counts.values())
            progress.update(rows, total)
            created = counts.get("created", 0)
            record.progress(rows=rows, created=created, known=rows - created, total=total)

        result = bulk(spark, source, bulk_options, watch=_closing_connections(watch))
    record.progress(
        rows=result.rows, created=result.created, known=result.known, bad=result.bad, detail=_result_values(result)
    )
    return result


def _closing_connections(watch: Callable[[Mapping[str, int], int | None], None]) -> Callable[..., None]:
    """Return ``watch`` wrapped to close the thread's database connections after each call: the thread is not ours."""

    def call(counts: Mapping[str, int], total: int | None) -> None:
        try:
            watch(counts, total)
        finally:
            connections.close_all()

    return call


def _check_source(options: Mapping[str, Any]) -> None:
    if bool(options["model"]) == bool(options["paths"]):
        raise CommandError(
            "the rows are missing or ambiguous: give either paths of files or --model app.Model", returncode=2
        )
    if options["filter"] and not options["model"]:
        raise CommandError("--filter needs --model: leave it out, because all rows of files are used", returncode=2)
    if options["paths"]:
        _format(options)


def _format(options: Mapping[str, Any]) -> str:
    try:
        return options["format"] or format_of(options["paths"])
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from error


def _bulk_options(options: Mapping[str, Any]) -> BulkOptions:
    """Return the options of the bulk load: the command line overrides the task and the settings."""
    from ...pipeline.bulk import BulkOptions
    from .address import ENV

    settings = conf()
    name = options["task"]
    task = known_task(name, payload=options["payload"]) if name else None
    queue = options["queue"] or (task.options.queue if task else None)
    if queue is None:
        raise CommandError(
            "the task is missing: give --task, or --queue with a queue of kind pull, whose jobs are raw bytes",
            returncode=2,
        )
    policy = settings.queue(queue)
    if task is None and policy.kind != "pull":
        raise CommandError(
            f"the task is missing: give --task, because queue {queue!r} is of kind {policy.kind}", returncode=2
        )
    return BulkOptions(
        queue=queue,
        task=name,
        id=options["id"],
        due=options["due"],
        args=options["job_args"],
        kwargs=options["job_kwargs"],
        payload=options["payload"],
        score=options["score"],
        group=options["group"],
        context=options["job_context"],
        redis_env=ENV,
        prefix=settings.prefix,
        run_id=options["run_id"],
        chunk=options["chunk"],
        parts=options["parts"],
        part_bytes=options["part_bytes"],
        rate=options["rate"],
        quarantine=options["quarantine"],
        more=writer_options(
            queue, task, kind=policy.kind, onConflict=options["on_conflict"], priority=options["priority"]
        ),
    )


def _run_detail(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options for the run's row, without secrets."""
    names = ("model", "filter", "id", "due", "job_args", "job_kwargs", "payload", "score", "group", "rate", "master")
    files = {"paths": [without_user(path) for path in options["paths"]], "format": _format(options)}
    return {**(files if options["paths"] else {}), **{name: value for name in names if (value := options.get(name))}}


def _result_values(result: BulkResult) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "state": "finished",
        "rows": result.rows,
        "created": result.created,
        "known": result.known,
        "bad": result.bad,
        "before": result.before,
        "was_over": result.was_over,
        "counts": dict(result.counts),
        "seconds": round(result.seconds, 3),
        "rows_per_second": round(result.rows_per_second),
    }


def print_dry_run(command: common.PipelineCommand, dry_run: DryRun) -> None:
    """Print a dry run as readable text on stderr, and as JSON in the last line."""
    lines = [
        f"{dry_run.rows:,} rows, {dry_run.due_now:,} of them due now; about {dry_run.bytes_per_job:,.0f} bytes per "
        f"job, {dry_run.memory / 1e6:,.1f} MB in total"
    ]
    lines += ["", *table(("due from (UTC)", "rows"), [(iso_of(start), count) for start, count in dry_run.dues])]
    lines += ["", *(json.dumps(row, default=str, ensure_ascii=False) for row in dry_run.first)]
    lines += ["", *(f"WARNING: {text}" for text in dry_run.warnings)]
    command.print_note("\n".join(lines))
    command.print_result(
        {
            "state": "dry run",
            "rows": dry_run.rows,
            "due_now": dry_run.due_now,
            "without_id": dry_run.without_id,
            "without_due": dry_run.without_due,
            "dues": list(dry_run.dues),
            "width_minutes": dry_run.width_min,
            "busiest_minute": {"at": iso_of(dry_run.busiest[0]), "rows": dry_run.busiest[1]},
            "bytes_per_job": round(dry_run.bytes_per_job),
            "bytes": dry_run.memory,
            "free_bytes": dry_run.free,
            "first": list(dry_run.first),
            "warnings": dry_run.warnings,
        },
    )


SUBCOMMAND: Final = common.Subcommand(
    "schedule a job for each row of files or of a model; an interrupted run can be resumed",
    _add_arguments,
    _run,
    (
        "delayq_pipeline bulk sms.parquet --task shop.send_sms --id 'sms:{pk}' --args pk --due +2h --dry-run",
        "delayq_pipeline bulk --model shop.Order --filter '{\"status\": \"new\"}' --task shop.remind --id 'order-{pk}'",
    ),
)
