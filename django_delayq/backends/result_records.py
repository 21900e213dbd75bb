"""Result records of jobs: one key each, which expires. A job never depends on its record.

A record keeps what Redis forgets when a job is over, and the history of its earlier attempts: their workers, their
errors and the result. The present state (waiting, running, buried) is read from the job itself, as long as it exists.

The key ``<prefix>:result:<id>`` is a hash; see ``lua/result.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..core.deployment import Deployment
from ..core.job import Job
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
            stored = self._deployment.client.hgetall(self.key(ident))
        return _record(stored) if stored else None

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
        values = [value for pair in fields.items() for value in pair]
        counters = (job.token, job.failures, job.crashes) if job is not None else (0, 0, 0)
        args = (verb, counters[0], max(1, ttl_ms), *counters[1:], worker, error, lost.crashed, lost.overran, *values)
        reply = self._deployment.scripts.call("result", (self.key(ident),), *args)
        return None if reply == b"0" else _record(dict(zip(reply[::2], reply[1::2], strict=True)))


def _record(stored: Mapping[bytes, Any]) -> ResultRecord:
    def text(name: bytes) -> str:
        return str(stored.get(name, b"").decode(errors="replace"))

    return ResultRecord(
        head=stored.get(b"head", b""),
        state=text(b"state"),
        token=int(stored.get(b"token", 0)),
        failures=int(stored.get(b"failures", 0)),
        first=text(b"first"),
        last=text(b"last"),
        end=text(b"end"),
        value=stored.get(b"value"),
        workers=tuple(text(b"workers").split("\n")[:-1]),
        errors=tuple(stored.get(b"errors", b"").split(b"\n")[:-1]),
    )
