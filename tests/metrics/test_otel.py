"""The metrics of the deployment as OpenTelemetry collects them, with the SDK and a real Redis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum

from django_delayq import connections, schedule
from django_delayq.core.job import NewJob
from django_delayq.metrics import definitions
from django_delayq.metrics.otel import instrument
from tests.support.core_figures import store_violations

from .deeds import note

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def reader(delayq: Any) -> Iterator[InMemoryMetricReader]:
    """A reader of a provider of its own with all instruments."""
    found = InMemoryMetricReader()
    provider = MeterProvider([found], shutdown_on_exit=False)
    instrument(provider)
    yield found
    provider.shutdown()


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}


def points(metric: Any) -> dict[tuple[tuple[str, Any], ...], float]:
    return {tuple(sorted(point.attributes.items())): point.value for point in metric.data.data_points}


def test_the_deployment_is_measured_in_the_words_of_opentelemetry(
    reader: InMemoryMetricReader, work_off: Callable[..., None]
) -> None:
    schedule(note, "one")
    schedule(note, "two", delay=60)
    work_off()
    found = collected(reader)
    settled = points(found["delayq.settled"])
    assert settled[("delayq.outcome", "acked"), ("messaging.destination.name", "notes")] == 1
    assert points(found["delayq.jobs"])[("delayq.state", "delayed"), ("messaging.destination.name", "notes")] == 1
    assert (found["delayq.lag"].unit, found["delayq.redis_memory_used"].unit) == ("s", "By")
    assert isinstance(found["delayq.settled"].data, Sum)
    assert found["delayq.settled"].data.is_monotonic
    assert isinstance(found["delayq.jobs"].data, Gauge)


def test_every_metric_but_the_histograms_has_an_instrument(reader: InMemoryMetricReader) -> None:
    broker = connections.broker()
    broker.queue("notes").schedule(NewJob("first", "note"))
    broker.queue("notes").schedule(NewJob("second", "note", priority=1))
    broker.tally.count("redis_error", "transient")
    broker.tally.flush()
    store_violations(broker, 0)
    assert set(collected(reader)) == {metric.otel for metric in definitions.METRICS if metric.kind != "histogram"}


def test_a_collection_looks_once(reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    take = definitions.take

    def counted(*args: Any, **options: Any) -> Any:
        looks.append(1)
        return take(*args, **options)

    monkeypatch.setattr(definitions, "take", counted)
    for _ in range(3):
        assert collected(reader)
    assert len(looks) == 3


@pytest.mark.broken_on_purpose
def test_without_redis_only_that_is_said(reader: InMemoryMetricReader, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://127.0.0.1:1/0"}
    connections.close_broker()
    found = collected(reader)
    assert {name: list(points(metric).values()) for name, metric in found.items()} == {"delayq.up": [0.0]}


def run(program: str, **environment: str) -> str:
    """Return what a program prints in a process of its own, because a provider stays for the life of a process."""
    command = [sys.executable, "-W", "error", "-c", program]
    env = {**os.environ, **environment}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True, env=env)
    return answer.stdout


def test_a_missing_package_is_named_with_its_extra() -> None:
    said = run(
        "import importlib, sys\n"
        "sys.modules['opentelemetry'] = sys.modules['prometheus_client'] = None\n"
        "for name in ('otel', 'tracing', 'collector'):\n"
        "    try:\n"
        "        importlib.import_module('django_delayq.metrics.' + name)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    assert re.findall(r"pip install 'django-delayq\[(\w+)\]'", said) == ["otel", "otel", "metrics"]


def test_without_an_sdk_nothing_is_done_and_nothing_breaks() -> None:
    said = run(
        "from types import SimpleNamespace as S\n"
        "from django_delayq.metrics import otel, tracing\n"
        "from opentelemetry import trace\n"
        "options = {'context': {'mine': 1}}\n"
        "asked = S(options=options, many=False, task=S(name='t', options=S(queue='q')))\n"
        "print(tracing.schedule(lambda scheduling: 'handle')(asked), options, otel.instrument())\n",
        DJANGO_SETTINGS_MODULE="tests.settings",
        OTEL_SDK_DISABLED="true",
    )
    assert said.strip() == "handle {'context': {'mine': 1}} None"
