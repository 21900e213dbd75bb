"""The forms in which a result is stored, and the TaskResult that is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from traceback import TracebackException
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ..core import errors as core_errors
from ..core.codec import decode_args
from ..core.job import Job, NewJob, Undecodable, new_id
from ..core.results import LostErrors, Record
from ..core.task import registry
from . import errors
from .compat import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus, normalize_json
from .registration import FrameworkTask
from .task import like

if TYPE_CHECKING:
    AnyResult = TaskResult[..., Any]
else:
    AnyResult = TaskResult

#: under this name the facts travel in a job's context. No name of DELAYQ["CONTEXT"] can have a dot
CONTEXT: Final = "django.tasks"
#: largest stored traceback in characters; of a longer one the end is kept
TRACEBACK_CHARS: Final = 8000
_ID: Final = re.compile(r"[A-Za-z0-9_-]{20}\.[0-9a-f]{8}d?")
_MARK: Final = slice(21, 29)
_DURABLE_LENGTH: Final = 30
_PACKAGE: Final = __name__.partition(".")[0]
#: what the core calls an end that was no exception's
_NAMED: Final = {
    "Crashed": errors.Crashed,
    "UnknownTask": errors.UnknownTask,
    "JobTimeout": core_errors.JobTimeout,
}


# --- ids


def new_result_id(queue: str, *, durable: bool) -> str:
    """The id of a result and of its job: 20 random characters, and the marks by which it is found again."""
    return f"{new_id()}.{_mark_of(queue)}{'d' if durable else ''}"


def is_result_id(value: object) -> bool:
    """Whether it can be the id of a result."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def may_be_in(ident: str, queue: str) -> bool:
    """Whether the job of this id may be in this queue."""
    return ident[_MARK] == _mark_of(queue)


def is_durable(ident: str) -> bool:
    """Whether the job of this id has a row in the database until it is done."""
    return len(ident) == _DURABLE_LENGTH


def _mark_of(queue: str) -> str:
    return f"{crc32(queue.encode()):08x}"


# --- what was asked for


