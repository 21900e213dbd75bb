"""Bulk loads: create jobs from files, in a write that can be resumed.

Templates such as ``sms:{pk}:{day}`` and ``+2h`` become columns of Spark.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import functions as F

from ..core import layouts, loads
from ..core.broker import Broker
from ..core.errors import Misconfigured
from ..core.inputs import short, suggest
from ..core.job import KEY_BYTES
from ..core.loads import BulkLoad, memory_of
from ..core.records.frames import CHUNK
from ..repair.rows import Kind, check_names_in, due_ms_of, id_parts, names_in, unsure, wrong_due
from .columns import Packer
from .errors import plain_errors
from .inputs import PART_BYTES, Files, in_parts, least_parts
from .options import DEFAULT_PREFIX, address_of, open_broker
from .quarantine import count_rows
from .schemas import column_of
from .session import activate
from .write_options import NOW, WriteOptions, check_schema
from .writer import check_redis, open_run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: bytes that Redis needs for a waiting job in addition to twice its id and once its body
PER_JOB: Final = 110
#: number of jobs due within one minute above which a warning is raised
STORM: Final = 60_000
_SAMPLE: Final = 1_000
_SHOWN: Final = 5
_BUCKETS: Final = 48
_WIDTHS_MIN: Final = (1, 5, 15, 60, 240, 1_440, 10_080, 43_200)
_MINUTE_MS: Final = 60_000
#: options that map the columns of a row to its job
MAPPING: Final = ("id", "due", "args", "kwargs", "payload", "score", "context", "priority", "group")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """Mapping from rows to jobs, and the target of a bulk load.

    ``id``, ``due``, ``args`` … name columns of the input, see :func:`~.bulk.jobs`. ``more`` are options of the
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
    #: names of columns
    priority: str | None = None
    group: str | None = None
    #: address of Redis, a URL or JSON; or the environment variable that holds it
    redis: str | None = None
    redis_env: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: None = generate one
    run_id: str | None = None
    #: jobs per call to Redis
    chunk: int = CHUNK
    #: minimum number of Spark tasks; None = the number of cores
    parts: int | None = None
    #: maximum number of bytes of a file that one task reads
    part_bytes: int = PART_BYTES
    #: jobs per second
    rate: float | None = None
    #: folder for rows that are not valid jobs; None = the first of them aborts the write
    quarantine: str | None = None
    close: bool = True
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the input that the jobs are made of."""
        single = [self.payload, self.score, self.priority, self.group]
        if self.due is not None and self.due.isidentifier():  # neither a delay nor a moment
            single.append(self.due)
        named = [*names_in(self.id), *self.args, *self.kwargs, *self.context, *filter(None, single)]
        return tuple(dict.fromkeys(named))

    def address(self) -> dict[str, str]:
        """Return the options that address Redis."""
        return address_of(self.redis, self.redis_env, self.prefix)

    def format_options(self, run_id: str, source: Mapping[str, str]) -> dict[str, str]:
        """Return the options of the format ``delayq``."""
        options: dict[str, Any] = {
            "nullDue": "fail",
            **self.more,
            **self.address(),
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
        return {name: str(value) for name, value in options.items() if value is not None}


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


# -- columns of jobs ---------------------------------------------------------------------------------------------------
#: types with exactly one text form per value
_SURE: Final[Mapping[str, Kind | None]] = {
    "string": None,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer"),
    "boolean": "boolean",
    "date": "date",
}


def column(frame: DataFrame, name: str, what: str) -> Column:
    """Return the column with exactly this name.

    Raises:
        Misconfigured: there is none; the message lists the existing columns.
    """
    if column_of(frame, name) is None:
        names = ", ".join(frame.columns[:30])
        raise Misconfigured(
            f"{what}: the input has no column {short(name)}.{suggest(name, frame.columns)} Known columns: {names}"
        )
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Return a name quoted for Spark's expressions."""
    return f"`{name.replace('`', '``')}`"


def id_column(frame: DataFrame, template: str) -> Column:
    """Return ``sms:{pk}:{day}`` as a column. A row in which a part is null gets no id, and so is not a valid job.

    Raises:
        Misconfigured: it names no column, or a column of a type whose text form may vary, or is not a template at all.
    """
    check_names_in(template)
    parts: list[Column] = []
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    for text, name in id_parts(template):
        if text:
            parts.append(F.lit(text))
        if name is None:
            continue
        one = column(frame, name, f"the id {short(template)}")
        kind = kinds[column_of(frame, name) or name]
        if kind not in _SURE and not kind.startswith("decimal"):
            raise unsure(template, name, kind)
        parts.append(one.cast("string"))
    return F.concat(*parts)


