"""Options and columns for writing jobs, validated before anything runs."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import StructField, StructType

from ..core.codec import MAX_BYTES, codec_at
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, check_task_name, short, suggest
from ..core.job import DEFAULT_PRIORITY, RAW
from ..core.options import DEFAULT_MAX_PAYLOADS, OPTIONS, Check, stored_members
from ..core.records.frames import CHUNK
from ..core.records.keys import MAX_SHARDS
from ..core.times import MAX_DUE_MS, TEN_YEARS_MS, span_ms_of
from .errors import PipelineError
from .options import MAY_CHANGE, SourceOptions, choice, flag, named, number, option, parse_json, text, whole

FAIL: Final = "fail"
NOW: Final = "now"
_MOST_RUN_ID: Final = 135
_SECONDS: Final = number(0.001, 86_400 * 3653, "seconds")


def _run_id(name: str, given: str) -> str:
    size = len(given.encode(errors="surrogateescape"))
    if size > _MOST_RUN_ID or any(character.isspace() or not character.isprintable() for character in given):
        raise InvalidJob(f"{name} must be 1 to {_MOST_RUN_ID} characters without spaces, got {short(given)}")
    return given


def _object(name: str, given: str) -> dict[str, Any]:
    example = '{"trace": "abc"}'
    value = parse_json(name, given, example)
    if not isinstance(value, dict):
        raise InvalidJob(f"{name} must be a JSON object like {example}, got {short(given)}")
    return value


def _codec(name: str, given: str) -> str:
    try:
        codec_at(given)
    except Misconfigured as error:
        raise Misconfigured(f"{name}: {error}") from None
    return given


def of_table(name: str, default: Any = None) -> Any:
    """Declare a field for an option of tasks or jobs: a choice, a whole number or seconds, within its limits."""
    row = OPTIONS[name]
    check = row.job or row.check
    schema = check.schema if isinstance(check, Check) else {}
    read: Any = _SECONDS
    if "enum" in schema:
        read = choice(*schema["enum"])
    elif schema.get("type") == "integer":
        read = whole(schema["minimum"], schema["maximum"])
    return option(re.sub("_(.)", lambda found: found[1].upper(), name), read, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(SourceOptions):
    """Options for writing jobs. None = the default of the task, or of ``schedule()``."""

    queue: str = option("queue", named(check_queue_name), "", may_change=True)
    task: str | None = option("task", named(check_task_name))
    #: kind of a queue that this bulk load creates
    kind: str | None = option("kind", choice("python", "pull"))
    shards: int | None = option("shards", whole(1, MAX_SHARDS), may_change=True)
    #: None = ignore for plain jobs, merge for those with a payload
    on_conflict: str | None = of_table("on_conflict")
    due_policy: str | None = of_table("due_policy")
    score_policy: str = of_table("score_policy", "min")
    payloads: str = of_table("payloads", "all")
    max_payloads: int = of_table("max_payloads", DEFAULT_MAX_PAYLOADS)
    priority: int = of_table("priority", DEFAULT_PRIORITY)
    max_attempts: int | None = of_table("max_attempts")
    #: seconds after the due time
    expires: float | None = of_table("expires")
    timeout: float | None = of_table("timeout")
    ttr: float | None = of_table("ttr")
    context: dict[str, Any] | None = option("context", _object)
    #: args and payload are bytes that are stored as they are
    encoded: bool = option("encoded", flag, False)
    #: dotted path of the codec that stores arguments and payloads; None = JSON
    codec: str | None = option("codec", _codec)
    allow_far: bool = option("allowFar", flag, False)
    max_args_bytes: int = option("maxArgsBytes", whole(1, 1 << 30), MAX_BYTES)
    run_id: str | None = option("runId", _run_id, may_change=True)
    #: further values that must not change when the bulk load is resumed
    source: dict[str, Any] | None = option("source", _object, may_change=True)
    #: close the bulk load when everything is written
    close: bool = option("close", flag, True, may_change=True)
    chunk: int = option("chunk", whole(1, CHUNK), CHUNK, may_change=True)
    #: jobs per second, over all tasks together
    rate_limit: float | None = option("rateLimit", number(0.001, 1e9), may_change=True)
    max_memory: float = option("maxMemory", number(0, 1), 0.85, may_change=True)
    #: seconds
    patience: float = option("patience", number(0, 86_400 * 365, "seconds"), 600.0, may_change=True)
    #: folder for invalid rows; None = the first one ends the write
    quarantine: str | None = option("quarantine", text, may_change=True)
    #: now: a row whose due time is null is due at once; fail: it is invalid
    null_due: str = option("nullDue", choice(NOW, FAIL), NOW)

    def __post_init__(self) -> None:
        if not self.queue:
            raise Misconfigured("which queue? Give the option queue")
        if self.kind == "pull" and self.task not in (None, RAW):
            raise Misconfigured("a queue of kind pull holds raw bytes and has no tasks; leave the option task out")

    def job_options(self) -> dict[str, Any]:
        """Return the options that every job of the write carries, as they are stored."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        stored = stored_members(given)
        if self.expires is not None:
            stored["expires_in_ms"] = span_ms_of("expires", self.expires, allow_far=True)
        return stored

    def last_ms(self, opened_ms: int) -> int:
        """Return the latest due time of a job of the write, Unix ms."""
        return MAX_DUE_MS if self.allow_far else min(MAX_DUE_MS, opened_ms + TEN_YEARS_MS)

    def described(self, schema: StructType) -> dict[str, str]:
        """Return the description of input and options that is stored with the bulk load."""
        return {"columns": schema.simpleString(), **self.identity(), **(self.source or {})}

    def identity(self) -> dict[str, str]:
        """Return the non-default options that determine the chunks, for storage with the bulk load."""
        given = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            field.name: str(value)
            for field, value in given.items()
            if not field.metadata[MAY_CHANGE] and value != field.default
        }


