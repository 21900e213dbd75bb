"""Where records of results lie: in Redis, or beside the in-memory broker of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ..core.redis.connection import Connection
from ..core.results import RUNNING, LostErrors, Record, Results

if TYPE_CHECKING:
    from ..core.broker import Broker
    from ..core.job import Job

_stand_ins: Final[WeakKeyDictionary[Broker, MemoryResults]] = WeakKeyDictionary()


def of(broker: Broker) -> Results:
    """The records of a broker's deployment."""
    if isinstance(broker.connection, Connection):
        return Results(broker)
    found = _stand_ins.get(broker)
    if found is None:
        found = _stand_ins[broker] = MemoryResults(broker)
    return found


class MemoryResults(Results):
    """Records that live as long as the broker does; they do not expire. As ``lua/result.lua`` does it otherwise."""

    def __init__(self, broker: Broker) -> None:
        # Not the broker itself: it would hold its own key in the dictionary above.
        self._fields: dict[str, dict[str, object]] = {}

    def read(self, ident: str) -> Record | None:
        """The record, if there is one."""
        fields = self._fields.get(ident)
        return _record(fields) if fields is not None else None

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
        known = self._fields.get(ident)
        if job is None:
            if (known is None) is not (verb == "create") or (known or {}).get("ended") == "closed":
                return None
            known = self._fields.setdefault(ident, _empty())
            if verb == "close":
                _append(known, "errors", error)
                known["ended"] = "closed"
        else:
            known = self._fields.setdefault(ident, _empty())
            if not _begun(known, job, worker, lost):
                return None
            if verb == "start":
                known |= {"end": "", "value": None}
            elif known["ended"] != job.token:
                _append(known, "errors", error)
                known["ended"] = job.token
        for name, value in fields.items():
            if name not in ("head", "first") or not known[name]:
                known[name] = value
        return _record(known)


def _empty() -> dict[str, object]:
    return {
        "head": b"",
        "state": "",
        "token": 0,
        "failures": 0,
        "crashes": 0,
        "first": "",
        "last": "",
        "end": "",
        "value": None,
        "workers": (),
        "errors": (),
        "ended": 0,
    }


def _begun(known: dict[str, object], job: Job, worker: str, lost: LostErrors | None) -> bool:
    """Whether the run counts; noted if nothing is known of it yet."""
    token, failures, crashes = (int(str(known[name])) for name in ("token", "failures", "crashes"))
    if token < job.token:
        if known["state"] == RUNNING and job.failures > failures and lost is not None:
            _append(known, "errors", lost.crashed if job.crashes > crashes else lost.overran)
        _append(known, "workers", worker)
        known |= {"token": job.token, "failures": job.failures, "crashes": job.crashes}
    return token <= job.token


def _append(known: dict[str, object], name: str, line: str | bytes) -> None:
    lines = known[name]
    if line and isinstance(lines, tuple):
        known[name] = (*lines, line)


def _record(fields: Mapping[str, object]) -> Record:
    return Record(**{name: fields[name] for name in Record.__slots__})  # type: ignore[arg-type]
