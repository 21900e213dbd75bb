"""Options and columns of writing jobs, validated before anything runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
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

from ..core import codec
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_queue_name, check_task_name, short, suggest
from ..core.job import DEFAULT_PRIORITY, PRIORITIES, RAW
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
from .errors import PipelineError
from .redis_door import check_names

#: option names, without those of :mod:`.redis_door`
NAMES: Final = (
    "queue",
    "task",
    "kind",
    "shards",
    "onConflict",
    "duePolicy",
    "scorePolicy",
    "payloads",
    "maxPayloads",
    "priority",
    "maxAttempts",
    "expires",
    "timeout",
    "context",
    "encoded",
    "allowFar",
    "maxArgsBytes",
    "runId",
    "source",
    "close",
    "chunk",
    "rateLimit",
    "maxMemory",
    "patience",
    "onError",
    "quarantine",
    "nullDue",
)
#: option that Spark adds for a stream
_OF_SPARK: Final = "checkpointLocation"
COLUMNS: Final = (
    "id",
    "due",
    "due_ms",
    "args",
    "kwargs",
    "payload",
    "score",
    "priority",
    "context",
    "on_conflict",
    "task",
    "queue",
    "max_attempts",
    "expires",
    "timeout",
)
KINDS: Final = ("python", "pull")
FAIL: Final = "fail"
QUARANTINE: Final = "quarantine"
NOW: Final = "now"
#: options that do not affect the bytes of a chunk, so they may change when a bulk load is resumed
_NO_PART: Final = (
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
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_NUMBERS: Final = (*_INTEGERS, FloatType, DoubleType, DecimalType)
_TRUTH: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options for writing jobs. Times are seconds; None = the default of the task, or of ``schedule()``."""

    queue: str | None = None
    task: str | None = None
    #: kind of a queue that this bulk load creates
    kind: str | None = None
    shards: int | None = None
    #: None = ignore for plain jobs, merge for those with a payload
    on_conflict: str | None = None
    due_policy: str | None = None
    score_policy: str = "min"
    payloads: str = "all"
    max_payloads: int = DEFAULT_MAX_PAYLOADS
    priority: int = DEFAULT_PRIORITY
    max_attempts: int | None = None
    #: seconds after the due time
    expires: float | None = None
    timeout: float | None = None
    #: a JSON object
    context: str | None = None
    #: args and payload are bytes that are stored as they are
    encoded: bool = False
    allow_far: bool = False
    max_args_bytes: int = codec.MAX_BYTES
    run_id: str | None = None
    #: further values that must not change when the bulk load is resumed
    source: tuple[tuple[str, str], ...] = ()
    #: close the bulk load when everything is written
    close: bool = True
    chunk: int = CHUNK
    #: jobs per second, over all tasks together
    rate_limit: float | None = None
    max_memory: float = 0.85
    patience: float = 600.0
    on_error: str = FAIL
    quarantine: str | None = None
    #: now: a row whose due time is null is due at once; fail: it is invalid
    null_due: str = NOW

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse the options as Spark passes them.

        Raises:
            Misconfigured: an option is unknown or invalid; the message says what to write.
        """
        check_names(options, (*NAMES, _OF_SPARK))
        read = _Reader(options)
        found = cls(
            queue=read.checked("queue", check_queue_name),
            task=read.checked("task", check_task_name),
            kind=read.choice("kind", KINDS),
            shards=read.whole("shards", 1, MAX_SHARDS),
            on_conflict=read.choice("onConflict", CONFLICTS),
            due_policy=read.choice("duePolicy", DUE_POLICIES),
            score_policy=read.choice("scorePolicy", SCORE_POLICIES) or "min",
            payloads=read.choice("payloads", PAYLOAD_POLICIES) or "all",
            max_payloads=read.whole("maxPayloads", 1, MAX_PAYLOADS) or DEFAULT_MAX_PAYLOADS,
            priority=read.whole("priority", 0, PRIORITIES - 1, DEFAULT_PRIORITY) or 0,
            max_attempts=read.whole("maxAttempts", 1, 1_000_000),
            expires=read.number("expires", 0.001, 86_400 * 3653),
            timeout=read.number("timeout", 0.001, 86_400 * 3653),
            context=read.checked("context", _context),
            encoded=read.flag("encoded", default=False),
            allow_far=read.flag("allowFar", default=False),
            max_args_bytes=read.whole("maxArgsBytes", 1, 1 << 30) or codec.MAX_BYTES,
            run_id=read.checked("runId", _run_id),
            source=read.checked("source", _source) or (),
            close=read.flag("close", default=True),
            chunk=read.whole("chunk", 1, CHUNK) or CHUNK,
            rate_limit=read.number("rateLimit", 0.001, 1e9),
            max_memory=_or(read.number("maxMemory", 0, 1), 0.85),
            patience=_or(read.number("patience", 0, 86_400 * 365), 600.0),
            on_error=read.choice("onError", (FAIL, QUARANTINE)) or FAIL,
            quarantine=read.text("quarantine"),
            null_due=read.choice("nullDue", (NOW, FAIL)) or NOW,
        )
        found._check()
        return found

    def _check(self) -> None:
        if (self.on_error == QUARANTINE) != (self.quarantine is not None):
            raise Misconfigured(
                "rows that cannot be written are put aside with both onError=quarantine and quarantine=FOLDER; give "
                "both of them, or none, then such a row ends the write"
            )
        if self.kind == "pull" and self.task not in (None, RAW):
            raise Misconfigured("a queue of kind pull holds raw bytes and has no tasks; leave the option task out")

    def told(self) -> dict[str, str]:
        """Return the non-default options that determine the chunks, for storage with the bulk load."""
        default = WriteOptions()
        names = [name for name in self.__slots__ if name not in _NO_PART]
        return {name: str(getattr(self, name)) for name in names if getattr(self, name) != getattr(default, name)}


def check_schema(schema: StructType, options: WriteOptions) -> StructType:
    """Return the schema of the jobs with the column names in lower case.

    Raises:
        PipelineError: jobs cannot be built from these columns; the message names them and the known ones.
    """
    for name in schema.fieldNames():
        if name.lower() not in COLUMNS:
            raise PipelineError(
                f"jobs have no column {short(name)}.{suggest(name, COLUMNS)} Known are: "
                f"{', '.join(COLUMNS)}. Put what the task needs into args or kwargs, and leave the "
                "others out with select()"
            )
    schema = StructType([StructField(one.name.lower(), one.dataType, one.nullable) for one in schema.fields])
    names = schema.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(f"there are several columns {name}; leave all but one out")
    if "id" not in names:
        raise PipelineError(
            "there is no column id: without one a second try would write all jobs again; make one of "
            "what a row is known by, like concat('order-', pk)"
        )
    if "due" in names and "due_ms" in names:
        raise PipelineError("due and due_ms are two ways to say when a job is due; keep one of them")
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
    if options.kind == "pull" and not {"task"} & names:
        return
    if options.task is None and "task" not in names and "payload" not in names:
        raise PipelineError("which task? Give the option task, its registered name, or a column task")


def _wrong_type(name: str, kind: DataType, options: WriteOptions) -> str:
    """Return a description of the required type of a column; empty if the type is right."""
    wanted: dict[str, tuple[tuple[type[DataType], ...], str]] = {
        "id": ((StringType, *_INTEGERS), "a string or a whole number"),
        "due": ((TimestampType,), "a timestamp (with a zone: not a date, whose hour nobody knows, nor timestamp_ntz)"),
        "due_ms": (_INTEGERS, "Unix milliseconds, a whole number"),
        "score": ((StringType, *_NUMBERS), "a number or the text of one"),
        "priority": (_INTEGERS, "a whole number"),
        "on_conflict": ((StringType,), "a string"),
        "task": ((StringType,), "a string"),
        "queue": ((StringType,), "a string"),
        "max_attempts": (_INTEGERS, "a whole number"),
        "expires": ((TimestampType,), "a timestamp"),
        "timeout": (_NUMBERS, "a number of seconds"),
        "context": ((StringType, StructType, MapType), "a struct, a map or the text of a JSON object"),
        "kwargs": ((StringType, StructType, MapType), "a struct, a map or the text of a JSON object"),
        "args": ((ArrayType, StructType, StringType, BinaryType), "an array, a struct or the text of a JSON array"),
    }
    if name in ("args", "payload") and options.encoded:
        wanted[name] = (StringType, BinaryType), "binary, because encoded=true says that it is encoded already"
    if name == "payload" and options.kind == "pull":
        wanted[name] = (StringType, BinaryType), "binary, because a queue of kind pull holds raw bytes"
    allowed, text = wanted.get(name, ((), ""))
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
            return "without maps whose keys are no strings, which JSON has not; cast the keys"
        return _without_form(kind.valueType)
    if isinstance(kind, StructType):
        if len(set(kind.fieldNames())) != len(kind.fields):
            return "without structs that have several fields of one name"
        return next((found for field in kind.fields if (found := _without_form(field.dataType))), "")
    return ""


class _Reader:
    """Reader of single options; its errors name the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def text(self, name: str) -> str | None:
        given = self._options.get(name)
        if given is None:
            return None
        if not given.strip():
            raise Misconfigured(f"the option {name} is empty; give a value, or leave it out")
        return given.strip()

    def checked(self, name: str, check: Any) -> Any:
        given = self.text(name)
        try:
            return None if given is None else check(given)
        except InvalidJob as error:
            raise Misconfigured(f"option {name}: {error}") from None

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        return self.checked(name, lambda given: check_choice(name, given.lower(), choices))  # type: ignore[no-any-return]

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        given = self.text(name)
        if given is None:
            return default
        if not re.fullmatch(r"\d{1,12}", given) or not low <= int(given) <= high:
            raise Misconfigured(f"{name} is {short(given)}; give a whole number from {low} to {high}")
        return int(given)

    def number(self, name: str, low: float, high: float) -> float | None:
        given = self.text(name)
        if given is None:
            return None
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise Misconfigured(f"{name} is {short(given)}; give a number from {low:g} to {high:g}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        given = self.text(name)
        if given is None:
            return default
        truth = _TRUTH.get(given.lower())
        if truth is None:
            raise Misconfigured(f"{name} is {short(given)}; use true or false")
        return truth


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _run_id(given: str) -> str:
    # Leave room for the suffix with the queue of a row.
    if len(given.encode(errors="surrogateescape")) > MAX_ID_BYTES - 65 or any(
        character.isspace() or not character.isprintable() for character in given
    ):
        raise InvalidJob(f"a run id has 1 to {MAX_ID_BYTES - 65} characters, none of them a space, not {short(given)}")
    return given


def _context(given: str) -> str:
    try:
        value = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f'it is no JSON ({error}); give an object like {{"trace": "abc"}}') from None
    if not isinstance(value, dict):
        raise InvalidJob('it has to be a JSON object like {"trace": "abc"}')
    return given


def _source(given: str) -> tuple[tuple[str, str], ...]:
    try:
        value = json.loads(given)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidJob("it has to be a JSON object of texts")
    return tuple(sorted((str(name), str(text)) for name, text in value.items()))