def plain(value: Any) -> Any:
    """``value`` as JSON gives it back; what normalize_json raises for what has no form there."""
    return json.loads(json.dumps(normalize_json(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What no job keeps by itself."""

    backend: str
    priority: int
    enqueued_at: datetime | None
    run_after: datetime | None

    def dump(self) -> dict[str, Any]:
        """As a part of a job's context."""
        return {"b": self.backend, "p": self.priority, "e": _text(self.enqueued_at), "r": _text(self.run_after)}

    @classmethod
    def load(cls, said: Mapping[str, Any]) -> Facts:
        """What :meth:`dump` made."""
        return cls(backend=said["b"], priority=said["p"], enqueued_at=_time(said["e"]), run_after=_time(said["r"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What never changes about a result."""

    task: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    facts: Facts | None

    def pack(self) -> bytes:
        """The stored form."""
        facts = self.facts.dump() if self.facts is not None else None
        said = {"t": self.task, "q": self.queue, "a": self.args, "k": self.kwargs, "f": facts}
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Head:
        """What :meth:`pack` made."""
        said = json.loads(packed)
        facts = Facts.load(said["f"]) if said["f"] is not None else None
        return cls(task=said["t"], queue=said["q"], args=said["a"], kwargs=said["k"], facts=facts)

    @classmethod
    def of_job(cls, job: Job) -> Head:
        """The same from the job itself."""
        return cls._of(job.task, job.queue, job.args, job.context)

    @classmethod
    def of_new(cls, new: NewJob, queue: str) -> Head:
        """The same from a job that is asked for."""
        options = json.loads(new.options) if new.options else {}
        return cls._of(new.task, queue, new.args, options.get("context") or {})

    @classmethod
    def _of(cls, task: str, queue: str, packed: bytes, context: Mapping[str, Any]) -> Head:
        try:
            args, kwargs = decode_args(packed) if packed else ([], {})
            args, kwargs = plain(args), plain(kwargs)
        except (Undecodable, TypeError, ValueError):
            args, kwargs = [], {}  # a worker buries it; there is nothing else to say of them
        return cls(task=task, queue=queue, args=args, kwargs=kwargs, facts=_facts(context))


def _facts(context: Mapping[str, Any]) -> Facts | None:
    """What ``enqueue()`` gave a job to carry; None for a job that was scheduled in another way."""
    said = context.get(CONTEXT)
    try:
        return Facts.load(said) if said is not None else None
    except (KeyError, TypeError, ValueError):
        return None


# --- what came of it


def error_line(error: BaseException) -> bytes:
    """The stored form of what a run raised."""
    kind = type(error)
    return pack_error(f"{kind.__module__}.{kind.__qualname__}", traceback_of(error))


def pack_error(path: str, traceback: str) -> bytes:
    """One line: JSON has none inside."""
    return json.dumps({"c": path, "t": traceback[-TRACEBACK_CHARS:]}, separators=(",", ":")).encode()


def raised_nowhere(kind: type[BaseException], message: str) -> bytes:
    """The stored form of an end that no code of the run saw."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    return pack_error(path, f"{path}: {message}\n")


#: of a run that left nothing
LOST: Final = LostErrors(
    crashed=raised_nowhere(errors.Crashed, "the process died under the task"),
    overran=raised_nowhere(core_errors.JobTimeout, "the run did not end although its time limit had passed"),
)


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it, from the first frame that is not ours on."""
    try:
        return "".join(TracebackException(type(error), error, own_part(error), compact=True).format())
    except Exception as broken:
        return f"(the traceback of {type(error).__qualname__} cannot be read: {type(broken).__name__})\n"


def own_part(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of ours that lead to the task; whole, if there is nothing behind them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        trace = trace.tb_next
    return trace or error.__traceback__


def read_errors(lines: Sequence[bytes]) -> list[TaskError]:
    """The errors of a record."""
    found = []
    for line in lines:
        said = json.loads(line)
        found.append(TaskError(exception_class_path=said["c"], traceback=said["t"]))
    return found


def core_error(job: Job) -> TaskError | None:
    """The last error that the queue itself keeps of a job."""
    try:
        said = json.loads(job.error) if job.error else None
    except ValueError:
        return None
    if not isinstance(said, dict):
        return None
    name, message, trace = (str(said.get(key, "")) for key in ("class", "message", "traceback"))
    kind = _NAMED.get(name)
    path = f"{kind.__module__}.{kind.__qualname__}" if kind else name if "." in name else f"builtins.{name}"
    head = "Traceback (most recent call last):\n" if trace else ""
    return TaskError(exception_class_path=path, traceback=f"{head}{trace}{name}: {message}\n")


def result_of(
    ident: str,
    head: Head,
    record: Record,
    *,
    status: str,
    errors: Sequence[TaskError] = (),
    finished_at: datetime | None = None,
    backend: str = "default",
) -> AnyResult:
    """A TaskResult.

    Arguments:
        errors: further ones, behind those of the record.
        finished_at: the end of it all, None = not yet.
        backend: alias of a job that was not made by ``enqueue()``.

    Raises:
        TaskResultDoesNotExist: this process has no such task.
    """
    found = registry.get(head.task)
    if not isinstance(found, FrameworkTask):
        raise TaskResultDoesNotExist(f"{ident}: no Task named {head.task!r} is registered in this process")
    facts = head.facts or Facts(backend=backend, priority=found.task.priority, enqueued_at=None, run_after=None)
    task = like(
        found.task, priority=facts.priority, backend=facts.backend, queue_name=head.queue, run_after=facts.run_after
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
    """Set what is frozen for everybody else."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _text(moment: datetime | None) -> str:
    return moment.isoformat() if moment is not None else ""


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
