"""Bulk loads: create jobs from files, in a write that can be resumed.

Templates such as ``sms:{pk}:{day}`` and ``+2h`` become columns of Spark.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import functions as F

from ..core import layouts, loads
from ..core.broker import Broker
from ..core.errors import Misconfigured
from ..core.inputs import CONTROL, short, suggest
from ..core.job import KEY_BYTES
from ..core.loads import BulkLoad, memory_of
from ..repair.rows import due_ms_of, id_parts, names_in, unsure, wrong_due
from .columns import Packer
from .errors import plain_errors
from .inputs import PART_BYTES, Files, in_parts, least_parts
from .options import DEFAULT_PREFIX, address_of, open_broker
from .schemas import column_of
from .session import activate
from .write_options import WriteOptions, check_schema
from .writer import check_redis, open_run, quarantined

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: bytes that Redis needs for a waiting job in addition to twice its id and once its body
PER_JOB: Final = 110
#: number of jobs due within one minute above which a warning is raised
STORM: Final = 60_000
_SAMPLE: Final = 1_000
_SHOWN: Final = 5
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
    #: jobs per second
    rate: float | None = None
    #: folder for rows that are not valid jobs; None = the first of them aborts the write
    quarantine: str | None = None
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
            "source": json.dumps(dict(source)),
            "close": "false",
            "rateLimit": self.rate,
            "quarantine": self.quarantine,
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


# -- columns of jobs ---------------------------------------------------------------------------------------------------
#: types with exactly one text form per value
_SURE: Final = ("string", "tinyint", "smallint", "int", "bigint", "boolean", "date")
_MOST_ID: Final = 255


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


def due_column(frame: DataFrame, due: str | None, opened_ms: int) -> Column | None:
    """Return the column ``due_ms``, Unix ms rounded up, so that no job runs early; None = due at once.

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
    moment = F.col(quoted(due))
    if kind in ("bigint", "int"):
        return moment.cast("long").alias("due_ms")
    if kind == "string":
        # A cast would read a text without a zone in that of the session, which may be the user's.
        text = F.to_json(F.struct(moment.alias("due")))
        moment = F.from_json(text, "due timestamp", {"timeZone": "UTC"})["due"]
    elif kind != "timestamp":
        raise wrong_due(due, kind)
    return F.ceil(F.unix_micros(moment) / 1000).alias("due_ms")


