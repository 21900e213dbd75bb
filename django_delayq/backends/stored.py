"""Stored forms of a result, and the TaskResult built from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from traceback import TracebackException
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ..core import errors as core_errors
from ..core.codec import decode_args
from ..core.job import Job, NewJob, Undecodable, new_id
from ..core.task import registry
from ..worker.record import printed_traceback
from . import errors
from .compat import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus, normalize_json
from .registration import FrameworkTask
from .result_records import LostErrors, ResultRecord
from .task import like

if TYPE_CHECKING:
    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult

#: name of the facts in a job's context. No name in DELAYQ["CONTEXT"] can contain a dot
CONTEXT: Final = "django.tasks"
#: maximum size of a stored traceback in characters; of a longer one the end is kept
TRACEBACK_CHARS: Final = 8000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{20}\.[0-9a-f]{8}d?")
_MARK: Final = slice(21, 29)
_DURABLE_LENGTH: Final = 30
#: names that the core gives to ends without an exception
_CORE_ERRORS: Final = {
    "Crashed": errors.Crashed,
    "UnknownTask": errors.UnknownTask,
    "JobTimeout": core_errors.JobTimeout,
}


# --- ids


def new_result_id(queue: str, *, durable: bool) -> str:
    """Return an id for a result and its job: 20 random characters, and marks for finding its queue and its row."""
    return f"{new_id()}.{_mark_of(queue)}{'d' if durable else ''}"


def is_result_id(value: object) -> bool:
    """Return True if the value can be the id of a result."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def may_be_in(ident: str, queue: str) -> bool:
    """Return True if the job of this id may be in this queue."""
    return ident[_MARK] == _mark_of(queue)


def is_durable(ident: str) -> bool:
    """Return True if the job of this id has a row in the database until it is done."""
    return len(ident) == _DURABLE_LENGTH


def _mark_of(queue: str) -> str:
    return f"{crc32(queue.encode()):08x}"


# --- the request


