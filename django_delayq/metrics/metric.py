"""Definition of a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

#: labels whose values come from users, so that their number must be limited
OPEN: Final = frozenset({"queue", "task", "type"})
#: maximum number of open label values of a metric; the rest is added up under OTHER
MOST_LABELS: Final = 500
OTHER: Final = "other"

Merge: TypeAlias = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of one metric.

    Args:
        name: in Prometheus, in base units; counters end in ``_total``.
        otel: in OpenTelemetry; "" = it is not exported there.
        unit: in OpenTelemetry (UCUM).
        help: what it means, and what to do about it.
        labels: in the order of the values.
        merge: how the values of two queues are merged: their sum, or the larger one.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    otel: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    merge: Merge = "sum"

    @property
    def open_labels(self) -> int:
        """Number of labels whose values come from users; they are the first ones."""
        return sum(label in OPEN for label in self.labels)

    @property
    def samples(self) -> tuple[str, ...]:
        """Names under which its values are exported to Prometheus."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def gauge(name: str, otel: str, unit: str, help: str, *labels: str, merge: Merge | None = None) -> Metric:
    """Return a metric whose value may rise and fall.

    Unless ``merge`` is given, times and flags (units "s" and "1") are merged to the larger one, others to their sum.
    """
    return Metric(name, "gauge", otel, unit, help, labels, merge or ("max" if unit in ("s", "1") else "sum"))


def counter(name: str, otel: str, unit: str, help: str, *labels: str) -> Metric:
    """Return a metric whose value only rises."""
    return Metric(name, "counter", otel, unit, help, labels)


def histogram(name: str, help: str, *labels: str) -> Metric:
    """Return a metric that is a distribution of seconds."""
    # OpenTelemetry's API has no observable histogram; see tracing.py for the replacement.
    return Metric(name, "histogram", "", "s", help, labels)
