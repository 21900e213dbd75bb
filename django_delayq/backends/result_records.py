"""Result records of jobs: one key each, which expires. A job never depends on its record.

A record keeps what Redis forgets when a job is over, and the history of its earlier attempts: their workers, their
errors and the result. The present state (waiting, running, buried) is read from the job itself, as long as it exists.

The value of the key ``<prefix>:result:<id>`` is a map in MessagePack; see ``lua/result.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..core.deployment import Deployment
from ..core.job import Job
from ..core.records.frames import pack, unpack_fields
from ..core.redis.scripts import clear_errors

READY: Final = "READY"
RUNNING: Final = "RUNNING"
FAILED: Final = "FAILED"
SUCCESSFUL: Final = "SUCCESSFUL"


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """Result record as it was read.

    Attributes:
        head: constant part, in the writer's own form.
        state: READY, RUNNING, FAILED or SUCCESSFUL: the state of the last attempt that wrote.
        token: fencing token of that attempt; 0 = none began.
        failures: failures of the job before that attempt.
        first, last, end: moments of the first start, the last start and the last end, in the writer's own form.
        value: the result, in the writer's own form; None = none yet.
        workers: workers that began an attempt, the latest last (at most 1,000).
        errors: errors of attempts, in the writer's own form, the latest last (at most 20).
    """

    head: bytes = b""
    state: str = READY
    token: int = 0
    failures: int = 0
    first: str = ""
    last: str = ""
    end: str = ""
    value: bytes | None = None
    workers: tuple[str, ...] = ()
    errors: tuple[bytes, ...] = ()

    @property
    def final(self) -> bool:
        """True if no attempt is expected after the last one that wrote."""
        return self.state in (FAILED, SUCCESSFUL)


@dataclass(frozen=True, slots=True)
class LostErrors:
    """Error lines for an attempt that could not report its own end."""

    crashed: bytes = b""
    overran: bytes = b""


class Results:
    """Result records of one deployment. Every method raises :class:`QueueUnavailable` when Redis cannot be reached."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def key(self, ident: str) -> bytes:
        """Return the Redis key under which the result of a job id is stored."""
        return f"{self._deployment.prefix}:result:{ident}".encode()

    def read(self, ident: str) -> ResultRecord | None:
        """Return the result of a job id; None if there is none."""
        with clear_errors():
            return _record(self._deployment.client.get(self.key(ident)))

    def create(self, ident: str, head: bytes, ttl_ms: int) -> None:
        """Create a record for a waiting job, unless there is one."""
        self._call(ident, "create", None, ttl_ms, {"head": head, "state": READY})

    def start(
        self, ident: str, job: Job, worker: str, ttl_ms: int, *, head: bytes, at: str, lost: LostErrors
    ) -> ResultRecord | None:
        """Record the start of an attempt.

        Args:
            lost: error lines for the previous attempt, used if it reported no end.

        Returns:
            The record; None if a later attempt has begun, so that this one does not count.
        """
        fields: dict[str, str | bytes] = {"head": head, "state": RUNNING, "first": at, "last": at}
        return self._call(ident, "start", job, ttl_ms, fields, worker=worker, lost=lost)

    def end(
        self,
        ident: str,
        job: Job,
        worker: str,
        ttl_ms: int,
        *,
        head: bytes,
        state: str,
        began: str,
        at: str,
        value: bytes | None = None,
        error: bytes = b"",
    ) -> ResultRecord | None:
        """Record the end of an attempt. It may be repeated, and needs no recorded start.

        Args:
            head: may be empty if it was written at the start; the returned record shows if it is still there.
            state: SUCCESSFUL; FAILED for good; or READY, if the job will be retried.
            error: one line.

        Returns:
            The record; None if a later attempt has begun.
        """
        fields: dict[str, str | bytes] = {"state": state, "end": at}
        if head:
            fields["head"] = head
        if began:
            fields |= {"first": began, "last": began}
        if value is not None:
            fields["value"] = value
        return self._call(ident, "end", job, ttl_ms, fields, worker=worker if began else "", error=error)

    def close(self, ident: str, ttl_ms: int, *, at: str, error: bytes) -> None:
        """Close the record of a job that is gone without a reporting attempt; no-op without a record."""
        self._call(ident, "close", None, ttl_ms, {"state": FAILED, "end": at}, error=error)

    def _call(
        self,
        ident: str,
        verb: str,
        job: Job | None,
        ttl_ms: int,
        fields: Mapping[str, str | bytes],
        *,
        worker: str = "",
        error: bytes = b"",
        lost: LostErrors | None = None,
    ) -> ResultRecord | None:
        lost = lost or LostErrors()
        token, failures, crashes = (job.token, job.failures, job.crashes) if job is not None else (0, 0, 0)
        call = {"token": token, "failures": failures, "crashes": crashes, "worker": worker, "error": error}
        packed = pack({**call, "crashed": lost.crashed, "overran": lost.overran, "fields": fields})
        return _record(self._deployment.scripts.call("result", (self.key(ident),), verb, max(1, ttl_ms), packed))


def _record(stored: bytes | None) -> ResultRecord | None:
    if not stored:
        return None
    found = unpack_fields(stored)
    texts = {name: found.get(name, b"").decode(errors="replace") for name in ("state", "first", "last", "end")}
    return ResultRecord(
        head=found.get("head", b""),
        token=found["token"],
        failures=found["failures"],
        value=found.get("value"),
        workers=tuple([worker.decode(errors="replace") for worker in found["workers"]]),
        errors=tuple(found["errors"]),
        **texts,
    )
