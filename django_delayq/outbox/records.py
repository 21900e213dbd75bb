"""Access to the job record stored in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.job import Generation
from ..core.records.frames import digest, unpack_job

if TYPE_CHECKING:
    from ..core.job import NewJob
    from ..models import OutboxJob


def job_of(row: OutboxJob, due_ms: int) -> NewJob:
    """Return the job of a row in the form to send to Redis.

    A job that was sent before and is lost must not replace the content that its id has by now.

    Raises:
        ValueError: the record is invalid.
    """
    job = unpack_job(bytes(row.record))
    job.due_ms, job.delay_ms = due_ms, None
    if row.sent_at is not None and job.payload is None:
        job.on_conflict = "ignore"
    return job


def digest_of(record: bytes | memoryview) -> bytes:
    """Return the digest by which Redis finds a merged job's payload; b"" for a plain job or an invalid record."""
    try:
        payload = unpack_job(bytes(record)).payload
    except Exception:  # any error of the reader; the relay refuses such a record
        return b""
    return b"" if payload is None else digest(payload.data)


def generation_of(row: OutboxJob) -> Generation:
    """Return the generation of the job of a row, or of the job that its payload is in."""
    return Generation((row.key.bytes,), digest_of(row.record))
