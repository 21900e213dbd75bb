"""Hours of a history for tests: mappings as the pipeline gives them, and rows in the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django_delayq.history.rows import replace_days
from django_delayq.models.history import HourlyStat

#: in the middle of a day of UTC
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def place_of(ms: int) -> int:
    """The place of a length in a histogram."""
    return min(31, ms.bit_length())


def histogram(lengths: Sequence[int]) -> list[int]:
    """Of some lengths, ms."""
    made = [0] * 32
    for ms in lengths:
        made[place_of(ms)] += 1
    return made


def percentile(lengths: Sequence[int], percent: int) -> int:
    """The exact one, of the nearest rank."""
    return sorted(lengths)[max(0, -(-percent * len(lengths) // 100) - 1)]


def hour_of(
    hour: datetime = NOON,
    queue: str = "orders",
    task: str = "shop.cancel",
    *,
    late: Sequence[int] = (10, 20, 900),
    took: Sequence[int] = (),
    **counts: int,
) -> dict[str, Any]:
    """A row as the pipeline computes it: a run for each lateness, all of them fine unless ``counts`` say otherwise."""
    took = took or [50] * len(late)
    made: dict[str, Any] = {"hour": hour, "queue": queue, "task": task, "runs": len(late), "timed": len(late)}
    made["succeeded"] = len(late) - sum(counts.get(name, 0) for name in ("failed", "timeout", "crashed", "buried"))
    for name, lengths in (("lateness", late), ("duration", took)):
        made[f"{name}_histogram"] = histogram(lengths)
        made[f"{name}_sum_ms"] = sum(lengths)
        if lengths:
            made[f"{name}_max_ms"] = max(lengths)
            made |= {f"{name}_p{percent}_ms": percentile(lengths, percent) for percent in (50, 95, 99)}
    return {**made, **counts}


def seed(*rows: dict[str, Any]) -> None:
    """Puts rows into the database."""
    replace_days(rows, {row["hour"].date() for row in rows})


def everything() -> list[tuple[Any, ...]]:
    """All that is in the table, but for its keys."""
    names = [field.name for field in HourlyStat._meta.concrete_fields if not field.primary_key]
    return sorted(HourlyStat.objects.values_list(*names), key=lambda row: row[:3])
