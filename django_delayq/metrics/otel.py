"""The same metrics for OpenTelemetry: instruments that are read off Redis when an exporter collects.

They speak of the whole deployment, so one process is enough to say them; what several processes say must not be added
up. What a process itself does is measured by the middlewares of :mod:`.tracing`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import Observation
except ImportError as error:
    raise ImportError("the metrics for OpenTelemetry need its interface: pip install 'django-delayq[otel]'") from error

from .. import __version__
from ..core.timings import Histogram
from .measuring import Values, measure
from .names import METRICS, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

#: labels under the names that the conventions of OpenTelemetry have for them
_ATTRIBUTES: Final = {"queue": "messaging.destination.name", "class": "error.type"}
#: seconds for which one look serves the callbacks of one collection
_FRESH: Final = 5.0

_lock: Final = threading.Lock()
_instrumented = False


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Make the instruments. With the provider of the process a second call does nothing.

    Args:
        meter_provider: another one than the process's.
    """
    global _instrumented
    if meter_provider is None:
        with _lock:
            if _instrumented:
                return
            _instrumented = True
    meter = metrics.get_meter("django_delayq", __version__, meter_provider)
    looks = Looks()
    for metric in METRICS:
        if metric.otel:
            _make(meter, metric, looks)


def _make(meter: Meter, metric: Metric, looks: Looks) -> None:
    make: Any
    if metric.kind == "counter":
        make = meter.create_observable_counter
    elif metric.merge == "sum":
        make = meter.create_observable_up_down_counter
    else:
        make = meter.create_observable_gauge
    make(metric.otel, [partial(_observe, looks, metric)], metric.unit, metric.help)


def _observe(looks: Looks, metric: Metric, options: CallbackOptions) -> Iterator[Observation]:
    keys = [_ATTRIBUTES.get(label, f"delayq.{label}") for label in metric.labels]
    for labels, value in looks.values(metric).items():
        if not isinstance(value, Histogram):
            yield Observation(value, dict(zip(keys, labels, strict=True)))


class Looks:
    """One look at the deployment for all callbacks of a collection; whoever asks twice begins the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Metric, Values] = {}
        self._taken_at = -_FRESH
        self._told: set[Metric] = set()

    def values(self, metric: Metric) -> Values:
        """What there is to say of a metric."""
        with self._lock:
            if metric in self._told or time.monotonic() - self._taken_at >= _FRESH:
                self._found = measure()
                self._taken_at = time.monotonic()
                self._told = set()
            self._told.add(metric)
            return self._found.get(metric, {})
