"""Options and columns for writing jobs, validated before anything runs."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from ..core.codec import MAX_BYTES, codec_at
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, check_task_name, short, suggest
from ..core.job import DEFAULT_PRIORITY, RAW
from ..core.options import DEFAULT_MAX_PAYLOADS, OPTIONS, Check, stored_members
from ..core.records.frames import CHUNK
from ..core.records.keys import MAX_SHARDS
from ..core.times import span_ms_of
from .errors import PipelineError
from .options import MAY_CHANGE, SourceOptions, choice, flag, named, number, option, parse_json, text, whole

FAIL: Final = "fail"
QUARANTINE: Final = "quarantine"
NOW: Final = "now"
_MOST_RUN_ID: Final = 135
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
    #: a JSON object
    context: str | None = option("context", _context)
    #: args and payload are bytes that are stored as they are
    encoded: bool = option("encoded", flag, False)
    #: dotted path of the codec that stores arguments and payloads; None = JSON
    codec: str | None = option("codec", _codec)
    allow_far: bool = option("allowFar", flag, False)
    max_args_bytes: int = option("maxArgsBytes", whole(1, 1 << 30), MAX_BYTES)
    run_id: str | None = option("runId", _run_id, may_change=True)
    #: further values that must not change when the bulk load is resumed
    source: tuple[tuple[str, str], ...] = option("source", _source, (), may_change=True)
    #: close the bulk load when everything is written
    close: bool = option("close", flag, True, may_change=True)
    chunk: int = option("chunk", whole(1, CHUNK), CHUNK, may_change=True)
    #: jobs per second, over all tasks together
    rate_limit: float | None = option("rateLimit", number(0.001, 1e9), may_change=True)
    max_memory: float = option("maxMemory", number(0, 1), 0.85, may_change=True)
    #: seconds
    patience: float = option("patience", number(0, 86_400 * 365, "seconds"), 600.0, may_change=True)
    on_error: str = option("onError", choice(FAIL, QUARANTINE), FAIL, may_change=True)
    quarantine: str | None = option("quarantine", text, may_change=True)
    #: now: a row whose due time is null is due at once; fail: it is invalid
    null_due: str = option("nullDue", choice(NOW, FAIL), NOW)

    def __post_init__(self) -> None:
        if not self.queue:
            raise Misconfigured("which queue? Give the option queue")
        if (self.on_error == QUARANTINE) != (self.quarantine is not None):
            raise Misconfigured(
                "a quarantine of invalid rows needs both onError=quarantine and quarantine=FOLDER; give both of them, "
                "or none, then an invalid row ends the write"
            )
        if self.kind == "pull" and self.task not in (None, RAW):
            raise Misconfigured("a queue of kind pull holds raw bytes and has no tasks; leave the option task out")

    def job_options(self) -> dict[str, Any]:
        """Return the options that every job of the write carries, as they are stored."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.context is not None:
            given["context"] = json.loads(self.context)
        stored = stored_members(given)
        if self.expires is not None:
            stored["expires_in_ms"] = span_ms_of("expires", self.expires, allow_far=True)
        return stored

    def identity(self) -> dict[str, str]:
        """Return the non-default options that determine the chunks, for storage with the bulk load."""
        given = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            field.name: str(value)
            for field, value in given.items()
            if not field.metadata[MAY_CHANGE] and value != field.default
        }


_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_NUMBERS: Final = (*_INTEGERS, FloatType, DoubleType, DecimalType)
_RAW: Final = (StringType, BinaryType)
_OBJECT: Final = (StringType, StructType, MapType), "a struct, a map or the text of a JSON object"
_TIMESTAMP: Final = "a timestamp (with a zone: not a date, which has no hour, nor timestamp_ntz)"
#: column -> accepted types, and their description; a payload may be of any type
_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "id": ((StringType, *_INTEGERS), "a string or a whole number"),
    "due": ((TimestampType,), _TIMESTAMP),
    "due_ms": (_INTEGERS, "Unix milliseconds, a whole number"),
    "args": ((ArrayType, StructType, StringType, BinaryType), "an array, a struct or the text of a JSON array"),
    "kwargs": _OBJECT,
    "payload": ((), ""),
    "score": ((StringType, *_NUMBERS), "a number or the text of one"),
    "priority": (_INTEGERS, "a whole number"),
    "context": _OBJECT,
    "group": ((StringType,), "a string"),
    "max_attempts": (_INTEGERS, "a whole number"),
    "expires": ((TimestampType,), "a timestamp"),
    "timeout": (_NUMBERS, "a number of seconds"),
    "ttr": (_NUMBERS, "a number of seconds"),
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
        wrong = _wrong_type(field.name, field.dataType, options)
        if wrong:
            raise PipelineError(f"column {field.name} is {field.dataType.simpleString()}, but it has to be {wrong}")
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


def _wrong_type(name: str, kind: DataType, options: WriteOptions) -> str:
    """Return a description of the required type of a column; empty if the type is right."""
    allowed, text = _TYPES.get(name, ((), ""))
    if name in ("args", "payload") and options.encoded:
        allowed, text = _RAW, "binary, because encoded=true declares encoded values"
    if name == "payload" and options.kind == "pull":
        allowed, text = _RAW, "binary, because a queue of kind pull holds raw bytes"
    if isinstance(kind, NullType):
        return text if name == "id" else ""
    if allowed and not isinstance(kind, allowed):
        return text
    return _without_form(kind)


def _without_form(kind: DataType) -> str:
    """Return a description of the restriction that a type violates; empty if its values can be stored."""
    if isinstance(kind, (VariantType, CalendarIntervalType, YearMonthIntervalType)):
        return "of types that have a form in JSON; make it a string with cast() or to_json()"
    if isinstance(kind, ArrayType):
        return _without_form(kind.elementType)
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            return "without maps whose keys are no strings, because JSON has no others; cast the keys"
        return _without_form(kind.valueType)
    if isinstance(kind, StructType):
        if len(set(kind.fieldNames())) != len(kind.fields):
            return "without structs that have several fields of one name"
        return next((restriction for field in kind.fields if (restriction := _without_form(field.dataType))), "")
    return ""