_INTEGERS: Final = "tinyint smallint int bigint"
_NUMBERS: Final = f"{_INTEGERS} float double decimal"
_RAW: Final = "string binary"
#: column -> the types that Spark may give it; of args, kwargs and payload those that are not refused with their values
_TYPES: Final = {
    "id": f"string {_INTEGERS}",
    "due": "timestamp",
    "due_ms": _INTEGERS,
    "args": "array struct string binary",
    "kwargs": "struct map string",
    "payload": "",
    "score": f"string {_NUMBERS}",
    "priority": _INTEGERS,
    "context": "struct map string",
    "group": "string",
    "max_attempts": _INTEGERS,
    "expires": "timestamp",
    "timeout": _NUMBERS,
    "ttr": _NUMBERS,
}
COLUMNS: Final = tuple(_TYPES)


def check_schema(schema: StructType, options: WriteOptions) -> StructType:
    """Return the schema of the jobs with the column names in lower case.

    Raises:
        PipelineError: jobs cannot be built from these columns; the message names them and the known ones.
    """
    for name in schema.fieldNames():
        if name.lower() not in COLUMNS:
            raise PipelineError(
                f"jobs have no column {short(name)}.{suggest(name, COLUMNS)} Known columns: {', '.join(COLUMNS)}. Put "
                "the task's arguments into args or kwargs, and leave other columns out with select()"
            )
    schema = StructType([StructField(one.name.lower(), one.dataType, one.nullable) for one in schema.fields])
    names = schema.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(f"there are several columns {name}; leave all but one out")
    if "id" not in names:
        raise PipelineError(
            "there is no column id, without which a second attempt would write all jobs again; derive one from the "
            "key of a row, like concat('order-', pk)"
        )
    if "due" in names and "due_ms" in names:
        raise PipelineError("due and due_ms are two forms of the due time; keep one of them")
    _check_content(set(names), options)
    for field in schema.fields:
        is_raw = field.name in ("args", "payload") and (options.encoded or options.kind == "pull")
        allowed = (_RAW if is_raw else _TYPES[field.name]).split()
        kind = field.dataType.simpleString()
        if allowed and re.split("[<(]", kind)[0] not in [*allowed, *(["void"] if field.name != "id" else [])]:
            raise PipelineError(f"column {field.name} is {kind}, but it has to be one of {', '.join(allowed)}; cast it")
    return schema


def _check_content(names: set[str], options: WriteOptions) -> None:
    for name in ("args", "kwargs"):
        if name in names and "payload" in names:
            raise PipelineError(
                f"a job has {name}, or it has a payload (merged tasks, and queues of kind pull); keep one of them"
            )
        if name in names and options.kind == "pull":
            raise PipelineError(f"a queue of kind pull holds raw bytes: give them as payload, not {name}")
    if "score" in names and "payload" not in names:
        raise PipelineError("score is the order of a merged job's payload; give a column payload, too")
    if options.encoded and "kwargs" in names:
        raise PipelineError("with encoded=true the column args holds all arguments; leave kwargs out")
    if options.kind != "pull" and options.task is None and "payload" not in names:
        raise PipelineError("which task? Give the option task, its registered name")
