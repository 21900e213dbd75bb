"""Metrics for Prometheus, read from Redis on every scrape.

Processes keep no metrics of their own, so any process can answer, and no multiprocess mode is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import REGISTRY, CollectorRegistry
except ImportError as error:
    raise ImportError(
        "the metrics for Prometheus need prometheus_client: pip install 'django-delayq[metrics]'"
    ) from error

from ..core.figures import BUCKETS_MS, Histogram
from .definitions import METRICS, Metric, Values, measure

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_BOUNDS: Final = (*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf")


class Collector:
    """Collector that answers a scrape from one snapshot of Redis (and the outbox)."""

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their current values."""
        measured = measure()
        for metric in METRICS:
            if metric in measured:
                yield family(metric, measured[metric])

    def describe(self) -> Iterator[Family]:
        """Yield the metrics without values, so that registering does not query Redis."""
        for metric in METRICS:
            yield family(metric, {})


def family(metric: Metric, values: Values) -> Family:
    """Return a metric with its values as a prometheus_client family."""
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            assert isinstance(value, Histogram)  # noqa: S101 - the list of metrics says so
            buckets = list(zip(_BOUNDS, map(float, accumulate(value.counts)), strict=True))
            histogram.add_metric(labels, buckets, value.sum_ms / 1000)
        return histogram
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = made(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        assert not isinstance(value, Histogram)  # noqa: S101
        plain.add_metric(labels, value)
    return plain


def register(registry: CollectorRegistry = REGISTRY) -> Collector:
    """Register the metrics in a registry, for a project that exports one of its own.

    Returns:
        The registered collector; ``registry.unregister(it)`` removes it.
    """
    collector = Collector()
    registry.register(collector)
    return collector
