"""Bulk loads: create jobs from files, a table or any Spark frame, in a write that can be resumed."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..core.broker import Broker
from ..core.errors import DelayQError, Misconfigured
from ..core.records.schedule_frames import CHUNK
from ..core.sending import bulk_loads
from ..core.sending.bulk_loads import BulkLoad
from .errors import PipelineError, RunDiffers
from .expressions import jobs, names_in
from .inputs import PART_BYTES, PART_NAMES, Files, Table, contents, in_order, in_parts, least_parts, without_user
from .redis_door import DEFAULT_PREFIX, open_broker
from .session import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .dry_run import DryRun
    from .write_options import WriteOptions

#: callback that receives the number of rows by outcome, and the total number of rows if it is known
Watch: TypeAlias = "Callable[[Mapping[str, int], int | None], None]"
#: files, a table, or a frame that returns the same rows each time it is computed
Source: TypeAlias = "DataFrame | Files | Table"
#: seconds between two progress reports
LOOK: Final = 0.5
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(.*)$", re.MULTILINE)
_OURS: Final = re.compile(
    r"(?:^|: )(?:[\w.]*\.)?(PipelineError|RunDiffers|Misconfigured|InvalidJob): (.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Mapping from rows to jobs, and the target of a bulk load.

    ``id``, ``due``, ``args`` … name columns of the input, see :func:`~.expressions.jobs`. ``more`` are options of the
    format ``delayq`` (:mod:`.write_options`): onConflict, expires, maxAttempts and so on.
    """

    queue: str
    id: str
    task: str | None = None
    due: str | None = None
    args: tuple[str, ...] = ()
    kwargs: tuple[str, ...] = ()
    payload: str | None = None
    score: str | None = None
    context: tuple[str, ...] = ()
    #: name of a column
    priority: str | None = None
    #: address of Redis, a URL or JSON; or the environment variable that holds it
    redis: str | None = None
    redis_env: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: None = generate one
    run_id: str | None = None
    #: jobs per call to Redis
    chunk: int = CHUNK
    #: minimum number of Spark tasks (files), or the exact number (other inputs); None = the number of cores
    parts: int | None = None
    #: maximum number of bytes of a file that one task reads
    part_bytes: int = PART_BYTES
    #: jobs per second
    rate: float | None = None
    #: folder for rows that are not valid jobs; None = the first of them aborts the write
    quarantine: str | None = None
    close: bool = True
    #: the bulk load will never be resumed, so no fingerprint of its rows is stored
    once: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    def door(self) -> dict[str, str]:
        """Return the options that address Redis."""
        said = {"redis": self.redis, "redisEnv": self.redis_env, "prefix": self.prefix}
        return {name: value for name, value in said.items() if value}

    def of_format(self, run_id: str, source: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the format ``delayq``."""
        said: dict[str, Any] = {
            "nullDue": "fail",
            **self.more,
            **self.door(),
            "queue": self.queue,
            "task": self.task,
            "runId": run_id,
            "chunk": self.chunk,
            "source": json.dumps(dict(source)),
            "close": "false",
            "rateLimit": self.rate,
            "quarantine": self.quarantine,
            "onError": "quarantine" if self.quarantine else None,
        }
        return {name: str(value) for name, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class BulkResult:
    """Result of a bulk load, as counted in Redis: each row once, however often it was sent."""

    run_id: str
    #: rows of the input that have an outcome
    rows: int
    #: number of rows by outcome: created, ignored, replaced, …
    counts: Mapping[str, int]
    #: rows in the quarantine
    bad: int
    seconds: float
    #: the bulk load was closed before this call, which wrote nothing
    was_over: bool = False
    #: rows written earlier, by a previous attempt at this bulk load
    before: int = 0

    @property
    def created(self) -> int:
        """Number of jobs created."""
        return self.counts.get("created", 0)

    @property
    def known(self) -> int:
        """Number of valid rows that created no job."""
        return self.rows - self.bad - self.created

    @property
    def rows_per_second(self) -> float:
        """Rows per second in this call, without the rows written earlier."""
        return (self.rows - self.before) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
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
        source: files, a table, or a frame that returns the same rows each time it is computed.
        options: see :class:`BulkOptions`.
        total: number of rows of the input, if known; files are counted.
        watch: progress callback, called twice a second by a thread.

    Raises:
        Misconfigured, PipelineError: the options are invalid, or the write failed; the message says how to resume it.
        RunDiffers: the bulk load was started with another input or other options; the message names them.
    """
    run_id = options.run_id or uuid.uuid4().hex
    began = time.monotonic()
    with open_broker(options.door()) as broker:
        with _clear_errors():
            prepared = prepare(spark, broker, source, options, run_id)
        before = sum(bulk_loads.progress(broker, prepared.run).values())
        if not prepared.run.closed:
            with in_parts(spark, prepared.parts) if prepared.parts else nullcontext(), _clear_errors(run_id):
                if total is None and isinstance(source, Files):
                    total = prepared.frame.count()
                with _watching(broker, prepared.run, total, watch):
                    _write(prepared, options, run_id)
        run = bulk_loads.close_load(broker, prepared.run) if options.close else prepared.run
        counts = bulk_loads.progress(broker, run)
    bad = _bad(options, run_id)
    return BulkResult(
        run_id, sum(counts.values()) + bad, dict(counts), bad, time.monotonic() - began, prepared.run.closed, before
    )


def _bad(options: BulkOptions, run_id: str) -> int:
    if not options.quarantine:
        return 0
    from .quarantine import put_aside

    return put_aside(options.quarantine, run_id)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Input and its mapping to jobs, before anything is written."""

    made: Callable[[int], DataFrame]
    wanted: WriteOptions
    #: description of the input that is stored with the bulk load
    told: dict[str, str]
    parts: dict[str, str]

    @property
    def source(self) -> dict[str, str]:
        """Description of input, columns and options that is stored with the bulk load."""
        return {"columns": self.made(0).schema.simpleString(), **self.wanted.told(), **self.told}


def _plan(
    spark: SparkSession, broker: Broker, source: Source, options: BulkOptions, run_id: str, *, sum_up: bool = False
) -> _Plan:
    from .write_options import WriteOptions, check_schema
    from .writer import check_redis

    known = bulk_loads.read_load(broker, run_id)
    before = dict(known.source) if known is not None else {}
    if isinstance(source, Table) and not source.columns:
        source = replace(source, columns=_needed(options))
    frame = source.read(spark) if isinstance(source, Files | Table) else source
    parts: dict[str, str] = {}
    if isinstance(source, Files):
        parts = {"part_bytes": str(options.part_bytes), "least_parts": str(options.parts or least_parts(spark))}
        # Another number of cores would split the files differently. An explicit number that differs from the stored one
        # is reported instead.
        if options.parts is None:
            parts |= {name: before[name] for name in PART_NAMES if name in before}
        told = {**source.fingerprint(spark, frame), **parts}
    else:
        told = {"parts": str(options.parts or before.get("parts") or least_parts(spark))}
        told |= source.fingerprint() if isinstance(source, Table) else {}
    told["words"] = json.dumps(
        [
            options.id,
            options.due,
            options.args,
            options.kwargs,
            options.payload,
            options.score,
            options.context,
            options.priority,
        ]
    )

    def made(opened_ms: int) -> DataFrame:
        return jobs(
            frame,
            ident=options.id,
            due=options.due,
            opened_ms=opened_ms,
            args=options.args,
            kwargs=options.kwargs,
            payload=options.payload,
            score=options.score,
            context=options.context,
            priority=options.priority,
        )

    wanted = WriteOptions.parse(options.of_format(run_id, told))
    check_schema(made(0).schema, wanted)
    check_redis(broker, wanted)
    if sum_up and not options.once and not isinstance(source, Files):
        # A closed bulk load writes nothing, so the present contents of its input do not matter.
        over = known is not None and known.closed
        told |= {name: before[name] for name in ("rows",) if name in before} if over else {"rows": contents(made(0))}
    return _Plan(made, wanted, told, parts)


def _needed(options: BulkOptions) -> tuple[str, ...]:
    """Return the columns to read from a table."""
    single = [options.payload, options.score, options.priority]
    if options.due is not None and options.due.isidentifier():
        single.append(options.due)
    named = [*names_in(options.id), *options.args, *options.kwargs, *options.context, *filter(None, single)]
    return tuple(dict.fromkeys(named))


def prepare(spark: SparkSession, broker: Broker, source: Source, options: BulkOptions, run_id: str) -> Prepared:
    """Open the bulk load, or find it again, and map the input to jobs.

    Raises:
        Misconfigured, PipelineError, RunDiffers: see :func:`bulk`.
    """
    from .sender import open_run

    plan = _plan(spark, broker, source, options, run_id, sum_up=True)
    run = open_run(broker, run_id, options.queue, plan.wanted, plan.source)
    ready = plan.made(run.opened_ms)
    if plan.parts:
        return Prepared(ready, run, plan.told, plan.parts)
    return Prepared(in_order(ready, int(plan.told["parts"])), run, plan.told)


def rehearse(spark: SparkSession, source: Source, options: BulkOptions, *, storm_above: int | None = None) -> DryRun:
    """Return what :func:`bulk` would write, without writing anything.

    Raises:
        Misconfigured, PipelineError: the options or the input are invalid.
    """
    from .dry_run import STORM, dry_run

    with open_broker(options.door()) as broker, _clear_errors():
        plan = _plan(spark, broker, source, options, options.run_id or "dry-run")
        with in_parts(spark, plan.parts) if plan.parts else nullcontext():
            return dry_run(
                plan.made(round(broker.now_ms())),
                broker,
                options.queue,
                plan.wanted,
                "dry-run",
                storm_above=storm_above or STORM,
            )


def _write(prepared: Prepared, options: BulkOptions, run_id: str) -> None:
    said = options.of_format(run_id, prepared.source)
    activate(prepared.frame.sparkSession)  # any thread may call this
    prepared.frame.write.format("delayq").options(**said).mode("append").save()


@contextmanager
def _clear_errors(run_id: str | None = None) -> Iterator[None]:
    """Convert Spark's errors to errors of this package.

    With a run id, the message adds that the bulk load is still open.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _told(str(error), run_id) from error


def _told(text: str, run_id: str | None) -> DelayQError:
    """Return our own error from the text of a failed Spark task, or Spark's message without the Java stack traces."""
    text = without_user(text)
    ours = _OURS.search(text)
    if ours is not None:
        kind = {"RunDiffers": RunDiffers, "Misconfigured": Misconfigured}.get(ours[1], PipelineError)
        return kind(ours[2])
    causes = _CAUSE.findall(text)
    said = causes[-1] if causes else text.strip().partition("\n")[0]
    if run_id is None:
        return PipelineError(said[:1000])
    return PipelineError(f"{said[:1000]}. Run {run_id} is open: go on with it by the same call and run id {run_id!r}")


@contextmanager
def _watching(broker: Broker, run: BulkLoad, total: int | None, watch: Watch | None) -> Iterator[None]:
    """Report progress to ``watch`` during the block, and once more at its end."""
    if watch is None:
        yield
        return
    done = threading.Event()

    def tell() -> None:
        with suppress(Exception):  # a failure to read the counters must not abort the write
            counts: Counter[str] = bulk_loads.progress(broker, run)
            watch(counts, total)

    def follow() -> None:
        while not done.wait(LOOK):
            tell()

    follower = threading.Thread(target=follow, name="delayq-bulk", daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()
        tell()