def kinds_of(frame: DataFrame, names: Iterable[str]) -> dict[str, Kind]:
    """Return the kinds of those columns whose values have one form."""
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    kinds = {name: _SURE.get(types[column_of(frame, name) or name]) for name in names}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def due_column(frame: DataFrame, due: str | None, opened_ms: int) -> Column | None:
    """Return the column of due times, named as the format expects it; None = due at once.

    Args:
        due: the name of a column (a timestamp, Unix ms as a whole number, or ISO 8601 texts, in UTC unless they say
            otherwise), a moment like 2026-11-21T08:00:00+01:00, or a delay after the start of the bulk load, like +2h.
        opened_ms: start of the bulk load, Unix ms.

    Raises:
        Misconfigured: it is none of these.
    """
    if due is None:
        return None
    name = column_of(frame, due)
    if name is None:
        return F.lit(due_ms_of(due, opened_ms, frame.columns)).cast("long").alias("due_ms")
    kind = frame.schema[name].dataType.simpleString()
    if kind == "timestamp":
        return F.col(quoted(due)).alias("due")
    if kind in ("bigint", "int"):
        return F.col(quoted(due)).cast("long").alias("due_ms")
    if kind == "string":
        # A cast would read a text without a zone in that of the session, which may be the user's.
        text = F.to_json(F.struct(F.col(quoted(due)).alias("due")))
        return F.from_json(text, "due timestamp", {"timeZone": "UTC"})["due"].alias("due")
    raise wrong_due(due, kind)


def jobs(frame: DataFrame, options: BulkOptions, opened_ms: int) -> DataFrame:
    """Map the rows of an input to jobs: the columns that the format ``delayq`` accepts.

    Args:
        opened_ms: start of the bulk load, Unix ms.

    Raises:
        Misconfigured: see :func:`id_column` and :func:`due_column`; or a column does not exist.
    """
    mapped = [id_column(frame, options.id).alias("id")]
    due = due_column(frame, options.due, opened_ms)
    if due is not None:
        mapped.append(due)
    for word, names in (("args", options.args), ("kwargs", options.kwargs), ("context", options.context)):
        if names:
            columns = [
                column(frame, name, word).alias(f"_{n}" if word == "args" else name) for n, name in enumerate(names)
            ]
            mapped.append(F.struct(*columns).alias(word))
    for word in ("payload", "score", "priority", "group"):
        name: str | None = getattr(options, word)
        if name is not None:
            mapped.append(column(frame, name, word).alias(word))
    return frame.select(*mapped)


# -- the load ----------------------------------------------------------------------------------------------------------

#: callback that receives the number of rows by outcome, and the total number of rows if it is known
Watch: TypeAlias = "Callable[[Mapping[str, int], int | None], None]"
#: seconds between two progress reports
REPORT_SECONDS: Final = 0.5


def bulk(
    spark: SparkSession, files: Files, options: BulkOptions, *, total: int | None = None, watch: Watch | None = None
) -> BulkResult:
    """Write a job for each row.

    The same call with the same ``run_id`` resumes an interrupted bulk load: rows already written are skipped, even if
    their jobs have since run and been deleted. A closed bulk load is left unchanged.

    Args:
        files: a frame is written to files first, because its rows may come in another order, or be others, when it is
            computed again.
        total: number of rows, if known; else they are counted.
        watch: progress callback, called twice a second by a thread.

    Raises:
        Misconfigured, PipelineError: the options are invalid, or the write failed; the message says how to resume it.
        RunDiffers: the bulk load was started with another input or other options; the message names them.
    """
    run_id = options.run_id or uuid.uuid4().hex
    began = time.monotonic()
    with open_broker(options.address()) as broker:
        with plain_errors():
            plan = _plan(spark, broker, files, options, run_id)
            run = open_run(broker, run_id, plan.write_options, plan.source)
        was_over, before = run.closed, loads.progress(broker, run).total()
        if not was_over:
            with plain_errors(f". Bulk load {run_id} is open: repeat the call with run id {run_id!r} to resume it"):
                frame = plan.jobs_at(run.opened_ms)
                total = frame.count() if total is None else total
                settings = options.format_options(run_id, plan.identity)
                activate(frame.sparkSession)  # any thread may call this
                with _reporting(broker, run, total, watch):
                    frame.write.format("delayq").options(**settings).mode("append").save()
                activate(spark)
        run = loads.close_load(broker, run) if options.close else run
        counts = loads.progress(broker, run)
    bad = count_rows(options.quarantine, run_id) if options.quarantine else 0
    return BulkResult(run_id, counts.total() + bad, dict(counts), bad, time.monotonic() - began, was_over, before)


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

    #: the jobs of a bulk load that was opened at a moment
    jobs_at: Callable[[int], DataFrame]
    write_options: WriteOptions
    #: description of the input that is stored with the bulk load
    identity: dict[str, str]

    @property
    def source(self) -> dict[str, str]:
        """Description of input, columns and options that is stored with the bulk load."""
        return {"columns": self.jobs_at(0).schema.simpleString(), **self.write_options.identity(), **self.identity}


