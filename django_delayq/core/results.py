"""Records of jobs whose results somebody will ask for: one key each, which expires. A job never needs its record.

A record tells what Redis forgets of a job when it is over, and of its earlier runs: who ran it, what they raised, what
came out. What is true *now* (waiting, running, buried) is read from the job itself, as long as there is one.

The key ``<prefix>:result:<id>`` is a hash; see ``lua/result.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError

from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker
    from .job import Job

READY: Final = "READY"
RUNNING: Final = "RUNNING"
FAILED: Final = "FAILED"
SUCCESSFUL: Final = "SUCCESSFUL"


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read.

    Attributes:
        head: what never changes, in the writer's own form.
        state: READY, RUNNING, FAILED or SUCCESSFUL: how far the last run that wrote has come.
        token: fencing token of that run; 0 = none began.
        failures: failures of the job before that run.
        first, last, end: moments of the first start, the last start and the last end, in the writer's own form.
        value: what came out, in the writer's own form; None = nothing yet.
        workers: who began a run, the latest last (at most 1,000).
        errors: what came of runs, in the writer's own form, the latest last (at most 20).
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
        """Whether the last run that wrote was to be the last one."""
        return self.state in (FAILED, SUCCESSFUL)


@dataclass(frozen=True, slots=True)
class LostErrors:
    """What is noted of a run that could not say itself how it ended: one line each."""

    crashed: bytes = b""
    overran: bytes = b""


class Results:
    """The records of one deployment. Every method raises :class:`QueueUnavailable` when Redis cannot be reached."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def key(self, ident: str) -> bytes:
        """The key of a record."""
        return f"{self._broker.prefix}:result:{ident}".encode()

    def read(self, ident: str) -> Record | None:
        """The record, if there is one."""
        with clear_errors():
            found = self._broker.client.hgetall(self.key(ident))
        return _record(found) if found else None

    def create(self, ident: str, head: bytes, ttl_ms: int) -> None:
        """A record for a job that waits; nothing if there is one."""
        self._call(ident, "create", None, ttl_ms, {"head": head, "state": READY})

    def start(
        self, ident: str, job: Job, worker: str, ttl_ms: int, *, head: bytes, at: str, lost: LostErrors
    ) -> Record | None:
        """A run begins.

        Arguments:
            lost: of the run before, if it left none.

        Returns:
            The record; None if a later run has begun, so that this one does not count.
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
    ) -> Record | None:
        """A run ended. May be called again, also when nothing was written at its start.

        Arguments:
            head: may be empty if it was written at the start; the answer tells whether it is still there.
            state: SUCCESSFUL; FAILED for good; or READY, if it will be tried again.
            error: one line.

        Returns:
            The record; None if a later run has begun.
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
        """The job is gone without a run that could tell; nothing if there is no record."""
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
    ) -> Record | None:
        lost = lost or LostErrors()
        said = [word for pair in fields.items() for word in pair]
        counters = (job.token, job.failures, job.crashes) if job is not None else (0, 0, 0)
        args = (verb, counters[0], max(1, ttl_ms), *counters[1:], worker, error, lost.crashed, lost.overran, *said)
        key = self.key(ident)
        with clear_errors():
            sha, source = self._broker.scripts.loaded("result")
            try:
                answer = self._broker.client.evalsha(sha, 1, key, *args)
            except NoScriptError:
                answer = self._broker.connection.run(source, (key,), *args)
        return None if answer == b"0" else _record(dict(zip(answer[::2], answer[1::2], strict=True)))


def _record(found: Mapping[bytes, Any]) -> Record:
    def text(name: bytes) -> str:
        return str(found.get(name, b"").decode(errors="replace"))

    return Record(
        head=found.get(b"head", b""),
        state=text(b"state"),
        token=int(found.get(b"token", 0)),
        failures=int(found.get(b"failures", 0)),
        first=text(b"first"),
        last=text(b"last"),
        end=text(b"end"),
        value=found.get(b"value"),
        workers=tuple(text(b"workers").split("\n")[:-1]),
        errors=tuple(found.get(b"errors", b"").split(b"\n")[:-1]),
    )
