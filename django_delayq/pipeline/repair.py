"""Repair by SQL: retry, cancel, discard and reschedule jobs that a condition selects.

The selection is made on a fixed snapshot and carried out by the core's own verbs in chunks, each job by the key of its
generation. A job that has since run, been replaced or been cancelled is left alone, and so is a new job under the same
id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql.types import StructType

from ..core import actions
from ..core.bulk import act_in_shard, retried
from ..core.errors import InvalidJob
from ..core.inputs import check_choice
from ..core.queue import Queue
from ..core.records.frames import CHUNK
from .errors import PipelineError
from .jobs import JOBS
from .options import open_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..core.broker import Broker
    from ..core.queue import Queue

#: columns that identify a job for an operation
NAMING: Final = ("queue", "shard", "state", "id", "key")
_WORD: Final = re.compile(r"\w+")
_LIVE: Final = ("waiting", "reserved", "gated")
EVERY_STATE: Final = (*_LIVE, "morgue")
_EXAMPLES: Final = 10


@dataclass(frozen=True, slots=True)
class Group:
    """Number of jobs of one task in one state."""

    queue: str
    task: str | None
    state: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected jobs. ``frame`` has the columns :data:`NAMING` and is fixed, whatever happens to the jobs."""

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
    """Return a frame with some columns of the jobs; the queue is read when the frame is computed.

    Args:
        access: options of the format ``delayq`` that address Redis.
        columns: of :data:`~.jobs.JOBS`; fewer columns are read faster.
        queues: empty = all.
        missing_is_empty: treat a missing queue as empty instead of raising an error.
    """
    names = set(columns)
    schema = StructType([field for field in JOBS.fields if field.name in names])
    reader = spark.read.format("delayq").options(**access).schema(schema)
    return reader.options(
        queue=",".join(queues) or "*",
        states=",".join(states),
        missingQueue="empty" if missing_is_empty else "fail",
    ).load()


def fixed(frame: DataFrame) -> DataFrame:
    """Compute a frame now and return its fixed rows.

    If rows are lost with a machine, later computations fail, because a second read would return other rows.
    """
    return frame.localCheckpoint()


def columns_in(sql: str) -> set[str]:
    """Return the columns of jobs that a condition may refer to."""
    words = {word.lower() for word in _WORD.findall(sql)}
    return {name for name in JOBS.fieldNames() if name in words}


def chosen(frame: DataFrame) -> Selection:
    """Return the selection of all jobs of a fixed frame with the columns :data:`NAMING` and task."""
    counted = frame.groupBy("queue", "task", "state").count().orderBy("queue", "task", "state").toArrow()
    groups = tuple(Group(*row.values()) for row in counted.to_pylist())
    shown = frame.drop("args").orderBy("queue", "id").limit(_EXAMPLES).toArrow().to_pylist() if groups else []
    return Selection(frame.select(*NAMING), sum(group.jobs for group in groups), groups, tuple(shown))


def _sentence(error: PySparkException) -> str:
    """Return Spark's error about a condition as one sentence."""
    lines = [line.strip() for line in str(error).splitlines()]
    first = next((line for line in lines if line), type(error).__name__)
    return re.sub(r"\s*(SQLSTATE: \w+|; line \d+ pos \d+;?)", "", first).rstrip(" .;")


# -- operations on selected jobs -------------------------------------------------------------------------------------

#: (queue, shard, True for the morgue)
Home = tuple[str, int, bool]
#: ids and keys of jobs
Names = list[tuple[str, bytes]]


def _chunks(frame: DataFrame) -> Iterator[tuple[Home, Names, int]]:
    """Yield the jobs of a frame in chunks of one home each, with the number of rows that have no readable key."""
    held: dict[Home, Names] = {}
    for row in frame.select(*NAMING).toLocalIterator():
        home = (row["queue"], row["shard"], row["state"] == "morgue")
        names = held.setdefault(home, [])
        if row["key"] is None or len(row["key"]) != 32:
            yield home, [], 1
            continue
        names.append((row["id"], bytes.fromhex(row["key"])))
        if len(names) == CHUNK:
            yield home, names, 0
            held[home] = []
    for home, names in held.items():
        if names:
            yield home, names, 0


