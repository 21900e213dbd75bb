"""Fixtures for tests of metrics and traces.

work_off   ``work_off()``: everything that is ready is run by a worker of this process, made as delayq_worker makes it
spans      the spans that were ended since the test began, with the SDK as the process's provider
traced     the same, with both middlewares in the settings
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_delayq import connections
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf

from . import deeds

_exporter = InMemorySpanExporter()


@pytest.fixture
def work_off(delayq: Any) -> Callable[..., None]:
    """See above; ``work_off("notes")`` for some queues only."""

    def run(*queues: str) -> None:
        wanted = queues or ("notes", "united")
        config = wiring.make_config(conf(), queues=wanted, threads=2, burst=True, dispatcher=False)
        worker = wiring.make_worker(config)
        worker.start()
        assert worker.done.wait(20), "the worker did not run dry"
        assert worker.stop(5)

    deeds.seen.clear()
    return run


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The exporter; a process has one provider for its whole life, so it is made by the first test that asks."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(provider)
    _exporter.clear()
    yield _exporter
    _exporter.clear()


@pytest.fixture
def traced(spans: InMemorySpanExporter, delayq: Any, settings: Any) -> InMemorySpanExporter:
    """``DELAYQ`` names both middlewares."""
    settings.DELAYQ = {
        **settings.DELAYQ,
        "SCHEDULE_MIDDLEWARE": ["django_delayq.metrics.tracing.schedule"],
        "MIDDLEWARE": ["django_delayq.metrics.tracing.run"],
    }
    connections.broker()
    return spans
