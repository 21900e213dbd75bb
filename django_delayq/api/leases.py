"""Leases as clients hold them, and what clients send about a held job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.errors import InvalidJob
from ..core.inputs import one_line, short
from ..core.job import Job

#: seconds that a reserve or a touch holds a job by default
TTR: Final = 60
LONGEST_TTR: Final = 3600
LEASE: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,15})(?:t([1-9][0-9]{0,11}))?")
#: tokens are transmitted as doubles
_LARGEST_TOKEN: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Lease:
    """Shard in which a job is held, its fencing token, and its own ttr if it has one.

    The text form is opaque to clients.
    """

    shard: int
    token: int
    own_ttr_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.shard}.{self.token}" + (f"t{self.own_ttr_ms}" if self.own_ttr_ms else "")

    @property
    def usual_ttr_ms(self) -> int:
        """Length of the lease after a touch that names none."""
        return self.own_ttr_ms or TTR * 1000

    @property
    def taken_ms(self) -> int:
        """Start of the lease, Unix ms on Redis's clock.

        A token is a timestamp. In closing shards it is up to 2 s early.
        """
        return self.token // 1000


def lease_of(job: Job) -> Lease:
    """Return the lease of a held job."""
    return Lease(job.shard, job.token, job.ttr_ms)


def read_lease(text: object) -> Lease:
    """Parse a lease sent by a client; raise :class:`InvalidJob` if it is not a lease."""
    match = LEASE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[2]) > _LARGEST_TOKEN:
        raise InvalidJob(f"this is the lease that reserve gave with the job, not {short(text)}")
    return Lease(int(match[1]), int(match[2]), int(match[3]) if match[3] else None)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """One job of a request with its options; options that were missing or null are absent."""

    id: str
    lease: Lease
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportedError:
    """Error reported by a program in another language."""

    message: str
    name: str = ""
    trace: str = ""


def read_error(value: object) -> ReportedError:
    """Parse an error: a text, or an object with class, message and traceback."""
    if isinstance(value, str):
        return ReportedError(value)
    if not isinstance(value, dict):
        raise InvalidJob(f"an error is a text, or an object with class, message and traceback, not {short(value)}")
    for name, text in value.items():
        if name not in ("class", "message", "traceback"):
            raise InvalidJob(f"an error has class, message and traceback, not {short(name)}")
        if not isinstance(text, str):
            raise InvalidJob(f"{name} of an error is a text, not {short(text)}")
    return ReportedError(value.get("message", ""), one_line(value.get("class", "")), value.get("traceback", ""))