def plain(value: Any) -> Any:
    """Return ``value`` as JSON returns it. Raise as normalize_json does for a value without a form in JSON."""
    return json.loads(json.dumps(normalize_json(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of an ``enqueue()`` that a job does not store by itself."""

    backend: str
    priority: int
    enqueued_at: datetime | None
    run_after: datetime | None

    def dump(self) -> dict[str, Any]:
        """Return the form for a job's context."""
        return {"b": self.backend, "p": self.priority, "e": _text(self.enqueued_at), "r": _text(self.run_after)}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Facts:
        """Return the facts from the output of :meth:`dump`."""
        return cls(backend=data["b"], priority=data["p"], enqueued_at=_time(data["e"]), run_after=_time(data["r"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Part of a result that is the same in every attempt: task, queue and arguments."""

    task: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    facts: Facts | None

    def pack(self) -> bytes:
        """Return the JSON that is stored with the result."""
        facts = self.facts.dump() if self.facts is not None else None
        data = {"t": self.task, "q": self.queue, "a": self.args, "k": self.kwargs, "f": facts}
        return json.dumps(data, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Head:
        """Return the head from the output of :meth:`pack`."""
        data = json.loads(packed)
        facts = Facts.load(data["f"]) if data["f"] is not None else None
        return cls(task=data["t"], queue=data["q"], args=data["a"], kwargs=data["k"], facts=facts)

    @classmethod
    def of_job(cls, job: Job) -> Head:
        """Return the head of a job."""
        return cls._of(job.task, job.queue, job.args, job.context)

    @classmethod
    def of_new(cls, new: NewJob, queue: str) -> Head:
        """Return the head of a job that is to be scheduled."""
        options = json.loads(new.options) if new.options else {}
        return cls._of(new.task, queue, new.args, options.get("context") or {})

    @classmethod
    def _of(cls, task: str, queue: str, packed: bytes, context: Mapping[str, Any]) -> Head:
        try:
            args, kwargs = decode_args(packed) if packed else ([], {})
            args, kwargs = plain(args), plain(kwargs)
        except (Undecodable, TypeError, ValueError):
            args, kwargs = [], {}  # a worker will bury the job; its arguments cannot be read
        return cls(task=task, queue=queue, args=args, kwargs=kwargs, facts=_facts(context))


def _facts(context: Mapping[str, Any]) -> Facts | None:
    """Return the facts that ``enqueue()`` added to a job; None for a job that was scheduled in another way."""
    data = context.get(CONTEXT)
    try:
        return Facts.load(data) if data is not None else None
    except (KeyError, TypeError, ValueError):
        return None


# --- the outcome


def error_line(error: BaseException) -> bytes:
    """Return the stored form of an attempt's exception."""
    kind = type(error)
    return pack_error(f"{kind.__module__}.{kind.__qualname__}", traceback_of(error))


def pack_error(path: str, traceback: str) -> bytes:
    """Return an error as one line, because JSON escapes line breaks."""
    return json.dumps({"c": path, "t": traceback[-TRACEBACK_CHARS:]}, separators=(",", ":")).encode()


def external_error(kind: type[BaseException], message: str) -> bytes:
    """Return the stored form of an end that the attempt's own code did not see."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    return pack_error(path, f"{path}: {message}\n")


#: errors of an attempt that stored no end
LOST: Final = LostErrors(
    crashed=external_error(errors.Crashed, "the process died while running the task"),
    overran=external_error(core_errors.JobTimeout, "the attempt did not end within its time limit"),
)


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it."""
    try:
        return "".join(TracebackException.from_exception(error, compact=True).format())
    except Exception as broken:
        return f"(the traceback of {type(error).__qualname__} cannot be read: {type(broken).__name__})\n"


def read_errors(lines: Sequence[bytes]) -> list[TaskError]:
    """Return the errors of a record."""
    entries = map(json.loads, lines)
    return [TaskError(exception_class_path=entry["c"], traceback=entry["t"]) for entry in entries]


def core_error(job: Job) -> TaskError | None:
    """Return the last error that the queue itself keeps of a job."""
    try:
        data = json.loads(job.error) if job.error else None
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    name, message, trace = (str(data.get(key, "")) for key in ("class", "message", "traceback"))
    kind = _CORE_ERRORS.get(name)
    path = f"{kind.__module__}.{kind.__qualname__}" if kind else name if "." in name else f"builtins.{name}"
    return TaskError(exception_class_path=path, traceback=f"{printed_traceback(trace, f'{name}: {message}')}\n")


def result_of(
    ident: str,
    head: Head,
    record: ResultRecord,
    *,
    status: str,
    errors: Sequence[TaskError] = (),
    finished_at: datetime | None = None,
    backend: str = "default",
) -> AnyResult:
    """Return a TaskResult.

    Args:
        errors: further errors, after those of the record.
        finished_at: the final end, None = not yet.
        backend: alias for a job that was not created by ``enqueue()``.

    Raises:
        TaskResultDoesNotExist: this process has no such task.
    """
    registered = registry.get(head.task)
    if not isinstance(registered, FrameworkTask):
        raise TaskResultDoesNotExist(f"{ident}: no Task named {head.task!r} is registered in this process")
    facts = head.facts or Facts(backend=backend, priority=registered.task.priority, enqueued_at=None, run_after=None)
    task = like(
        registered.task,
        priority=facts.priority,
        backend=facts.backend,
        queue_name=head.queue,
        run_after=facts.run_after,
    )
    result: AnyResult = TaskResult(
        task=task,
        id=ident,
        status=TaskResultStatus(status),
        enqueued_at=facts.enqueued_at,
        started_at=_time(record.first),
        finished_at=finished_at,
        last_attempted_at=_time(record.last),
        args=head.args,
        kwargs=head.kwargs,
        backend=facts.backend,
        errors=[*read_errors(record.errors), *errors],
        worker_ids=list(record.workers),
    )
    if status == TaskResultStatus.SUCCESSFUL and record.value is not None:
        change(result, _return_value=json.loads(record.value))
    return result


def change(result: AnyResult, **values: Any) -> None:
    """Set attributes of a result, which is frozen for all other code."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _text(moment: datetime | None) -> str:
    return moment.isoformat() if moment is not None else ""


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
