"""The busiest stretch of a task's work, from the history's folder, in pieces of seconds. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from django_delayq.history import histograms

#: pieces of a chart, at most, and the seconds that one may have
MOST = 120
LENGTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400)
COLUMNS = ("ts", "outcome", "lateness_ms")
#: a stretch of work ends where nothing happens for so many seconds
PAUSE = 60


@dataclass(frozen=True)
class Pieces:
    """What happened in each of them.

    Attributes:
        seconds: the length of one.
        good, bad: runs that succeeded, and that did not.
        p50, p99: of the lateness, ms; None where nothing began.
        lateness: a histogram of each, as the history's tables have them.
    """

    seconds: int
    begins: Sequence[datetime]
    good: Sequence[int]
    bad: Sequence[int]
    p50: Sequence[float | None]
    p99: Sequence[float | None]
    lateness: Sequence[Sequence[int]]

    @property
    def highest(self) -> int:
        """The place of a histogram in which the latest run lies."""
        used = [place for one in self.lateness for place, count in enumerate(one) if count]
        return max(used, default=0)


def read(root: Path, queue: str, task: str) -> Pieces | None:
    """The stretch with the most attempts of a task among all that the history has; None if there are none.

    Args:
        root: ``DELAYQ["PIPELINE"]["root"]``, a folder with plain Parquet.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    files = sorted(map(str, (root / "attempts").glob("day=*/*.parquet")))
    if not files:
        return None
    wanted = (pc.field("queue") == queue) & (pc.field("task") == task)
    attempts = ds.dataset(files).to_table(columns=list(COLUMNS), filter=wanted)
    return _divide(attempts) if attempts.num_rows else None


def _divide(attempts: Any) -> Pieces:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    at = attempts["ts"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() // 1_000_000
    order = np.argsort(at)
    edges = [0, *(np.flatnonzero(np.diff(at[order]) > PAUSE) + 1).tolist(), len(at)]
    low, high = max(pairwise(edges), key=lambda one: one[1] - one[0])
    attempts, at = attempts.take(order[low:high]), at[order[low:high]]
    first, last = int(at[0]), int(at[-1])
    step = next((length for length in LENGTHS if (last - first) // length < MOST), LENGTHS[-1])
    first -= first % step
    slots = (last - first) // step + 1
    place = (at - first) // step
    good = pc.equal(attempts["outcome"], "succeeded").to_numpy()
    begun = pc.is_valid(attempts["lateness_ms"]).to_numpy()
    late = pc.fill_null(attempts["lateness_ms"], 0).to_numpy()
    # the bucket of a length is how many bits it has
    bucket = np.minimum(np.ceil(np.log2(late + 1)).astype("int64"), histograms.BUCKETS - 1)
    counted = np.bincount(place[begun] * histograms.BUCKETS + bucket[begun], minlength=slots * histograms.BUCKETS)
    middle, high = (_percentiles(np, place[begun], late[begun], slots, percent) for percent in (50, 99))
    return Pieces(
        step,
        [datetime.fromtimestamp(first + step * number, UTC) for number in range(slots)],
        np.bincount(place[good], minlength=slots).tolist(),
        np.bincount(place[~good], minlength=slots).tolist(),
        middle,
        high,
        counted.reshape(slots, histograms.BUCKETS).tolist(),
    )


def _percentiles(np: Any, place: Any, late: Any, slots: int, percent: int) -> list[float | None]:
    order = np.lexsort((late, place))
    late, edges = late[order], np.searchsorted(place[order], range(slots + 1))
    return [
        float(late[low + (high - low - 1) * percent // 100]) if high > low else None for low, high in pairwise(edges)
    ]
