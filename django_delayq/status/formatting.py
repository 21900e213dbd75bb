"""Texts for people: durations, in one form everywhere; tables and stored text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

#: text of a missing value
NOTHING: Final = "–"


def table(rows: Iterable[Mapping[str, object]], *, left: int = 1) -> list[str]:
    """Return the lines of a plain table of rows with the same keys, which are its head; none without a row.

    Values are made :func:`printable`; None is shown as :data:`NOTHING`. A column without any text is left out. The
    first ``left`` columns are left-aligned, the others right-aligned.
    """
    cells = [
        {name: NOTHING if value is None else printable(str(value), 200) for name, value in row.items()} for row in rows
    ]
    lines = [""] * (len(cells) + 1) if cells else []
    for place, name in enumerate(cells[0] if cells else ()):
        column = [row[name] for row in cells]
        if any(column):
            width = max(map(len, (name, *column)))
            pad = str.ljust if place < left else str.rjust
            lines = [f"{line}  {pad(cell, width)}" for line, cell in zip(lines, (name, *column), strict=True)]
    return [line[2:].rstrip() for line in lines]


def millis(ms: float | None) -> str:
    """Return a duration given in ms, with fractions of a second below a minute."""
    if ms is None:
        return NOTHING
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else duration(ms / 1000)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``4 min 12 s``."""
    whole = int(abs(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    parts = [(days, "d"), (hours, "h"), *zip(divmod(rest, 60), ("min", "s"), strict=True)]
    first = next((place for place, (number, _unit) in enumerate(parts) if number), 3)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number) or "0 s"


def printable(text: str, limit: int = 60) -> str:
    """Return stored text for a terminal: control characters escaped, cut to ``limit`` characters."""
    clean = text[:limit]
    if not clean.isprintable():
        clean = "".join(character if character.isprintable() else repr(character)[1:-1] for character in clean)
    return clean if len(text) <= limit else f"{clean}…"
