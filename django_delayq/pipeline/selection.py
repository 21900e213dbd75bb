"""Jobs chosen by SQL, on a snapshot of the queue that does not change any more while one works with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql.types import StructType

from .errors import PipelineError
from .job_schema import JOBS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: what names a job: the columns by which something is done to it
NAMING: Final = ("queue", "shard", "state", "id", "key")
_WORD: Final = re.compile(r"\w+")
_LIVE: Final = ("waiting", "reserved", "gated")
EVERY_STATE: Final = (*_LIVE, "morgue")


@dataclass(frozen=True, slots=True)
class Group:
    """So many jobs of one task in one state."""

    queue: str
    task: str | None
    state: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs that were chosen. ``frame`` has the columns :data:`NAMING` and is fixed, whatever becomes of the jobs."""

    frame: DataFrame
    total: int
    groups: tuple[Group, ...]
    #: the first of them, as rows of the columns that were read
    examples: tuple[Mapping[str, Any], ...]


def snapshot(
    spark: SparkSession,
    access: Mapping[str, str],
    columns: Iterable[str],
    *,
    queues: Sequence[str] = (),
    states: Sequence[str] = EVERY_STATE,
    missing_is_empty: bool = False,
) -> DataFrame:
    """Some columns of the jobs as they are when it is read, which is later.

    Args:
        access: options of the format ``delayq`` that say where Redis is.
        columns: of :data:`~.job_schema.JOBS`; the fewer, the quicker.
        queues: none = all.
        missing_is_empty: a queue that is not there has no jobs, and is no error.
    """
    wanted = set(columns)
    schema = StructType([field for field in JOBS.fields if field.name in wanted])
    reader = spark.read.format("delayq").options(**access).schema(schema)
    return reader.options(
        queue=",".join(queues) or "*",
        states=",".join(states),
        missingQueue="empty" if missing_is_empty else "fail",
    ).load()


def fixed(frame: DataFrame) -> DataFrame:
    """The rows of a frame as they are now. Where some of them are lost with a machine, what needs them fails: read
    once more they would be others."""
    return frame.localCheckpoint()


def columns_in(sql: str) -> set[str]:
    """Columns of jobs that a condition may speak of."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return {name for name in JOBS.fieldNames() if name in words}


def select(
    spark: SparkSession,
    access: Mapping[str, str],
    where: str,
    *,
    queues: Sequence[str] = (),
    states: Sequence[str] = EVERY_STATE,
    besides: str = "true",
    examples: int = 10,
) -> Selection:
    """The jobs for which a condition of Spark SQL is true. Times in it are UTC unless they say otherwise.

    Args:
        where: over the columns of :data:`~.job_schema.JOBS`.
        besides: another condition that has to be true.
        examples: how many of them are shown.

    Raises:
        PipelineError: the condition cannot be; the text says why.
    """
    if not where.strip():
        raise PipelineError(
            'which jobs? Give a condition of SQL, like "task = \'shop.remind\' and failures > 3"; "true" means all'
        )
    columns = {*NAMING, "task", "due", "failures", *columns_in(where), *columns_in(besides)}
    with clear_errors():
        jobs = snapshot(spark, access, columns, queues=queues, states=states)
        return chosen(fixed(jobs.where(where).where(besides)), examples)


def chosen(frame: DataFrame, examples: int = 10) -> Selection:
    """The selection of all jobs of a frame, which is fixed and has the task beside :data:`NAMING`."""
    counted = frame.groupBy("queue", "task", "state").count().orderBy("queue", "task", "state").toArrow()
    groups = tuple(Group(*row.values()) for row in counted.to_pylist())
    shown = frame.drop("args").orderBy("queue", "id").limit(examples).toArrow().to_pylist() if groups else []
    return Selection(frame.select(*NAMING), sum(group.jobs for group in groups), groups, tuple(shown))


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turns what Spark says of a condition into one sentence."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise PipelineError(
            f"the condition cannot be used: {_sentence(error)}. A job has the columns {', '.join(JOBS.fieldNames())}"
        ) from None


def _sentence(error: PySparkException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    first = next((line for line in lines if line), type(error).__name__)
    return re.sub(r"\s*(SQLSTATE: \w+|; line \d+ pos \d+;?)", "", first).rstrip(" .;")


# -- something is done to them -----------------------------------------------------------------------------------------

#: (queue, shard, whether it lies in the morgue)
Home = tuple[str, int, bool]
#: id and key of jobs
Names = list[tuple[str, bytes]]


def chunks(frame: DataFrame, most: int) -> Iterator[tuple[Home, Names, int]]:
    """The jobs of a frame in chunks of one home each; and how many of its rows name none, because nobody can read them.

    Args:
        frame: with the columns :data:`NAMING`.
        most: jobs of a chunk.
    """
    held: dict[Home, Names] = {}
    for row in frame.select(*NAMING).toLocalIterator():
        home = (row["queue"], row["shard"], row["state"] == "morgue")
        names = held.setdefault(home, [])
        if row["key"] is None or len(row["key"]) != 32:
            yield home, [], 1
            continue
        names.append((row["id"], bytes.fromhex(row["key"])))
        if len(names) == most:
            yield home, names, 0
            held[home] = []
    for home, names in held.items():
        if names:
            yield home, names, 0


def act_on(
    frame: DataFrame,
    act: Callable[[Home, Names], Mapping[str, int]],
    *,
    most: int = 250,
    total: int = 0,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Does something to the jobs of a frame, a chunk after the other, until all are done or ``stop()`` says so.

    Args:
        act: what is done to jobs of one home; answers how many came to what.
        progress: told how many were looked at, and ``total``.

    Returns:
        How many came to what; *unreadable* are those whose key cannot be read: `delayq_fsck` knows more.
    """
    counts: dict[str, int] = {}
    seen = 0
    for home, names, unreadable in chunks(frame, most):
        if stop():
            break
        told = dict(act(home, names)) if names else {}
        if unreadable:
            told["unreadable"] = told.get("unreadable", 0) + unreadable
        for outcome, n in told.items():
            counts[outcome] = counts.get(outcome, 0) + n
        seen += len(names) + unreadable
        if progress:
            progress(seen, max(seen, total))
    return counts
