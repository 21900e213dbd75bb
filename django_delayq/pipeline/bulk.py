"""Scheduling in bulk: from files, a table or any frame of Spark to jobs, in a run that can be gone on with."""

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
from ..core.sending import runs
from ..core.sending.runs import CHUNK, Run
from .errors import PipelineError, RunDiffers
from .expressions import jobs, names_in
from .inputs import PART_BYTES, PART_NAMES, Files, Table, contents, in_order, in_parts, least_parts, without_user
from .redis_door import DEFAULT_PREFIX, open_broker
from .session import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .dry_run import DryRun
    from .write_options import WriteOptions

#: told now and then how many rows came to what, and how many there are in all, if that is known
Watch: TypeAlias = "Callable[[Mapping[str, int], int | None], None]"
#: files, a table, or a frame of which every computation gives the same rows
Source: TypeAlias = "DataFrame | Files | Table"
#: seconds between two looks
LOOK: Final = 0.5
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(.*)$", re.MULTILINE)
_OURS: Final = re.compile(
    r"(?:^|: )(?:[\w.]*\.)?(PipelineError|RunDiffers|Misconfigured|InvalidJob): (.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """What jobs are made of the rows, and where they go.

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
    #: a column
    priority: str | None = None
    #: where Redis is: a URL, or JSON; or the environment variable that holds it
    redis: str | None = None
    redis_env: str | None = None
    prefix: str = DEFAULT_PREFIX
    #: None = a new one
    run_id: str | None = None
    #: jobs in a call of Redis
    chunk: int = CHUNK
    #: tasks of Spark at least (files), or exactly (other inputs); None = as many as there are cores
    parts: int | None = None
    #: bytes of a file that one task reads at most
    part_bytes: int = PART_BYTES
    #: jobs a second
    rate: float | None = None
    #: a folder for rows that are no jobs; None = the first of them ends the write
    quarantine: str | None = None
    close: bool = True
    #: nobody will go on with this run, so nothing is kept by which its rows are known again
    once: bool = False
    more: Mapping[str, str] = field(default_factory=dict)

    def door(self) -> dict[str, str]:
        """The options that lead to Redis."""
        said = {"redis": self.redis, "redisEnv": self.redis_env, "prefix": self.prefix}
        return {name: value for name, value in said.items() if value}

    def of_format(self, run_id: str, source: Mapping[str, str]) -> dict[str, str]:
        """The options of the format ``delayq``."""
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
    """What came of it, as Redis counted it: each row once, however often it was sent."""

    run_id: str
    #: rows of the input that came to something
    rows: int
    #: created, ignored, replaced, …: how many rows came to what
    counts: Mapping[str, int]
    #: rows that were put aside
    bad: int
    seconds: float
    #: the run was over before: nothing was written now
    was_over: bool = False
    #: rows that were in before, from an earlier try of this run
    before: int = 0

    @property
    def created(self) -> int:
        """Jobs that are new."""
        return self.counts.get("created", 0)

    @property
    def known(self) -> int:
        """Rows that made no new job."""
        return self.rows - self.bad - self.created

    @property
    def rows_per_second(self) -> float:
        """Of the rows of this try."""
        return (self.rows - self.before) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """An input that is ready to be written."""

    frame: DataFrame
    run: Run
    source: Mapping[str, str]
    #: how files are read in parts; None = it is in order already
    parts: Mapping[str, str] | None = None


def bulk(
    spark: SparkSession, source: Source, options: BulkOptions, *, total: int | None = None, watch: Watch | None = None
) -> BulkResult:
    """Writes a job for each row.

    The same call with the same ``run_id`` goes on where it broke off: what is in is skipped, also when its jobs have
    run and are gone meanwhile. A run that is over is left alone.

    Args:
        source: files, a table, or a frame of which every computation gives the same rows.
        options: see there.
        total: rows of the input, if somebody knows; files are counted.
        watch: called twice a second by a thread.

    Rows that are not of files are read twice: first their contents are summed up, by which they are known again.

    Raises:
        Misconfigured, PipelineError: what cannot be, or what went wrong; the text says how to go on.
        RunDiffers: the run was begun with another input, or with other options; the text names them.
    """
    run_id = options.run_id or uuid.uuid4().hex
    began = time.monotonic()
    with open_broker(options.door()) as broker:
        with _clear_errors():
            prepared = prepare(spark, broker, source, options, run_id)
        before = sum(runs.progress(broker, prepared.run).values())
        if not prepared.run.closed:
            with in_parts(spark, prepared.parts) if prepared.parts else nullcontext(), _clear_errors(run_id):
                if total is None and isinstance(source, Files):
                    total = prepared.frame.count()
                with _watching(broker, prepared.run, total, watch):
                    _write(prepared, options, run_id)
        run = runs.close_run(broker, prepared.run) if options.close else prepared.run
        counts = runs.progress(broker, run)
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
    """An input and what is to be made of it, before anything is written."""

    made: Callable[[int], DataFrame]
    wanted: WriteOptions
    #: what the run remembers of the input
    told: dict[str, str]
    parts: dict[str, str]

    @property
    def source(self) -> dict[str, str]:
        """What the run remembers of everything."""
        return {"columns": self.made(0).schema.simpleString(), **self.wanted.told(), **self.told}


def _plan(
    spark: SparkSession, broker: Broker, source: Source, options: BulkOptions, run_id: str, *, sum_up: bool = False
) -> _Plan:
    from .write_options import WriteOptions, check_schema
    from .writer import check_redis

    known = runs.read_run(broker, run_id)
    before = dict(known.source) if known is not None else {}
    if isinstance(source, Table) and not source.columns:
        source = replace(source, columns=_needed(options))
    frame = source.read(spark) if isinstance(source, Files | Table) else source
    parts: dict[str, str] = {}
    if isinstance(source, Files):
        parts = {"part_bytes": str(options.part_bytes), "least_parts": str(options.parts or least_parts(spark))}
        # Another number of cores would cut the files elsewhere. Only who asks for it by name is told that it differs.
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
        # Of a run that is over nothing is written, so it does not matter what its rows are now.
        over = known is not None and known.closed
        told |= {name: before[name] for name in ("rows",) if name in before} if over else {"rows": contents(made(0))}
    return _Plan(made, wanted, told, parts)


def _needed(options: BulkOptions) -> tuple[str, ...]:
    """The columns that are read of a table: no others."""
    single = [options.payload, options.score, options.priority]
    if options.due is not None and options.due.isidentifier():
        single.append(options.due)
    named = [*names_in(options.id), *options.args, *options.kwargs, *options.context, *filter(None, single)]
    return tuple(dict.fromkeys(named))


def prepare(spark: SparkSession, broker: Broker, source: Source, options: BulkOptions, run_id: str) -> Prepared:
    """Opens the run, or finds it again, and makes jobs of the input.

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
    """What :func:`bulk` would write; nothing is written.

    Raises:
        Misconfigured, PipelineError: what cannot be.
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
    activate(prepared.frame.sparkSession)  # this may be any thread
    prepared.frame.write.format("delayq").options(**said).mode("append").save()


@contextmanager
def _clear_errors(run_id: str | None = None) -> Iterator[None]:
    """Turns what Spark says into a sentence; with a run id, of a run that is open then."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _told(str(error), run_id) from error


def _told(text: str, run_id: str | None) -> DelayQError:
    """What we said in one of Spark's tasks; or what Spark said, without the stacks of Java."""
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
def _watching(broker: Broker, run: Run, total: int | None, watch: Watch | None) -> Iterator[None]:
    """Tells ``watch`` how far the run is while the block lasts, and at its end."""
    if watch is None:
        yield
        return
    done = threading.Event()

    def tell() -> None:
        with suppress(Exception):  # counters that cannot be read for a moment stop no run
            counts: Counter[str] = runs.progress(broker, run)
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
