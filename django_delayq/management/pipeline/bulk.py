"""Subcommand ``delayq_pipeline bulk``: create a job for each row of files or of a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.exceptions import EmptyResultSet, FieldError, ValidationError
from django.core.management.base import CommandError
from django.db import connections

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.loads import read_load
from ...core.times import iso_of
from ...history.records import Record
from ...pipeline.errors import without_user
from ...pipeline.inputs import FORMATS
from ...settings.conf import conf
from ...status.formatting import table
from ..rows import FIELDS, check_filter, known_database, known_task, writer_options
from . import common
from .model_rows import write_rows

if TYPE_CHECKING:
    from ...pipeline.bulk import BulkOptions, BulkResult, DryRun
    from ...pipeline.inputs import Files


_ROWS: Final = f"""
    [paths] PATH…    files, folders, or URLs that Spark can open
    --format {"|".join(FORMATS)}  of the files (default: parquet)
    --schema COLUMNS  columns of csv and json, like 'pk LONG, day DATE' (default for csv: all columns are text)
    --no-header      treat the first line of a csv file as data
    --model APP.MODEL  read the rows of a Django model instead of files
    --filter JSON    lookups that select its rows, like '{{"status": "pending"}}'
    --using ALIAS    database of the model (default: by the router)
"""
_JOBS: Final = f"""
    --task TASK      name of the task; it sets the queue, the priority, the expiry and how payloads are merged
    --queue QUEUE    queue of the jobs, if not that of the task; alone, a queue of kind pull
    --id TEMPLATE!   job id made of columns, like 'sms:{{pk}}:{{day}}'
    --due WHAT       due time: a column, a moment like 2026-11-21T08:00:00+01:00, or a delay like +2h30m (default: at
                     once)
    --payload COLUMN  payload of merged tasks, or body of the jobs of a queue of kind pull
    --on-conflict ignore|replace|merge|error  what to do if there is a live job of the same id (default: ignore; merge
                     for jobs with a payload)
    --group COLUMN   group of the jobs
    --priority NUMBER  priority from 0 (first) to 7 (default: that of the task)
{FIELDS.format(noun="column")}"""
_HOW: Final = """
    --run-id X       resume this run, or name a new one
    --rate RATE      at most this many jobs per second
    --quarantine DIR  folder for rows that cannot become jobs (default: the first such row ends the run)
    --dry-run        write nothing, print what would be written
    --yes            write even if the preview has warnings
"""


def _run(command: common.PipelineCommand, options: Mapping[str, Any]) -> int | None:
    """Show what would be written, write it unless it is a dry run, and print the result."""
    _check_source(options)
    run_id = options["run_id"] or common.new_run_id("bulk")
    bulk_options = replace(_bulk_options(options), run_id=run_id)
    if options["dry_run"]:
        with _files(options, bulk_options) as source, common.session(command, options, "delayq bulk dry run") as spark:
            from ...pipeline.bulk import rehearse

            print_dry_run(command, rehearse(spark, source, bulk_options))
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
    from ...pipeline.inputs import Files
    from ...pipeline.writer import file_system, stem

    if not options["model"]:
        yield Files(
            tuple(options["paths"]), options["format"] or FORMATS[0], options["schema"], not options["no_header"]
        )
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
    with suppress(FileNotFoundError):
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
        preview = rehearse(spark, source, bulk_options)
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
            connections.close_all()  # the thread is not ours

        result = bulk(spark, source, bulk_options, watch=watch)
    record.progress(
        rows=result.rows, created=result.created, known=result.known, bad=result.bad, detail=_result_values(result)
    )
    return result


def _check_source(options: Mapping[str, Any]) -> None:
    if bool(options["model"]) == bool(options["paths"]):
        raise CommandError(
            "the rows are missing or ambiguous: give either paths of files or --model app.Model", returncode=2
        )
    if options["filter"] and not options["model"]:
        raise CommandError("--filter needs --model: leave it out, because all rows of files are used", returncode=2)


def _bulk_options(options: Mapping[str, Any]) -> BulkOptions:
    """Return the options of the bulk load: the command line overrides the task and the settings."""
    from ...pipeline.bulk import BulkOptions

    settings = conf()
    name = options["task"]
    task = known_task(name, payload=options["payload"]) if name else None
    queue = options["queue"] or (task.options.queue if task else None)
    kind = settings.queue(queue).kind if queue else ""
    if queue is None or (task is None and kind != "pull"):
        raise CommandError(
            "the task is missing: give --task, or --queue with a queue of kind pull, whose jobs are raw bytes",
            returncode=2,
        )
    parts: dict[str, Any] = {name: options[f"job_{name}"] or () for name in ("args", "kwargs", "context")}
    return BulkOptions(
        queue=queue,
        task=name,
        **{name: options[name] for name in ("id", "due", "payload", "score", "group", "run_id", "rate", "quarantine")},
        **parts,
        redis_env=common.REDIS_ENV,
        prefix=settings.prefix,
        more=writer_options(
            queue,
            task,
            kind=kind,
            onConflict=options["on_conflict"],
            priority=options["priority"],
        ),
    )


def _run_detail(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options for the run's row, without secrets."""
    names = ("model", "filter", "id", "due", "job_args", "job_kwargs", "payload", "score", "group", "rate", "master")
    files = {"paths": [without_user(path) for path in options["paths"]], "format": options["format"] or FORMATS[0]}
    return {**(files if options["paths"] else {}), **{name: value for name in names if (value := options.get(name))}}


def _result_values(result: BulkResult) -> dict[str, Any]:
    values = {**asdict(result), "created": result.created, "known": result.known, "seconds": round(result.seconds, 3)}
    return {"state": "finished", **values}


def print_dry_run(command: common.PipelineCommand, dry_run: DryRun) -> None:
    """Print a dry run as readable text on stderr, and as JSON in the last line."""
    lines = [
        f"{dry_run.rows:,} rows, {dry_run.due_now:,} of them due now; about {dry_run.bytes_per_job:,} bytes per job, "
        f"{dry_run.bytes / 1e6:,.1f} MB in total"
    ]
    lines += ["", *table({"due from (UTC)": iso_of(start), "rows": count} for start, count in dry_run.dues)]
    lines += ["", *(json.dumps(row, default=str, ensure_ascii=False) for row in dry_run.first)]
    lines += ["", *(f"WARNING: {text}" for text in dry_run.warnings)]
    command.print_note("\n".join(lines))
    at, rows = dry_run.busiest_minute
    busiest = {"at": iso_of(at), "rows": rows}
    values = {**asdict(dry_run), "busiest_minute": busiest, "warnings": dry_run.warnings}
    command.print_result({"state": "dry run", **values})


SUBCOMMAND: Final = common.Subcommand(
    "schedule a job for each row of files or of a model; an interrupted run can be resumed",
    _run,
    {"rows": _ROWS, "jobs": _JOBS, "run": _HOW},
    (
        "delayq_pipeline bulk sms.parquet --task shop.send_sms --id 'sms:{pk}' --args pk --due +2h --dry-run",
        "delayq_pipeline bulk --model shop.Order --filter '{\"status\": \"new\"}' --task shop.remind --id 'order-{pk}'",
    ),
)