def _plan(spark: SparkSession, broker: Broker, files: Files, options: BulkOptions, run_id: str) -> _Plan:
    load = loads.read_load(broker, run_id)
    how = {"part_bytes": str(options.part_bytes), "least_parts": str(options.parts or least_parts(spark))}
    # Another number of cores would split the files differently. An explicit number that differs from the stored one is
    # reported instead.
    if options.parts is None and load is not None:
        how |= {name: value for name, value in load.source if name in how}
    frame = files.read(in_parts(spark, how))
    words = json.dumps([getattr(options, name) for name in MAPPING])
    identity = {**files.fingerprint(spark, frame), **how, "words": words}
    jobs_at = partial(jobs, frame, options)
    write_options = WriteOptions.parse(options.format_options(run_id, identity))
    check_schema(jobs_at(0).schema, write_options)
    check_redis(broker, write_options)
    return _Plan(jobs_at, write_options, identity)


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


# -- dry run: reports what would be written without writing or creating anything ---------------------------------------


@dataclass(frozen=True, slots=True)
class DryRun:
    """Report of a dry run. Times are Unix ms, sizes bytes."""

    rows: int
    without_id: int
    without_due: int
    #: rows that are already due
    due_now: int
    #: (start, rows) of the non-empty spans of equal width, and that width in minutes
    dues: Sequence[tuple[int, int]]
    width_min: int
    #: the minute with the most due jobs, and their number
    busiest: tuple[int, int]
    bytes_per_job: float
    #: free memory of Redis; None = unknown
    free: int | None
    first: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    #: (id, reason) of the rows of the sample that are not valid jobs
    bad: Sequence[tuple[str, str]] = field(default_factory=tuple)
    storm_above: int = STORM

    @property
    def memory(self) -> int:
        """Estimated memory in Redis for all jobs."""
        return round(self.bytes_per_job * (self.rows - self.without_id - self.without_due))

    @property
    def warnings(self) -> list[str]:
        """Return all warnings as texts: dangers, then faulty rows."""
        return [*self.dangers, *self.odd]

    @property
    def dangers(self) -> list[str]:
        """Return warnings about overloading Redis or the workers."""
        warnings = []
        if self.free is not None and self.memory > self.free:
            warnings.append(
                f"the jobs take about {_mb(self.memory)}, and Redis has {_mb(self.free)} left: give it more "
                "memory, or write them in parts"
            )
        if self.busiest[1] > self.storm_above:
            warnings.append(
                f"{self.busiest[1]:,} jobs fall due within one minute, more than {self.storm_above:,}: can "
                "the workers do that? Spread their due times"
            )
        return warnings

    @property
    def odd(self) -> list[str]:
        """Return warnings about faulty rows, which a quarantine would receive."""
        warnings = []
        if self.without_id:
            warnings.append(f"{self.without_id:,} rows get no id, because a part of it is null")
        if self.without_due:
            warnings.append(f"{self.without_due:,} rows have no due time")
        if self.bad:
            warnings.append(
                f"{len(self.bad)} of the first {_SAMPLE:,} rows are no jobs; {self.bad[0][0]}: {self.bad[0][1]}"
            )
        return warnings


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def rehearse(spark: SparkSession, files: Files, options: BulkOptions, *, storm_above: int = STORM) -> DryRun:
    """Return what :func:`bulk` would write, without writing anything.

    Raises:
        Misconfigured, PipelineError: the options or the input are invalid.
    """
    with open_broker(options.address()) as broker, plain_errors():
        plan = _plan(spark, broker, files, options, options.run_id or "dry-run")
        return _dry_run(plan.jobs_at(round(broker.now_ms())), broker, plan.write_options, storm_above=storm_above)


