"""Metrics for OpenTelemetry: observable instruments that read Redis when an exporter collects.

They describe the whole deployment, so one process is enough to export them; the values of several processes must not be
added up. The middlewares of :mod:`.tracing` measure the work of each process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import Observation
except ImportError as error:
    raise ImportError("the metrics for OpenTelemetry need its interface: pip install 'django-delayq[otel]'") from error

from opentelemetry.metrics import CallbackOptions, MeterProvider

from .. import __version__
from ..core.figures import Histogram
from .definitions import METRICS, Metric, Values, measure

#: labels that have a name in OpenTelemetry's semantic conventions
_ATTRIBUTES: Final = {"queue": "messaging.destination.name", "class": "error.type"}


@cache
def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Create the instruments. Further calls with the same provider do nothing.

    Args:
        meter_provider: a provider other than the process's.
    """
    meter = metrics.get_meter("django_delayq", __version__, meter_provider)
    snapshot = SharedSnapshot()
    for metric in METRICS:
        if metric.kind != "histogram":
            is_counter = metric.kind == "counter"
            make: Any = meter.create_observable_counter if is_counter else meter.create_observable_gauge
            make(metric.otel, [partial(_observe, snapshot, metric)], metric.unit, metric.help)


def _observe(snapshot: SharedSnapshot, metric: Metric, options: CallbackOptions) -> Iterator[Observation]:
    keys = [_ATTRIBUTES.get(label, f"delayq.{label}") for label in metric.labels]
    for labels, value in snapshot.values(metric).items():
        if not isinstance(value, Histogram):
            yield Observation(value, dict(zip(keys, labels, strict=True)))


class SharedSnapshot:
    """Snapshot shared by all callbacks of one collection. A second request for the same metric takes a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: dict[Metric, Values] = {}
        #: metrics whose values of this snapshot were not requested yet
        self._left: set[Metric] = set()

    def values(self, metric: Metric) -> Values:
        """Return the values of a metric."""
        with self._lock:
            if metric not in self._left:
                self._measured, self._left = measure(), set(METRICS)
            self._left.discard(metric)
            return self._measured.get(metric, {})
