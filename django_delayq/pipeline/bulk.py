"""Bulk loads: create jobs from files or any Spark frame, in a write that can be resumed."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from ..core import loads
from ..core.broker import Broker
from ..core.loads import BulkLoad
from .bulk_options import MAPPING, BulkOptions, BulkResult
from .dry_run import STORM, DryRun, dry_run
from .errors import plain_errors
from .expressions import jobs
from .inputs import PART_NAMES, Files, contents, in_order, in_parts, least_parts
from .quarantine import count_rows
from .redis_options import open_broker
from .sender import open_run
from .session import activate
from .write_options import WriteOptions
from .write_schema import check_schema
from .writer import check_redis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BulkOptions", "BulkResult", "bulk", "prepare", "rehearse"]

#: callback that receives the number of rows by outcome, and the total number of rows if it is known
Watch: TypeAlias = "Callable[[Mapping[str, int], int | None], None]"
#: files, or a frame that returns the same rows each time it is computed
Source: TypeAlias = "DataFrame | Files"
#: seconds between two progress reports
REPORT_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """Input that is ready to be written."""

    frame: DataFrame
    run: BulkLoad
    source: Mapping[str, str]
    #: how files are read in parts; None = the rows are in order already
    parts: Mapping[str, str] | None = None


def bulk(
    spark: SparkSession, source: Source, options: BulkOptions, *, total: int | None = None, watch: Watch | None = None
) -> BulkResult:
    """Write a job for each row.

    The same call with the same ``run_id`` resumes an interrupted bulk load: rows already written are skipped, even if
    their jobs have since run and been deleted. A closed bulk load is left unchanged.

    Rows that do not come from files are read twice: the first pass computes a checksum of their contents, by which a
    later call recognises the same input.

    Args:
        source: files, or a frame that returns the same rows each time it is computed.
        total: number of rows of the input, if known; files are counted.
        watch: progress callback, called twice a second by a thread.

    Raises:
        Misconfigured, PipelineError: the options are invalid, or the write failed; the message says how to resume it.
        RunDiffers: the bulk load was started with another input or other options; the message names them.
    """
    run_id = options.run_id or uuid.uuid4().hex
    began = time.monotonic()
    with open_broker(options.address()) as broker:
        with plain_errors():
            prepared = prepare(spark, broker, source, options, run_id)
        before = sum(loads.progress(broker, prepared.run).values())
        if not prepared.run.closed:
            with (
                in_parts(spark, prepared.parts) if prepared.parts else nullcontext(),
                plain_errors(_resume_note(run_id)),
            ):
                if total is None and isinstance(source, Files):
                    total = prepared.frame.count()
                with _reporting(broker, prepared.run, total, watch):
                    _write(prepared, options, run_id)
        run = loads.close_load(broker, prepared.run) if options.close else prepared.run
        counts = loads.progress(broker, run)
    bad = count_rows(options.quarantine, run_id) if options.quarantine else 0
    return BulkResult(
        run_id, sum(counts.values()) + bad, dict(counts), bad, time.monotonic() - began, prepared.run.closed, before
    )


def closed_result(options: BulkOptions) -> BulkResult | None:
    """Return the result of a bulk load that is complete; None for another one."""
    with open_broker(options.address()) as broker:
        load = loads.read_load(broker, options.run_id or "")
        if load is None or not load.closed:
            return None
        counts = loads.progress(broker, load)
    return BulkResult(load.id, counts.total(), dict(counts), 0, 0.0, True, counts.total())


@dataclass(frozen=True, slots=True)
class _Plan:
    """Input and its mapping to jobs, before anything is written."""

    jobs_at: Callable[[int], DataFrame]
    write_options: WriteOptions
    #: description of the input that is stored with the bulk load
    identity: dict[str, str]
    parts: dict[str, str]

    @property
    def source(self) -> dict[str, str]:
        """Description of input, columns and options that is stored with the bulk load."""
        return {"columns": self.jobs_at(0).schema.simpleString(), **self.write_options.identity(), **self.identity}


def _plan(
    spark: SparkSession,
    broker: Broker,
    source: Source,
    options: BulkOptions,
    run_id: str,
    *,
    with_checksum: bool = False,
) -> _Plan:
    load = loads.read_load(broker, run_id)
    before = dict(load.source) if load is not None else {}
    frame = source.read(spark) if isinstance(source, Files) else source
    parts: dict[str, str] = {}
    if isinstance(source, Files):
        parts = {"part_bytes": str(options.part_bytes), "least_parts": str(options.parts or least_parts(spark))}
        # Another number of cores would split the files differently. An explicit number that differs from the stored one
        # is reported instead.
        if options.parts is None:
            parts |= {name: before[name] for name in PART_NAMES if name in before}
        identity = {**source.fingerprint(spark, frame), **parts}
    else:
        identity = {"parts": str(options.parts or before.get("parts") or least_parts(spark))}
    identity["words"] = json.dumps([getattr(options, name) for name in MAPPING])
    jobs_at = partial(jobs, frame, options)
    write_options = WriteOptions.parse(options.format_options(run_id, identity))
    check_schema(jobs_at(0).schema, write_options)
    check_redis(broker, write_options)
    if with_checksum and not options.once and not isinstance(source, Files):
        # A closed bulk load writes nothing, so the present contents of its input do not matter.
        if load is not None and load.closed:
            identity |= {"rows": before["rows"]} if "rows" in before else {}
        else:
            identity["rows"] = contents(jobs_at(0))
    return _Plan(jobs_at, write_options, identity, parts)


def prepare(spark: SparkSession, broker: Broker, source: Source, options: BulkOptions, run_id: str) -> PreparedInput:
    """Open the bulk load, or find it again, and map the input to jobs.

    Raises:
        Misconfigured, PipelineError, RunDiffers: see :func:`bulk`.
    """
    plan = _plan(spark, broker, source, options, run_id, with_checksum=True)
    run = open_run(broker, run_id, options.queue, plan.write_options, plan.source)
    ready = plan.jobs_at(run.opened_ms)
    if plan.parts:
        return PreparedInput(ready, run, plan.identity, plan.parts)
    return PreparedInput(in_order(ready, int(plan.identity["parts"])), run, plan.identity)


def rehearse(spark: SparkSession, source: Source, options: BulkOptions, *, storm_above: int = STORM) -> DryRun:
    """Return what :func:`bulk` would write, without writing anything.

    Raises:
        Misconfigured, PipelineError: the options or the input are invalid.
    """
    with open_broker(options.address()) as broker, plain_errors():
        plan = _plan(spark, broker, source, options, options.run_id or "dry-run")
        with in_parts(spark, plan.parts) if plan.parts else nullcontext():
            return dry_run(plan.jobs_at(round(broker.now_ms())), broker, plan.write_options, storm_above=storm_above)


def _write(prepared: PreparedInput, options: BulkOptions, run_id: str) -> None:
    settings = options.format_options(run_id, prepared.source)
    activate(prepared.frame.sparkSession)  # any thread may call this
    prepared.frame.write.format("delayq").options(**settings).mode("append").save()


def _resume_note(run_id: str) -> str:
    return f". Bulk load {run_id} is open: repeat the call with run id {run_id!r} to resume it"


@contextmanager
def _reporting(broker: Broker, run: BulkLoad, total: int | None, watch: Watch | None) -> Iterator[None]:
    """Report progress to ``watch`` during the block, and once more at its end."""
    if watch is None:
        yield
        return
    done = threading.Event()

    def report() -> None:
        with suppress(Exception):  # a failure to read the counters must not abort the write
            counts: Counter[str] = loads.progress(broker, run)
            watch(counts, total)

    def follow() -> None:
        while not done.wait(REPORT_SECONDS):
            report()

    follower = threading.Thread(target=follow, name="delayq-bulk", daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()
        report()
