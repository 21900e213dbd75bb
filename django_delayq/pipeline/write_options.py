"""Options for writing jobs, validated before anything runs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ..core.codec import MAX_BYTES, codec_at
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, check_task_name, short
from ..core.job import DEFAULT_PRIORITY, PRIORITIES, RAW
from ..core.job_options import timeout_of
from ..core.options import (
    CONFLICTS,
    DEFAULT_MAX_PAYLOADS,
    DUE_POLICIES,
    MAX_PAYLOADS,
    PAYLOAD_POLICIES,
    SCORE_POLICIES,
)
from ..core.records.keys import MAX_SHARDS
from ..core.records.schedule_frames import CHUNK
from ..core.sending.bulk_loads import MAX_ID_BYTES
from ..core.times import span_ms_of, ttr_ms_of
from .option_fields import SourceOptions, choice, flag, named, number, option, parse_json, text, whole
from .redis_options import OPTIONS

FAIL: Final = "fail"
QUARANTINE: Final = "quarantine"
NOW: Final = "now"
#: options that do not affect the bytes of a chunk, so they may change when a bulk load is resumed
_CHANGEABLE: Final = (
    "run_id",
    "close",
    "rate_limit",
    "max_memory",
    "patience",
    "on_error",
    "quarantine",
    "shards",
    "source",
    "chunk",
    "queue",
)
#: the queue of a row is appended to the id of its bulk load
_MOST_RUN_ID: Final = MAX_ID_BYTES - 65
_SECONDS: Final = number(0.001, 86_400 * 3653, "seconds")


def _run_id(name: str, given: str) -> str:
    size = len(given.encode(errors="surrogateescape"))
    if size > _MOST_RUN_ID or any(character.isspace() or not character.isprintable() for character in given):
        raise InvalidJob(f"{name} must be 1 to {_MOST_RUN_ID} characters without spaces, got {short(given)}")
    return given


def _context(name: str, given: str) -> str:
    example = '{"trace": "abc"}'
    if not isinstance(parse_json(name, given, example), dict):
        raise InvalidJob(f"{name} must be a JSON object like {example}, got {short(given)}")
    return given


def _codec(name: str, given: str) -> str:
    try:
        codec_at(given)
    except Misconfigured as error:
        raise Misconfigured(f"{name}: {error}") from None
    return given


def _source(name: str, given: str) -> tuple[tuple[str, str], ...]:
    example = '{"day": "2030-01-31"}'
    value = parse_json(name, given, example)
    if not isinstance(value, dict):
        raise InvalidJob(f"{name} must be a JSON object of texts like {example}, got {short(given)}")
    return tuple(sorted((str(key), str(one)) for key, one in value.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(SourceOptions):
    """Options for writing jobs. None = the default of the task, or of ``schedule()``."""

    #: besides Redis, the option that Spark adds for a stream
    ELSEWHERE: ClassVar[tuple[str, ...]] = (*OPTIONS, "checkpointLocation")

    queue: str | None = option("queue", named(check_queue_name))
    task: str | None = option("task", named(check_task_name))
    #: kind of a queue that this bulk load creates
    kind: str | None = option("kind", choice("python", "pull"))
    shards: int | None = option("shards", whole(1, MAX_SHARDS))
    #: None = ignore for plain jobs, merge for those with a payload
    on_conflict: str | None = option("onConflict", choice(*CONFLICTS))
    due_policy: str | None = option("duePolicy", choice(*DUE_POLICIES))
    score_policy: str = option("scorePolicy", choice(*SCORE_POLICIES), "min")
    payloads: str = option("payloads", choice(*PAYLOAD_POLICIES), "all")
    max_payloads: int = option("maxPayloads", whole(1, MAX_PAYLOADS), DEFAULT_MAX_PAYLOADS)
    priority: int = option("priority", whole(0, PRIORITIES - 1), DEFAULT_PRIORITY)
    max_attempts: int | None = option("maxAttempts", whole(1, 1_000_000))
    #: seconds after the due time
    expires: float | None = option("expires", _SECONDS)
    timeout: float | None = option("timeout", _SECONDS)
    ttr: float | None = option("ttr", _SECONDS)
    #: a JSON object
    context: str | None = option("context", _context)
    #: args and payload are bytes that are stored as they are
    encoded: bool = option("encoded", flag, False)
    #: dotted path of the codec that stores arguments and payloads; None = JSON
    codec: str | None = option("codec", _codec)
    allow_far: bool = option("allowFar", flag, False)
    max_args_bytes: int = option("maxArgsBytes", whole(1, 1 << 30), MAX_BYTES)
    run_id: str | None = option("runId", _run_id)
    #: further values that must not change when the bulk load is resumed
    source: tuple[tuple[str, str], ...] = option("source", _source, ())
    #: close the bulk load when everything is written
    close: bool = option("close", flag, True)
    chunk: int = option("chunk", whole(1, CHUNK), CHUNK)
    #: jobs per second, over all tasks together
    rate_limit: float | None = option("rateLimit", number(0.001, 1e9))
    max_memory: float = option("maxMemory", number(0, 1), 0.85)
    #: seconds
    patience: float = option("patience", number(0, 86_400 * 365, "seconds"), 600.0)
    on_error: str = option("onError", choice(FAIL, QUARANTINE), FAIL)
    quarantine: str | None = option("quarantine", text)
    #: now: a row whose due time is null is due at once; fail: it is invalid
    null_due: str = option("nullDue", choice(NOW, FAIL), NOW)

    def __post_init__(self) -> None:
        if (self.on_error == QUARANTINE) != (self.quarantine is not None):
            raise Misconfigured(
                "a quarantine of invalid rows needs both onError=quarantine and quarantine=FOLDER; give both of them, "
                "or none, then an invalid row ends the write"
            )
        if self.kind == "pull" and self.task not in (None, RAW):
            raise Misconfigured("a queue of kind pull holds raw bytes and has no tasks; leave the option task out")

    def job_options(self) -> dict[str, Any]:
        """Return the options that every job of the write carries, as they are stored."""
        stored = {
            "max_attempts": self.max_attempts,
            "timeout": None if self.timeout is None else timeout_of(self.timeout),
            "ttr_ms": None if self.ttr is None else ttr_ms_of(self.ttr),
            "expires_in_ms": None if self.expires is None else span_ms_of("expires", self.expires, allow_far=True),
            "context": None if self.context is None else json.loads(self.context),
        }
        return {name: value for name, value in stored.items() if value is not None}

    def identity(self) -> dict[str, str]:
        """Return the non-default options that determine the chunks, for storage with the bulk load."""
        given = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            field.name: str(value)
            for field, value in given.items()
            if field.name not in _CHANGEABLE and value != field.default
        }
