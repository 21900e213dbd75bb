"""Metrics for Prometheus. They are read off when somebody asks; no process keeps any, so it does not matter which one
answers, and there is nothing to share between them (no multiprocess mode)."""

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

from ..core.timings import BUCKETS_MS, Histogram
from .measuring import Values, measure
from .names import METRICS, Metric

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_BOUNDS: Final = (*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf")


class Collector:
    """Answers a scrape from one look at Redis (and at the outbox)."""

    def collect(self) -> Iterator[Family]:
        """Everything there is to say now."""
        found = measure()
        for metric in METRICS:
            if metric in found:
                yield family(metric, found[metric])

    def describe(self) -> Iterator[Family]:
        """The names only, so that to register it asks nothing of Redis."""
        for metric in METRICS:
            yield family(metric, {})


def family(metric: Metric, values: Values) -> Family:
    """A metric with its values as prometheus_client takes it."""
    if metric.kind == "histogram":
        found = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            assert isinstance(value, Histogram)  # noqa: S101 - the list of metrics says so
            buckets = list(zip(_BOUNDS, map(float, accumulate(value.counts)), strict=True))
            found.add_metric(labels, buckets, value.sum_ms / 1000)
        return found
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = made(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        assert not isinstance(value, Histogram)  # noqa: S101
        plain.add_metric(labels, value)
    return plain


def register(registry: CollectorRegistry = REGISTRY) -> Collector:
    """Put the metrics into a registry, for a project that exports one of its own.

    Returns:
        What was registered; ``registry.unregister(it)`` takes it out again.
    """
    collector = Collector()
    registry.register(collector)
    return collector
