"""Fields for requests by lease holders: ids and leases of held jobs, with the options of each verb."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import check_id, check_int, one_line, short, suggest
from ..core.job import PRIORITIES, Job
from ..core.sending.chunks import CHUNK
from ..core.times import delay_ms_of
from ..settings.conf import conf
from .fields import MOST_ERRORS
from .parsing import too_many

#: seconds that a reserve or a touch holds a job by default
TTR: Final = 60
LONGEST_TTR: Final = 3600
_REASON_CHARS: Final = 200
_LEASE: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,15})")
#: tokens are transmitted as doubles
_LARGEST_TOKEN: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Lease:
    """Shard in which a job is held and its fencing token. The text form is opaque to clients."""

    shard: int
    token: int

    def __str__(self) -> str:
        return f"{self.shard}.{self.token}"

    @property
    def taken_ms(self) -> int:
        """Start of the lease, Unix ms on Redis's clock.

        A token is a timestamp. In closing shards it is up to 2 s early.
        """
        return self.token // 1000


def lease_of(job: Job) -> Lease:
    """Return the lease of a held job."""
    return Lease(job.shard, job.token)


def read_lease(text: object) -> Lease:
    """Parse a lease sent by a client; raise :class:`InvalidJob` if it is not a lease."""
    match = _LEASE.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match[2]) > _LARGEST_TOKEN:
        raise InvalidJob(f"this is the lease that reserve gave with the job, not {short(text)}")
    return Lease(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of a batch with its options; options that were missing or null are absent from ``said``."""

    id: str
    lease: Lease
    said: Mapping[str, Any] = field(default_factory=dict)


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


def read_ttr(value: object) -> int:
    """Return the length of a lease in ms."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= LONGEST_TTR:
        raise InvalidJob(f"ttr is a number of seconds, 1 to {LONGEST_TTR}, not {short(value)}")
    return round(value * 1000)


def _delay_ms(value: Any) -> int:
    return delay_ms_of(value, allow_far=conf().allow_far)


def _priority(value: object) -> int:
    return check_int("priority", value, 0, PRIORITIES - 1)


def _reason(value: object) -> str:
    if not isinstance(value, str) or len(value) > _REASON_CHARS:
        raise InvalidJob(f"a reason is a text of up to {_REASON_CHARS} characters, not {short(value)}")
    return value


class HeldField(serializers.Field[Any, Any, Any, Any]):
    """List of 1 … 250 held jobs, read in one pass."""

    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}

    def to_internal_value(self, data: Any) -> list[Entry]:
        """Return the entries; errors are reported for all invalid entries, up to ``MOST_ERRORS``."""
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("this is a list with at least one job")
        if len(data) > CHUNK:
            raise too_many(CHUNK, "jobs")
        found: list[Entry] = []
        wrong: dict[str, Any] = {}
        for place, entry in enumerate(data):
            errors: dict[str, list[str]] = {}
            if not isinstance(entry, dict):
                wrong[str(place)] = [f'this is an object with "id" and "lease", not {short(entry)}']
            elif (one := self._entry(entry, errors)) is not None:
                found.append(one)
            else:
                wrong[str(place)] = errors
            if len(wrong) == MOST_ERRORS:
                break
        if wrong:
            raise serializers.ValidationError(wrong)
        return found

    def _entry(self, entry: dict[str, Any], errors: dict[str, list[str]]) -> Entry | None:
        readers = {"id": check_id, "lease": read_lease, **self.readers}
        said: dict[str, Any] = {}
        for name, value in entry.items():
            read = readers.get(name)
            try:
                if read is None:
                    known = ", ".join(readers)
                    raise InvalidJob(f"there is no such member.{suggest(name, readers)} Known are: {known}")
                if value is not None or name in ("id", "lease"):
                    said[name] = read(value)
            except InvalidJob as error:
                errors[name[:60]] = [str(error)]
        for name in ("id", "lease"):
            if name not in entry:
                errors[name] = ["this is needed"]
        return None if errors else Entry(said.pop("id"), said.pop("lease"), said)


_ID: Final = {"type": "string", "minLength": 1, "maxLength": 255, "description": "as reserve gave it"}
_HELD: Final = {"type": "string", "pattern": f"^{_LEASE.pattern}$", "description": "opaque; as reserve gave it"}
_DELAY: Final = {"type": "number", "minimum": 0, "maximum": 315_360_000, "nullable": True}


def _schema(**more: Any) -> dict[str, Any]:
    """Return the OpenAPI schema of such a list."""
    entry = {
        "type": "object",
        "properties": {"id": _ID, "lease": _HELD, **more},
        "required": ["id", "lease"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": entry, "minItems": 1, "maxItems": CHUNK}


@extend_schema_field(_schema())
class AckField(HeldField):
    """Held jobs to acknowledge."""


_TEXT: Final = {"type": "string"}
_ERROR: Final = {
    "oneOf": [
        _TEXT,
        {
            "type": "object",
            "properties": {"class": _TEXT, "message": _TEXT, "traceback": _TEXT},
            "additionalProperties": False,
        },
    ],
    "nullable": True,
    "description": "what happened: a text, or its parts",
}


@extend_schema_field(
    _schema(
        error=_ERROR,
        delay={**_DELAY, "description": "seconds until the next attempt, in place of the task's back-off"},
    )
)
class FailField(HeldField):
    """Held jobs whose attempts failed."""

    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"error": read_error, "delay": _delay_ms}


@extend_schema_field(
    _schema(
        delay={**_DELAY, "description": "seconds until it is due again; without it, at its old place"},
        priority={
            "type": "integer",
            "minimum": 0,
            "maximum": PRIORITIES - 1,
            "nullable": True,
            "description": "from now on; 0 is the first",
        },
    )
)
class ReleaseField(HeldField):
    """Held jobs to release."""

    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"delay": _delay_ms, "priority": _priority}


@extend_schema_field(
    _schema(
        reason={
            "type": "string",
            "maxLength": _REASON_CHARS,
            "nullable": True,
            "description": "for the one who finds it",
        },
    )
)
class BuryField(HeldField):
    """Held jobs to bury because they can never succeed."""

    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"reason": _reason}


@extend_schema_field(
    _schema(
        ttr={
            "type": "number",
            "minimum": 1,
            "maximum": LONGEST_TTR,
            "default": TTR,
            "nullable": True,
            "description": "seconds from now on",
        },
    )
)
class TouchField(HeldField):
    """Held jobs whose leases are to be extended."""

    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"ttr": read_ttr}
