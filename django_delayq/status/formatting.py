"""Formatting for a terminal: tables, sizes, durations, and stored text without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> list[str]:
    """Return the lines of a plain table; the first ``left`` columns are left-aligned, the others right-aligned."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = (
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(parts).rstrip()

    return [line(row) for row in cells]


def size(number: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def duration(seconds: float) -> str:
    """Return ``seconds`` in readable form: 0.4s, 12s, 5m10s, 3h02m, 4d."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def printable(text: str, limit: int = 60) -> str:
    """Return stored text for a terminal: control characters escaped, cut to ``limit`` characters."""
    clean = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text[:limit])
    return clean if len(text) <= limit else f"{clean}…"
