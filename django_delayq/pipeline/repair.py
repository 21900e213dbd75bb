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
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.types import StructType

from ..core import actions
from ..core.bulk import act_in_shard, retried
from ..core.inputs import short
from ..core.records.frames import CHUNK
from ..core.snapshot import PLACES
from .errors import PipelineError
from .jobs import JOBS
from .options import open_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: columns that identify a job for an operation
_NAMING: Final = ("queue", "shard", "state", "id", "key")
_WORD: Final = re.compile(r"\w+")
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
    """Selected jobs. ``frame`` has the columns :data:`_NAMING` and is fixed, whatever happens to the jobs."""

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
    states: Sequence[str] = PLACES,
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


@dataclass(frozen=True, slots=True)
class Verb:
    """Operation on jobs, and the jobs that it applies to."""

    states: tuple[str, ...]
    #: further options that it takes
    takes: tuple[str, ...] = ()
    #: additional condition for a job
    besides: str = "true"


VERBS: Final[Mapping[str, Verb]] = {
    "retry": Verb(("waiting", "morgue"), ("delay_ms", "replace"), "state = 'morgue' or failures > 0"),
    "cancel": Verb(("waiting", "reserved", "gated")),
    "discard": Verb(("morgue",)),
    "reschedule": Verb(("waiting", "gated"), ("delay_ms", "due_ms")),
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
        if self.verb not in VERBS:
            raise PipelineError(f"verb must be one of {', '.join(VERBS)}, got {short(self.verb)}")
        given = [name for name in ("delay_ms", "due_ms") if getattr(self, name) is not None]
        if self.verb == "reschedule" and len(given) != 1:
            raise PipelineError("reschedule needs a time; give either a delay from now or a moment")
        for name in [*given, *(["replace"] if self.replace else [])]:
            if name not in VERBS[self.verb].takes:
                raise PipelineError(f"{self.verb} takes no {name.removesuffix('_ms')}; leave it out")

    def action(self, *, buried: bool) -> actions.Action:
        """Return the operation on jobs by id and key."""
        match self.verb:
            case "retry" if buried:
                return actions.Kick(self.delay_ms or 0, replace=self.replace)
            case "retry":
                return actions.retry_failed(self.delay_ms)
            case "cancel":
                return actions.cancel_selected()
            case "discard":
                return actions.Discard()
        return actions.reschedule_selected(due_ms=self.due_ms, delay_ms=self.delay_ms)


def choose(spark: SparkSession, options: MaintainOptions) -> Selection:
    """Select the jobs without changing them. Times in the condition are UTC unless they say otherwise.

    Raises:
        PipelineError: the condition is invalid; the message says why.
    """
    if not options.where.strip():
        raise PipelineError(
            'which jobs? Give a condition of SQL, like "task = \'shop.remind\' and failures > 3"; "true" means all'
        )
    verb, words = VERBS[options.verb], {word.lower() for word in _WORD.findall(options.where)}
    columns = {*_NAMING, "task", "due", "failures", *words.intersection(JOBS.fieldNames())}
    try:
        jobs = snapshot(spark, options.access, columns, queues=options.queues, states=verb.states)
        frame = fixed(jobs.where(options.where).where(verb.besides))
    except (AnalysisException, ParseException) as error:
        raise PipelineError(
            f"the condition cannot be used: {str(error).strip().splitlines()[0]} "
            f"A job has the columns {', '.join(JOBS.fieldNames())}"
        ) from None
    counted = frame.groupBy("queue", "task", "state").count().orderBy("queue", "task", "state").toArrow()
    groups = tuple(Group(*row.values()) for row in counted.to_pylist())
    shown = frame.drop("args").orderBy("queue", "id").limit(_EXAMPLES).toArrow().to_pylist() if groups else []
    return Selection(frame.select(*_NAMING), sum(group.jobs for group in groups), groups, tuple(shown))


def carry_out(
    selection: Selection, options: MaintainOptions, progress: Callable[[int], object] = lambda seen: None
) -> dict[str, int]:
    """Apply the operation to the selected jobs, chunk by chunk.

    Args:
        progress: called with the number of processed jobs.

    Returns:
        The number of jobs by outcome: retried, live (blocked by a live job), running; cancelled, stopping (it is
            running and will not be retried), ungated; discarded; moved; gone (it has changed since the snapshot, or
            its queue was deleted); unreadable (without a readable key, which `delayq_fsck` can examine).

    Raises:
        QueueUnavailable: Redis cannot be reached. Finished chunks stay done; a repeated call handles the rest.
    """
    counts: Counter[str] = Counter()
    with open_broker(options.access) as broker:
        for (name, shard, buried), jobs in _chunks(selection.frame):
            readable = [(ident, bytes.fromhex(key)) for ident, key in jobs if key is not None and len(key) == 32]
            if len(readable) < len(jobs):
                counts["unreadable"] += len(jobs) - len(readable)
            queue = broker.known_queue(name)
            if queue is None:
                counts["gone"] += len(readable)
            elif readable:
                done = Counter(act_in_shard(queue, shard, readable, options.action(buried=buried)))
                counts.update(retried(done))
            progress(counts.total())
    return {outcome: number for outcome, number in counts.items() if number}


def _chunks(frame: DataFrame) -> Iterator[tuple[tuple[str, int, bool], list[tuple[str, str | None]]]]:
    """Yield ids and keys of the jobs, in chunks of one queue, shard and place (True: the morgue) each."""
    held: dict[tuple[str, int, bool], list[tuple[str, str | None]]] = {}
    for row in frame.toLocalIterator():
        home = (row["queue"], row["shard"], row["state"] == "morgue")
        jobs = held.setdefault(home, [])
        jobs.append((row["id"], row["key"]))
        if len(jobs) == CHUNK:
            yield home, held.pop(home)
    yield from held.items()