def act_on(
    broker: Broker,
    frame: DataFrame,
    act: Callable[[Queue, Home, Names], Mapping[str, int]],
    *,
    total: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Apply an operation to the jobs of a frame, chunk by chunk.

    Args:
        frame: with the columns :data:`NAMING`.
        act: the operation on jobs of one home in its queue; returns the number of jobs by outcome.
        progress: called with the number of processed jobs and ``total``.

    Returns:
        The number of jobs by outcome; *gone* are those of deleted queues, *unreadable* those without a readable key,
            which `delayq_fsck` can examine.
    """
    counts: Counter[str] = Counter()
    seen = 0
    for home, names, unreadable in _chunks(frame):
        if names:
            queue = broker.known_queue(home[0])
            counts.update({"gone": len(names)} if queue is None else act(queue, home, names))
        if unreadable:
            counts["unreadable"] += unreadable
        seen += len(names) + unreadable
        if progress:
            progress(seen, max(seen, total))
    return dict(counts)


#: verb -> the states of jobs that it applies to
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "retry": ("waiting", "morgue"),
    "cancel": ("waiting", "reserved", "gated"),
    "discard": ("morgue",),
    "reschedule": ("waiting", "gated"),
}
VERBS: Final = tuple(STATES)
#: additional condition for a job
_BESIDES: Final[Mapping[str, str]] = {"retry": "state = 'morgue' or failures > 0"}
#: descriptions of the jobs that a verb applies to
FOR: Final[Mapping[str, str]] = {
    "retry": "failed jobs that wait, and jobs in the morgue",
    "cancel": "waiting, running and gated jobs",
    "discard": "jobs in the morgue",
    "reschedule": "waiting and gated jobs",
}


@dataclass(frozen=True, slots=True)
class MaintainOptions:
    """Operation to carry out, and the selection of its jobs.

    ``access``: the options of the format ``delayq`` that address Redis. ``where``: a condition of Spark SQL over its
    columns. ``queues``: empty = all. ``delay_ms`` from now, or ``due_ms`` (Unix ms): required for reschedule; retry
    accepts only a delay. ``replace``: jobs of the morgue replace live plain ones of the same ids.
    """

    verb: str
    where: str
    access: Mapping[str, str]
    queues: tuple[str, ...] = ()
    delay_ms: int | None = None
    due_ms: int | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        try:
            check_choice("verb", self.verb, VERBS)
        except InvalidJob as error:
            raise PipelineError(str(error)) from None
        given = [name for name in ("delay_ms", "due_ms") if getattr(self, name) is not None]
        if self.verb == "reschedule" and len(given) != 1:
            raise PipelineError("reschedule needs a time; give either a delay from now or a moment")
        if self.verb == "retry" and "due_ms" in given:
            raise PipelineError("retry takes a delay and no moment; retry the jobs, then reschedule them")
        if self.verb in ("cancel", "discard") and given:
            raise PipelineError(f"{self.verb} takes no time; leave the delay or the moment out")
        if self.replace and self.verb != "retry":
            raise PipelineError("replace applies to retried jobs of the morgue only; leave it out")


def choose(spark: SparkSession, options: MaintainOptions) -> Selection:
    """Select the jobs without changing them. Times in the condition are UTC unless they say otherwise.

    Raises:
        PipelineError: the condition is invalid; the message says why.
    """
    if not options.where.strip():
        raise PipelineError(
            'which jobs? Give a condition of SQL, like "task = \'shop.remind\' and failures > 3"; "true" means all'
        )
    besides = _BESIDES.get(options.verb, "true")
    columns = {*NAMING, "task", "due", "failures", *columns_in(options.where), *columns_in(besides)}
    try:
        jobs = snapshot(spark, options.access, columns, queues=options.queues, states=STATES[options.verb])
        return chosen(fixed(jobs.where(options.where).where(besides)))
    except (AnalysisException, ParseException) as error:
        raise PipelineError(
            f"the condition cannot be used: {_sentence(error)}. A job has the columns {', '.join(JOBS.fieldNames())}"
        ) from None


def carry_out(
    frame: DataFrame,
    options: MaintainOptions,
    *,
    total: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Apply the operation to the selected jobs.

    Args:
        frame: the frame of a :class:`~.selection.Selection`.
        total: their number, for ``progress``.
        progress: called with the number of processed jobs and the total.

    Returns:
        The number of jobs by outcome: retried, live (blocked by a live job), running; cancelled, stopping (it is
            running and will not be retried), ungated; discarded; moved; gone (it has changed since the snapshot);
            unreadable.

    Raises:
        QueueUnavailable: Redis cannot be reached. Finished chunks stay done; a repeated call handles the rest.
    """
    with open_broker(options.access) as broker:
        act = partial(_act, options)
        return act_on(broker, frame, act, total=total, progress=progress)


def _act(options: MaintainOptions, queue: Queue, home: Home, names: Names) -> Mapping[str, int]:
    _, number, buried = home
    match options.verb:
        case "retry":
            action = (
                actions.Kick(options.delay_ms or 0, replace=options.replace)
                if buried
                else actions.retry_failed(options.delay_ms)
            )
        case "cancel":
            action = actions.cancel_selected()
        case "discard":
            action = actions.Discard()
        case _:
            action = actions.reschedule_selected(due_ms=options.due_ms, delay_ms=options.delay_ms)
    return retried(Counter(act_in_shard(queue, number, names, action)))
