"""Busiest period of a task, from the history's table of attempts, in slots of seconds. Needs deltalake and pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from django_delayq.history import histograms

#: maximum number of slots in a chart, and their possible lengths in seconds
MOST = 120
LENGTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400)
COLUMNS = ("ts", "outcome", "lateness_ms")
#: seconds without an attempt that end a period of work
PAUSE = 60


@dataclass(frozen=True)
class Pieces:
    """Metrics by slot.

    Attributes:
        seconds: length of a slot.
        good, bad: attempts that succeeded, and that did not.
        p50, p99: of the lateness, ms; None where no attempt started.
        lateness: a histogram per slot, as in the history's tables.
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
        """Index of the histogram bucket that holds the latest attempt."""
        used = [place for one in self.lateness for place, count in enumerate(one) if count]
        return max(used, default=0)


def read(root: Path, queue: str, task: str) -> Pieces | None:
    """Return the period with the most attempts of a task in the history; None if there are none.

    Args:
        root: ``DELAYQ["PIPELINE"]["root"]``.
    """
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(root / "attempts")):
        return None
    wanted = (pc.field("queue") == queue) & (pc.field("task") == task)
    attempts = DeltaTable(root / "attempts").to_pyarrow_dataset().to_table(columns=list(COLUMNS), filter=wanted)
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
    # the bucket of a duration is its number of bits
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
