"""Metrics for Prometheus and OpenTelemetry, and traces. See ``docs/metrics.md``.

The optional packages are imported only on use; each module names the one it requires. Projects import ``Collector`` and
``register`` from here; :mod:`django_delayq.api` includes the metrics view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .collector import Collector, register

__all__ = ["Collector", "register"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import collector

        return getattr(collector, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
