"""Spans of a test, by name and by their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

tracer = trace.get_tracer("the project")


def names(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def span(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [one for one in exporter.get_finished_spans() if one.name == name]
    return found


def trace_ids(exporter: InMemorySpanExporter) -> set[int]:
    return {one.context.trace_id for one in exporter.get_finished_spans()}


def attributes(one: ReadableSpan) -> dict[str, Any]:
    return dict(one.attributes or {})


def link_ids(one: ReadableSpan) -> Sequence[int]:
    return [link.context.span_id for link in one.links]


def traceparent(one: SpanContext) -> str:
    return f"00-{one.trace_id:032x}-{one.span_id:016x}-{one.trace_flags:02x}"
