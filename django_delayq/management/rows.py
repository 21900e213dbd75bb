"""Rows of ``delayq_queue``: queues and jobs as plain data, for tables and JSON."""

from __future__ import annotations

import json
from typing import Any, Final

from ..core import rules
from ..core.job import Job
from ..core.moments import iso_of
from ..core.operations.inspector import Counts, JobView
from ..core.queue import Queue
from ..masking import Mask
from ..status.formatting import printable
from .base import call_of

JOB_COLUMNS: Final = ("state", "id", "task", "due", "failures", "content")


def job_as_dict(view: JobView, hide: Mask) -> dict[str, Any]:
    """Return a job as plain data for the results of a search, masked."""
    content = f"{view.payload_count} payloads" if view.job.merged else _content(view.job, hide)
    values = (view.state, view.id, view.job.task, iso_of(view.due_ms), view.job.failures, content)
    return dict(zip(JOB_COLUMNS, values, strict=True))


def _content(job: Job, hide: Mask) -> str:
    """Return the arguments on one line, in their stored form."""
    call = call_of(job, hide)
    if "bytes" in call:
        return str(call["bytes"])
    return json.dumps({"a": call["args"], "k": call["kwargs"]} if call["kwargs"] else call["args"], ensure_ascii=False)


def cell_of(value: object) -> object:
    """Return a value of :func:`job_as_dict` for a table."""
    return printable(value) if isinstance(value, str) else value


def as_dict(queue: Queue, counts: Counts) -> dict[str, Any]:
    """Return a queue, its policy and its counts as plain data. A missing limit is None."""
    orders = rules.orders_of(queue.layout)
    limits = orders["limits"]
    ttl_ms = limits.get("morgue_ttl_ms")
    return {
        "queue": queue.name,
        "kind": queue.kind,
        "paused": orders["paused"],
        "shards": queue.shards,
        "priorities": "weighted" if limits.get("weighted") else "strict",
        "jobs": counts.delayed + counts.ready + counts.reserved,
        "max_length": limits.get("max_length"),
        "morgue": counts.morgue,
        "morgue_max": limits.get("morgue_max"),
        "morgue_ttl": ttl_ms / 1000 if ttl_ms else None,
    }
