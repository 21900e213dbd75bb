"""Dry run of a bulk load: reports what would be written without writing or creating anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from ..core import layouts
from ..core.broker import Broker
from ..core.job import KEY_BYTES
from ..core.loads import BulkLoad, memory_of
from .columns import Packer
from .write_options import NOW, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: bytes that Redis needs for a waiting job in addition to twice its id and once its body
PER_JOB: Final = 110
#: number of jobs due within one minute above which a warning is raised
STORM: Final = 60_000
_SAMPLE: Final = 1_000
_SHOWN: Final = 5
_BUCKETS: Final = 48
_WIDTHS_MIN: Final = (1, 5, 15, 60, 240, 1_440, 10_080, 43_200)
_MINUTE_MS: Final = 60_000


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


def dry_run(frame: DataFrame, broker: Broker, options: WriteOptions, *, storm_above: int) -> DryRun:
    """Read all rows and check a sample of them closely.

    Args:
        frame: jobs, as :func:`~.bulk.jobs` makes them.
        storm_above: number of jobs due in one minute above which a warning is raised.
    """
    now_ms = round(broker.now_ms())
    _, layout = broker.read_layout(options.queue or "")
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
    packer = Packer(options, BulkLoad("dry-run", options.queue or "", ((0, 1),), now_ms), kind)
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
