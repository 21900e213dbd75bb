"""What the record of a row says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.job import Generation
from ..core.records.frames import digest
from ..core.records.packed import unpack_job

if TYPE_CHECKING:
    from ..core.job import NewJob
    from ..models import OutboxJob


def job_of(row: OutboxJob, due_ms: int) -> NewJob:
    """The job of a row, as Redis is to get it.

    One that was sent before and is lost must not push aside what lives under its id by now.

    Raises:
        ValueError: the record is none.
    """
    job = unpack_job(bytes(row.record))
    job.due_ms, job.delay_ms = due_ms, None
    if row.sent_at is not None and job.payload is None:
        job.on_conflict = "ignore"
    return job


def digest_of(record: bytes | memoryview) -> bytes:
    """The digest of a merged job's payload, by which Redis finds it; b"" for a plain job, and for what is no record."""
    try:
        payload = unpack_job(bytes(record)).payload
    except Exception:  # whatever its bytes make the reader do: the relay refuses it
        return b""
    return b"" if payload is None else digest(payload.data)


def generation_of(row: OutboxJob) -> Generation:
    """Return what names the job of a row, or the one that its payload is in."""
    return Generation((row.key.bytes,), digest_of(row.record))
