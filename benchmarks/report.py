"""Result of a benchmark: a table, one JSON line, and the bars that it was measured against."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """Value with a required minimum, or maximum with ``at_most``."""

    name: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        verdict = "met" if self.met else f"MISSED by {abs(self.value - self.bar) / self.bar:.1%}"
        return f"{self.name}: {number(self.value)} (bar {sign} {number(self.bar)}) {verdict}"


@dataclass(slots=True)
class Report:
    """Outcome of one benchmark."""

    bench: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return title, table, notes and bars."""
        parts = [f"== {self.bench}: {self.title}", table(self.columns, self.rows)]
        return "\n".join([*parts, *(f"   {note}" for note in self.notes), *(f"-> {bar}" for bar in self.bars)])

    def line(self, extra: Mapping[str, Any] | None = None) -> str:
        """Return one JSON object."""
        bars = [{**asdict(bar), "met": bar.met} for bar in self.bars]
        return json.dumps(
            {"bench": self.bench, "figures": self.figures, "bars": bars, "machine": machine(), **(extra or {})}
        )


def machine() -> dict[str, Any]:
    """Return a description of the machine."""
    return {"python": platform.python_version(), "system": platform.platform(terse=True), "cores": os.cpu_count()}


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the nearest-rank percentile of sorted values."""
    return values[max(0, math.ceil(fraction * len(values)) - 1)]


def number(value: Any) -> str:
    """Format a number with a sensible count of digits; anything else as it is."""
    if isinstance(value, float):
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format columns aligned by blanks, the first to the left, the others to the right."""
    cells = [list(columns), *([number(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = [
        "   "
        + "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([lines[0], "   " + "-" * (len(lines[0]) - 3), *lines[1:]])