def _dry_run(frame: DataFrame, broker: Broker, options: WriteOptions, *, storm_above: int) -> DryRun:
    """Read all rows and check a sample of them closely.

    Args:
        frame: jobs, as :func:`jobs` makes them.
        storm_above: number of jobs due in one minute above which a warning is raised.
    """
    now_ms = round(broker.now_ms())
    _, layout = broker.read_layout(options.queue)
    kind = options.kind or "python" if layout is None or layouts.is_deleted(layout) else layout["kind"]
    due = _due(frame, now_ms, options)
    by_minute: list[dict[str, Any]] = (
        frame.groupBy(F.floor(due / _MINUTE_MS).cast("long").alias("minute"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_if(due <= now_ms).alias("now"),
            F.count_if(F.col("id").isNull()).alias("without_id"),
        )
        .toArrow()
        .to_pylist()
    )
    minutes = {row["minute"]: row["rows"] for row in by_minute if row["minute"] is not None}
    width, dues = _buckets(minutes)
    busiest = max(minutes.items(), key=lambda pair: (pair[1], -pair[0]), default=(now_ms // _MINUTE_MS, 0))
    size, bad = _sample(frame, options, kind, now_ms)
    return DryRun(
        rows=sum(row["rows"] for row in by_minute),
        without_id=sum(row["without_id"] for row in by_minute),
        without_due=sum(row["rows"] for row in by_minute if row["minute"] is None),
        due_now=sum(row["now"] for row in by_minute),
        dues=dues,
        width_min=width,
        busiest=(busiest[0] * _MINUTE_MS, busiest[1]),
        bytes_per_job=size,
        free=_free(broker, options.max_memory),
        first=frame.limit(_SHOWN).toArrow().to_pylist(),
        bad=bad,
        storm_above=storm_above,
    )


def _due(frame: DataFrame, now_ms: int, options: WriteOptions) -> Any:
    now = F.lit(now_ms).cast("long")
    if "due" in frame.columns:
        due = F.ceil(F.unix_micros("due") / 1000).cast("long")
    else:
        due = F.col("due_ms") if "due_ms" in frame.columns else now
    return F.coalesce(due, now) if options.null_due == NOW else due


def _buckets(minutes: Mapping[int, int]) -> tuple[int, list[tuple[int, int]]]:
    """Return the width in minutes, and the number of jobs due in each span."""
    if not minutes:
        return _WIDTHS_MIN[0], []
    span = max(minutes) - min(minutes) + 1
    width = next((one for one in _WIDTHS_MIN if span <= one * _BUCKETS), _WIDTHS_MIN[-1])
    numbers: dict[int, int] = {}
    for minute, count in minutes.items():
        start = minute - minute % width
        numbers[start] = numbers.get(start, 0) + count
    return width, [(start * _MINUTE_MS, count) for start, count in sorted(numbers.items())]


def _sample(frame: DataFrame, options: WriteOptions, kind: str, now_ms: int) -> tuple[float, list[tuple[str, str]]]:
    """Return the mean size of a job in Redis, and the rows of the sample that are not valid jobs."""
    packer = Packer(options, BulkLoad("dry-run", options.queue, ((0, 1),), now_ms), kind)
    sizes: list[int] = []
    bad: list[tuple[str, str]] = []
    for batch in frame.limit(_SAMPLE).toArrow().to_batches():
        packed = packer.pack(batch)
        ids = batch.column("id")
        bad += [(repr(ids[row].as_py())[:80], reason) for row, reason in sorted(packed.bad.items())]
        sizes += [
            2 * len(ident) + len(body) + KEY_BYTES + sum(map(len, merged)) + PER_JOB
            for ident, _, body, _, merged in packed.entries
        ]
    return (sum(sizes) / len(sizes) if sizes else 0.0), bad


def _free(broker: Broker, max_memory: float) -> int | None:
    """Return how many bytes the jobs may take before a bulk load stops; on a cluster the sum of the masters."""
    room = 0
    for memory in memory_of(broker).values():
        limit = int(int(memory.get("maxmemory", 0)) * (max_memory or 1.0)) or int(memory.get("total_system_memory", 0))
        if not limit:
            return None
        room += max(0, limit - int(memory["used_memory"]))
    return room
