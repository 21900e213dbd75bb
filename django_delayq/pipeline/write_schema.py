"""Columns for writing jobs, validated before anything runs."""

from __future__ import annotations

from typing import Final

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

from ..core.inputs import short, suggest
from .errors import PipelineError
from .write_options import WriteOptions

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
    "on_conflict": ((StringType,), "a string"),
    "task": ((StringType,), "a string"),
    "queue": ((StringType,), "a string"),
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
    if options.queue is None and "queue" not in names:
        raise PipelineError("which queue? Give the option queue, or a column queue")
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
    if options.kind != "pull" and options.task is None and not {"task", "payload"} & names:
        raise PipelineError("which task? Give the option task, its registered name, or a column task")


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