def fault_of(ident: Column, due_ms: Column | None, last_ms: int) -> Column:
    """Return why a row would be refused, as far as its id and its due time show; null if it may be a valid job."""
    size = F.octet_length(ident)
    rules = [
        (ident.isNull(), "id is null, because a part of it is"),
        ((size == 0) | (size > _MOST_ID), f"id must be 1 to {_MOST_ID} bytes of UTF-8"),
        (F.rlike(ident, F.lit(CONTROL)), "id has control characters in it"),
    ]
    if due_ms is not None:
        rules += [
            (due_ms.isNull(), "due is null"),
            (due_ms < 0, "due is before 1970"),
            (due_ms > last_ms, "due is more than ten years ahead, or later than can be stored"),
        ]
    return F.coalesce(*(F.when(wrong, F.lit(reason)) for wrong, reason in rules))


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
        BulkLoadDiffers: the bulk load was started with another input or other options; the message names them.
    """
    run_id = options.run_id or uuid.uuid4().hex
    began = time.monotonic()
    with open_broker(options.address()) as broker:
        with plain_errors():
            jobs_at, write_options = _plan(spark, broker, files, options, run_id)
            run = open_run(broker, run_id, write_options, write_options.described(jobs_at(0).schema))
        was_over, before = run.closed, loads.progress(broker, run).total()
        if not was_over:
            with plain_errors(f". Bulk load {run_id} is open: repeat the call with run id {run_id!r} to resume it"):
                frame = jobs_at(run.opened_ms)
                total = frame.count() if total is None else total
                settings = options.format_options(run_id, write_options.source or {})
                activate(frame.sparkSession)  # any thread may call this
                with _reporting(broker, run, total, watch):
                    frame.write.format("delayq").options(**settings).mode("append").save()
                activate(spark)
        run = loads.close_load(broker, run)
        counts = loads.progress(broker, run)
    bad = quarantined(options.quarantine, run_id).count_rows() if options.quarantine else 0
    return BulkResult(run_id, counts.total() + bad, dict(counts), bad, time.monotonic() - began, was_over, before)


def closed_result(options: BulkOptions) -> BulkResult | None:
    """Return the result of a bulk load that is complete; None for another one."""
    with open_broker(options.address()) as broker:
        load = loads.read_load(broker, options.run_id or "")
        if load is None or not load.closed:
            return None
        counts = loads.progress(broker, load)
    return BulkResult(load.id, counts.total(), dict(counts), 0, 0.0, True, counts.total())


def _plan(
    spark: SparkSession, broker: Broker, files: Files, options: BulkOptions, run_id: str
) -> tuple[Callable[[int], DataFrame], WriteOptions]:
    """Return the jobs of a bulk load that is opened at a moment, and the options of their write, both checked."""
    load = loads.read_load(broker, run_id)
    how = {"part_bytes": str(PART_BYTES), "least_parts": str(least_parts(spark))}
    if load is not None:  # another number of cores would split the files differently
        how |= {name: value for name, value in load.source if name in how}
    frame = files.read(in_parts(spark, how))
    words = json.dumps([getattr(options, name) for name in MAPPING])
    identity = {**files.fingerprint(spark, frame), **how, "words": words}
    write_options = WriteOptions.parse(options.format_options(run_id, identity))
    check_schema(jobs(frame, options, 0).schema, write_options)
    check_redis(broker, write_options)
    return partial(jobs, frame, options), write_options


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
    #: rows that are already due
    due_now: int
    #: number of rows that are due in each hour, if any, by its start
    dues: Sequence[tuple[int, int]]
    #: the minute with the most due jobs, and their number
    busiest_minute: tuple[int, int]
    bytes_per_job: int
    #: estimated memory in Redis for all jobs
    bytes: int
    #: free memory of Redis; None = unknown
    free_bytes: int | None
    #: number of rows by the reason for which their ids or due times are invalid
    faults: Mapping[str, int]
    #: the first jobs, and (id, reason) of those of the sample that are invalid
    first: Sequence[Mapping[str, Any]]
    bad: Sequence[tuple[str, str]]

    @property
    def dangers(self) -> list[str]:
        """Warnings about overloading Redis or the workers."""
        warnings = []
        if self.free_bytes is not None and self.bytes > self.free_bytes:
            warnings.append(
                f"the jobs take about {self.bytes / 1e6:,.1f} MB, and Redis has {self.free_bytes / 1e6:,.1f} MB left: "
                "give it more memory, or write them in parts"
            )
        if self.busiest_minute[1] > STORM:
            warnings.append(
                f"{self.busiest_minute[1]:,} jobs fall due within one minute, more than {STORM:,}: can the workers do "
                "that? Spread their due times"
            )
        return warnings

    @property
    def warnings(self) -> list[str]:
        """All warnings: dangers, then faulty rows, which a quarantine would receive."""
        warnings = [*self.dangers, *(f"{rows:,} rows: {fault}" for fault, rows in self.faults.items())]
        if self.bad:
            ident, reason = self.bad[0]
            warnings.append(f"{len(self.bad)} of the first {_SAMPLE:,} rows are no jobs; {ident}: {reason}")
        return warnings


def rehearse(spark: SparkSession, files: Files, options: BulkOptions) -> DryRun:
    """Return what :func:`bulk` would write, without writing anything: all rows are read, and a sample is encoded.

    Raises:
        Misconfigured, PipelineError: the options or the input are invalid.
    """
    with open_broker(options.address()) as broker, plain_errors():
        jobs_at, write_options = _plan(spark, broker, files, options, options.run_id or "dry-run")
        now_ms = round(broker.now_ms())
        frame = jobs_at(now_ms)
        due = F.col("due_ms") if "due_ms" in frame.columns else F.lit(now_ms)
        minute = F.floor(due / _MINUTE_MS).cast("long")
        fault = fault_of(F.col("id"), due, write_options.last_ms(now_ms))
        grouped = frame.groupBy(minute.alias("minute"), fault.alias("fault"), (due <= now_ms).alias("now")).count()
        minutes, faults, due_now = Counter[int](), Counter[str](), 0
        for row in grouped.toArrow().to_pylist():
            if row["fault"] is not None:
                faults[row["fault"]] += row["count"]
                continue
            minutes[row["minute"]] += row["count"]
            due_now += row["count"] * row["now"]
        size, bad = _sample(frame, write_options, _kind_of(broker, write_options), now_ms)
        hours = Counter[int]()
        for each, count in minutes.items():
            hours[each // 60] += count
        busiest = max(minutes.items(), key=lambda pair: (pair[1], -pair[0]), default=(now_ms // _MINUTE_MS, 0))
        return DryRun(
            rows=minutes.total() + faults.total(),
            due_now=due_now,
            dues=[(hour * 60 * _MINUTE_MS, count) for hour, count in sorted(hours.items())],
            busiest_minute=(busiest[0] * _MINUTE_MS, busiest[1]),
            bytes_per_job=round(size),
            bytes=round(size * minutes.total()),
            free_bytes=_free(broker, write_options.max_memory),
            faults=dict(faults),
            first=frame.limit(_SHOWN).toArrow().to_pylist(),
            bad=bad,
        )


def _kind_of(broker: Broker, options: WriteOptions) -> str:
    _, layout = broker.read_layout(options.queue)
    return options.kind or "python" if layout is None or layouts.is_deleted(layout) else layout["kind"]


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
