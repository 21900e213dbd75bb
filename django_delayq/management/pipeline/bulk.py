"""Subcommand ``delayq_pipeline bulk``: create a job for each row of files or of a model."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from django.core.management.base import CommandError
from django.db import connections

from ... import connections as ours
from ...core.errors import DelayQError
from ...core.inputs import check_queue_name
from ...core.moments import iso_of
from ...core.sending import bulk_loads
from ...history.records import Record
from ...pipeline.inputs import FORMATS, PART_BYTES, format_of, without_user
from ...settings.conf import conf
from ...status.formatting import table
from ..base import positive
from . import common, keeping, making
from .stopping import Stopped

if TYPE_CHECKING:
    from ...pipeline.bulk import BulkOptions, BulkResult
    from ...pipeline.dry_run import DryRun
    from ...pipeline.inputs import Files, Table

HELP: Final = "schedule a job for each row of files or of a model, in a run that can be gone on with"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    source = parser.add_argument_group("rows")
    source.add_argument("paths", nargs="*", metavar="PATH", help="files or folders, also URLs that Spark can open")
    source.add_argument(
        "--format", choices=FORMATS, help="of the files (default: what their endings say, else parquet)"
    )
    source.add_argument(
        "--schema",
        metavar="COLUMNS",
        help="of csv and json, like 'pk LONG, day DATE'; without it all columns of csv are texts",
    )
    source.add_argument("--no-header", action="store_true", help="the first line of a csv file is data")
    source.add_argument("--model", metavar="APP.MODEL", help="the rows of a Django model instead of files")
    source.add_argument("--filter", metavar="JSON", help="""lookups of its rows, like '{"status": "pending"}'""")
    source.add_argument("--using", metavar="ALIAS", help="the database of the model")
    made = parser.add_argument_group("jobs")
    made.add_argument(
        "--task", help="its name; queue, priority, expiry and how payloads are merged are those of the task"
    )
    made.add_argument("--queue", type=check_queue_name, help="another queue, or one of kind pull")
    made.add_argument("--id", required=True, metavar="TEMPLATE", help="like 'sms:{pk}:{day}', of columns of the rows")
    made.add_argument(
        "--due",
        metavar="WHAT",
        help="a column, a moment like 2026-11-21T08:00:00+01:00, or a time from "
        "now on like +2h30m; without it the jobs are due at once",
    )
    for name, text in (("args", "positional arguments"), ("kwargs", "named arguments"), ("context", "the context")):
        # "args" is reserved among the options of a Django command
        made.add_argument(
            f"--{name}",
            dest=f"{name}_columns",
            type=making.names,
            default=(),
            metavar="A,B",
            help=f"columns that are {text}",
        )
    made.add_argument("--payload", metavar="COLUMN", help="of merged tasks, and the bytes of a queue of kind pull")
    made.add_argument("--score", metavar="COLUMN", help="the order of the payload")
    made.add_argument(
        "--on-conflict",
        choices=("ignore", "replace", "merge", "error"),
        help="what happens to a live job of the same id (default: ignore; merge for jobs with a payload)",
    )
    made.add_argument("--priority", type=int, help="0 (first) to 7")
    how = parser.add_argument_group("run")
    how.add_argument("--run-id", metavar="X", help="go on with a run, or name a new one")
    how.add_argument(
        "--chunk", type=positive(int, "a number of jobs"), default=250, help="jobs in a call of Redis (250)"
    )
    how.add_argument("--rate", type=positive(float, "a number of jobs"), metavar="N", help="jobs a second at most")
    how.add_argument("--parts", type=positive(int, "a number of tasks"), help="tasks of Spark (default: one a core)")
    how.add_argument(
        "--part-bytes",
        type=positive(int, "a number of bytes"),
        default=PART_BYTES,
        help="of a file that one task reads at most (default: 64 MiB)",
    )
    how.add_argument("--quarantine", metavar="DIR", help="put rows that are no jobs there; else the first ends the run")
    how.add_argument("--dry-run", action="store_true", help="say what would be written; nothing is")
    how.add_argument(
        "--storm",
        type=positive(int, "a number of jobs"),
        default=60_000,
        metavar="N",
        help="with --dry-run: warn of more jobs than these in one minute (default: 60,000)",
    )
    how.add_argument("--yes", action="store_true", help="write although the look before found something to warn of")
    common.add_spark(parser)


def run(command: common.Desk, options: Mapping[str, Any]) -> int | None:
    """Show what would be written, write it unless it is a dry run, and print the result."""
    source, wanted = _source(options), _wanted(options)
    if options["dry_run"]:
        with common.session(command, options, "delayq bulk dry run") as spark:
            _attach(spark, options)
            from ...pipeline.bulk import rehearse

            _show(command, rehearse(spark, source, wanted, storm_above=options["storm"]), options)
        return None
    run_id = options["run_id"] or keeping.new_run("bulk")
    wanted = replace(wanted, run_id=run_id)
    how = f"go on with it by the same command and --run-id {run_id}"
    detail = _asked(options)
    try:
        with (
            common.recorded(command, "bulk", run_id, queue=wanted.queue, task=wanted.task or "", detail=detail) as kept,
            common.session(command, options, f"delayq bulk {run_id}") as spark,
        ):
            result = _write(command, spark, source, wanted, options, kept)
    except Stopped as stopped:
        raise Stopped(f"{stopped}. Run {run_id} is open: {how}") from stopped
    except DelayQError as error:
        if options["run_id"] is None and run_id not in str(error):
            raise CommandError(f"{error}\nRun {run_id}: {how}") from error
        raise
    if result.was_over:
        common.say(command, f"Run {run_id} was over before: everything is in, nothing was written.", options)
    common.finish(command, _told(result))
    return None


def _attach(spark: Any, options: Mapping[str, Any]) -> None:
    if options["model"]:
        from ...pipeline.table import attach

        attach(spark)


def _write(
    command: common.Desk,
    spark: Any,
    source: Files | Table,
    wanted: BulkOptions,
    options: Mapping[str, Any],
    kept: Record,
) -> BulkResult:
    from ...pipeline.bulk import bulk, rehearse

    _attach(spark, options)
    # An existing bulk load is resumed without a preview, which was shown when it began.
    if not options["yes"] and bulk_loads.read_load(ours.broker(), wanted.run_id or "") is None:
        look = rehearse(spark, source, wanted, storm_above=options["storm"])
        found = look.dangers if wanted.quarantine else look.warnings
        if found:
            raise CommandError(
                "\n".join([*found, "Nothing was written. --dry-run tells more; --yes writes all the same."])
            )
    ours.queue(wanted.queue)  # created with the shards and limits of the settings, if it does not exist
    with command.progress("bulk", unit="rows") as shown:

        def watch(counts: Mapping[str, int], total: int | None) -> None:
            rows = sum(counts.values())
            shown.update(rows, total)
            created = counts.get("created", 0)
            kept.progress(rows=rows, created=created, known=rows - created, total=total)

        result = bulk(spark, source, wanted, watch=_in_its_thread(watch))
    kept.progress(rows=result.rows, created=result.created, known=result.known, bad=result.bad, detail=_told(result))
    return result


def _in_its_thread(watch: Callable[[Mapping[str, int], int | None], None]) -> Callable[..., None]:
    """Return ``watch`` wrapped to close the thread's database connections after each call: the thread is not ours."""

    def told(counts: Mapping[str, int], total: int | None) -> None:
        try:
            watch(counts, total)
        finally:
            connections.close_all()

    return told


