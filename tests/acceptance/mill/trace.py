"""Trace that a worker writes for the test: one JSON line per event, in one ``write`` (so it survives kill -9)."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Container, Mapping
from typing import Any

from django_delayq import current_job

_file = os.open(os.environ["MILL_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if "MILL_LOG" in os.environ else -1


def leave(event: str, **details: Any) -> None:
    """Append a line: event, wall clock, process, thread, and what is known of the running job."""
    line: dict[str, Any] = {"event": event, "at": time.time(), "pid": os.getpid(), "thread": threading.get_ident()}
    job = current_job()
    if job is not None:
        line |= {
            "id": job.id,
            "task": job.task,
            "queue": job.queue,
            "attempt": job.attempt,
            "token": job.token,
            "noe": job.noe,
            "due": job.due.timestamp(),
        }
    os.write(_file, json.dumps(line | details).encode() + b"\n")


def leave_each(event: str, payloads_by_id: Mapping[str, list[Any]], failed: Container[str] = ()) -> None:
    """The same for a call with several ids: a line for each, in one ``write``."""
    batch = current_job()
    assert batch is not None
    common = {"event": event, "at": time.time(), "pid": os.getpid(), "thread": threading.get_ident()}
    lines = []
    for job in batch.jobs:
        lines.append(
            {
                **common,
                "id": job.id,
                "task": job.task,
                "queue": job.queue,
                "attempt": job.attempt,
                "token": job.token,
                "due": job.due.timestamp(),
                "scores": job.scores,
                "payloads": payloads_by_id[job.id],
                "failed": job.id in failed,
                "batch": len(payloads_by_id),
            }
        )
    assert len(lines) == len(payloads_by_id)
    os.write(_file, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