def _source(options: Mapping[str, Any]) -> Files | Table:
    from ...pipeline.inputs import Files, Table

    if bool(options["model"]) == bool(options["paths"]):
        raise CommandError("which rows? Give paths of files, or --model app.Model: one of the two", returncode=2)
    if options["model"]:
        return Table(options["model"], options["filter"], using=options["using"])
    if options["filter"]:
        raise CommandError("--filter is for --model; of files all rows are taken", returncode=2)
    return Files(tuple(options["paths"]), _format(options), options["schema"], not options["no_header"])


def _format(options: Mapping[str, Any]) -> str:
    try:
        return options["format"] or format_of(options["paths"])
    except DelayQError as error:
        raise CommandError(str(error), returncode=2) from error


def _wanted(options: Mapping[str, Any]) -> BulkOptions:
    """Return the options of the bulk load: the command line overrides the task and the settings."""
    from ...pipeline.bulk import BulkOptions
    from .address import ENV

    settings = conf()
    name = options["task"]
    task = making.known_task(name, payload=options["payload"]) if name else None
    queue = options["queue"] or (task.options.queue if task else None)
    if queue is None:
        raise CommandError("which task? Give --task, or --queue of kind pull, whose jobs are raw bytes", returncode=2)
    policy = settings.queue(queue)
    if task is None and policy.kind != "pull":
        raise CommandError(f"which task? Queue {queue!r} is of kind {policy.kind}: give --task", returncode=2)
    return BulkOptions(
        queue=queue,
        task=name,
        id=options["id"],
        due=options["due"],
        args=options["args_columns"],
        kwargs=options["kwargs_columns"],
        payload=options["payload"],
        score=options["score"],
        context=options["context_columns"],
        redis_env=ENV,
        prefix=settings.prefix,
        run_id=options["run_id"],
        chunk=options["chunk"],
        parts=options["parts"],
        part_bytes=options["part_bytes"],
        rate=options["rate"],
        quarantine=options["quarantine"],
        more=making.policies(
            queue, task, kind=policy.kind, onConflict=options["on_conflict"], priority=options["priority"]
        ),
    )


def _asked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command line's options for the run's row, without secrets."""
    names = ("model", "filter", "id", "due", "args_columns", "kwargs_columns", "payload", "score", "rate", "master")
    files = {"paths": [without_user(path) for path in options["paths"]], "format": _format(options)}
    return {**(files if options["paths"] else {}), **{name: value for name in names if (value := options.get(name))}}


def _told(result: BulkResult) -> dict[str, Any]:
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


def _show(command: common.Desk, found: DryRun, options: Mapping[str, Any]) -> None:
    """Print a dry run as readable text on stderr, and as JSON in the last line."""
    lines = [
        f"{found.rows:,} rows, {found.due_now:,} of them due already; about {found.bytes_per_job:,.0f} bytes a "
        f"job, {found.memory / 1e6:,.1f} MB in all"
    ]
    lines += ["", *table(("shard", "rows"), sorted(found.shards.items())), ""]
    lines += table(("due from (UTC)", "rows"), [(iso_of(start), count) for start, count in found.dues])
    lines += ["", *(json.dumps(row, default=str, ensure_ascii=False) for row in found.first)]
    lines += ["", *(f"WARNING: {text}" for text in found.warnings)]
    common.say(command, "\n".join(lines), options)
    common.finish(
        command,
        {
            "state": "dry run",
            "rows": found.rows,
            "due_now": found.due_now,
            "without_id": found.without_id,
            "without_due": found.without_due,
            "shards": dict(found.shards),
            "dues": list(found.dues),
            "width_minutes": found.width_min,
            "busiest_minute": {"at": iso_of(found.busiest[0]), "rows": found.busiest[1]},
            "bytes_per_job": round(found.bytes_per_job),
            "bytes": found.memory,
            "free_bytes": found.free,
            "first": list(found.first),
            "warnings": found.warnings,
        },
    )
