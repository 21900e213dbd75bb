"""Results of Tasks: a record for each, and the ``TaskResult`` that is read from it.

The record is written when the job is stored, and at each start and end of an attempt, before the job itself is settled.
It expires, and a job never depends on it. A final record is the result. Until then the job shows if it waits, runs or
lies in the morgue, and the row of a durable job that Redis does not have (yet, or any more) shows that it will come.

The value of the key ``<prefix>:result:<id>`` is a map in MessagePack; see ``lua/result.lua``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from traceback import TracebackException
from typing import TYPE_CHECKING, Any, Final

import msgpack
from django.conf import settings

from .. import connections
from ..core.codec import decode_args
from ..core.deployment import Deployment
from ..core.job import Job, new_id
from ..core.records.frames import pack
from ..core.redis.scripts import clear_errors
from ..core.task import registry
from ..outbox import durability, rows
from ..outbox.rows import unpack_job
from ..worker.record import printed_traceback
from . import errors as causes
from .compat import (
    AnyResult,
    AnyTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_backends,
)
from .registration import FrameworkTask

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.job_view import JobView
    from ..models import OutboxJob

READY: Final = TaskResultStatus.READY
RUNNING: Final = TaskResultStatus.RUNNING
FAILED: Final = TaskResultStatus.FAILED
SUCCESSFUL: Final = TaskResultStatus.SUCCESSFUL
#: name of the facts in a job's context. No name in DELAYQ["CONTEXT"] can contain a dot
CONTEXT: Final = "django.tasks"
#: facts of an ``enqueue()`` that a job does not store by itself; its context has their values in this order
FACTS: Final = ("backend", "priority", "enqueued_at", "run_after")
#: maximum size of a stored traceback in characters; of a longer one the end is kept
TRACEBACK_CHARS: Final = 8000
_DURABLE: Final = ".d"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{20}(\.d)?")
_GONE: Final = TaskError(
    exception_class_path=f"{causes.Gone.__module__}.Gone",
    traceback="Gone: it was cancelled, discarded or deleted, or it expired, before an attempt ended\n",
)


def new_result_id(*, durable: bool) -> str:
    """Return an id for a result and its job: 20 random characters, and a mark if a row in the database has the job."""
    return f"{new_id()}{_DURABLE if durable else ''}"


# -- records -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a result.

    Attributes:
        head: the request, in JSON (see :func:`request_of`).
        state: state of the last attempt that wrote.
        token: fencing token of that attempt; 0 = none began.
        ended: token of the last attempt whose end was written.
        first, last, end: moments of the first start, the last start and the last end, in ISO format.
        value: the return value, in JSON.
        workers: workers that began an attempt, the latest last (at most 1,000).
        errors: errors of attempts, in JSON, the latest last (at most 20).
    """

    head: str = ""
    state: str = READY.value
    token: int = 0
    ended: int = 0
    first: str = ""
    last: str = ""
    end: str = ""
    value: str = "null"
    workers: Sequence[str] = ()
    errors: Sequence[str] = ()

    @property
    def request(self) -> dict[str, Any]:
        """Return the request; see :func:`request_of`."""
        request: dict[str, Any] = json.loads(self.head)
        return request

    @property
    def final(self) -> bool:
        """True if no attempt is expected after the last one that wrote."""
        return self.state in (FAILED, SUCCESSFUL)


def key_of(deployment: Deployment, ident: str) -> bytes:
    """Return the Redis key of the record of a job id."""
    return f"{deployment.prefix}:result:{ident}".encode()


def read(deployment: Deployment, ident: str) -> Record | None:
    """Return the record of a job id; None if there is none.

    Raises:
        QueueUnavailable: Redis is unreachable.
    """
    with clear_errors():
        return _record(deployment.client.get(key_of(deployment, ident)))


def write(
    deployment: Deployment,
    ident: str,
    verb: str,
    ttl_ms: int,
    fields: Mapping[str, str],
    *,
    token: int = 0,
    worker: str = "",
    error: str = "",
) -> Record | None:
    """Write one step in the life of a job. The same step may be written again, and each may be the first.

    Args:
        deployment: has the record.
        ident: id of the job.
        verb: "create" (of a waiting job, unless there is a record), "start" or "end" (of an attempt).
        ttl_ms: time that the record is kept from now on.
        fields: new values by field; ``head`` and ``first`` keep the value that they have.
        token: of the attempt.
        worker: of the attempt, once it began.
        error: of the attempt, at its end.

    Returns:
        The record; None if it is there already, or if a later attempt has begun so that this one does not count.

    Raises:
        QueueUnavailable: Redis is unreachable.
    """
    call = pack({"token": token, "worker": worker, "error": error, "fields": fields})
    return _record(deployment.scripts.call("result", (key_of(deployment, ident),), verb, max(1, ttl_ms), call))


def _record(stored: bytes | None) -> Record | None:
    return Record(**msgpack.unpackb(stored, unicode_errors="replace")) if stored else None


# -- requests ----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return ``value`` as JSON returns it. Raise as normalize_json does for a value without a form in JSON."""
    return json.loads(json.dumps(normalize_json(value)))


def request_of(job: Job) -> dict[str, Any]:
    """Return the parts of a result that are the same in every attempt: task, queue, args, kwargs and :data:`FACTS`.

    The facts are missing if the job was not created by ``enqueue()``.
    """
    return _request(job.task, job.queue, job.args, job.context)


def _request(task: str, queue: str, packed: bytes, context: Mapping[str, Any]) -> dict[str, Any]:
    try:
        args, kwargs = map(plain, decode_args(packed) if packed else ([], {}))
    except (TypeError, ValueError):
        args, kwargs = [], {}  # a worker will bury the job; its arguments cannot be read
    facts = dict(zip(FACTS, context.get(CONTEXT, ()), strict=False))
    return {**facts, "task": task, "queue": queue, "args": args, "kwargs": kwargs}


# -- errors ------------------------------------------------------------------------------------------------------------


def error_line(error: BaseException) -> str:
    """Return the stored form of an attempt's exception."""
    kind = type(error)
    try:
        trace = "".join(TracebackException.from_exception(error, compact=True).format())
    except Exception as broken:
        trace = f"(the traceback of {kind.__qualname__} cannot be read: {type(broken).__name__})\n"
    path = f"{kind.__module__}.{kind.__qualname__}"
    return json.dumps({"exception_class_path": path, "traceback": trace[-TRACEBACK_CHARS:]})


def _errors_of(job: Job) -> list[TaskError]:
    """Return the last error that the queue itself keeps of a job."""
    try:
        name, message, trace = (str(json.loads(job.error)[key]) for key in ("class", "message", "traceback"))
    except (ValueError, LookupError, TypeError):
        return []
    if name in causes.__all__:  # the core gives these names to ends without an exception
        path = f"{getattr(causes, name).__module__}.{name}"
    else:
        path = name if "." in name else f"builtins.{name}"
    return [TaskError(exception_class_path=path, traceback=f"{printed_traceback(trace, f'{name}: {message}')}\n")]


# -- results -----------------------------------------------------------------------------------------------------------


def find(ident: object) -> AnyResult:
    """Return the result of this id.

    Raises:
        TaskResultDoesNotExist: it was never enqueued (or its transaction has not committed), or it has expired.
        QueueUnavailable: Redis is unreachable.
    """
    if not isinstance(ident, str) or not _ID.fullmatch(ident):
        raise TaskResultDoesNotExist(str(ident))
    broker = connections.broker()
    record, view = read(broker, ident), None
    if record is None or not record.final:
        view = _find_job(broker, ident, record)
        # It may have ended between the two reads: a worker writes the record before the job is deleted.
        record = record if view is not None else read(broker, ident) or record
    if record is not None and record.final:
        return result_of(ident, record.request, record)
    return _of_row(ident, record) if view is None else _of_job(ident, record, view)


def _find_job(broker: DjangoBroker, ident: str, record: Record | None) -> JobView | None:
    """Return the job; without a record, which names its queue, all queues are asked."""
    queues = [record.request["queue"]] if record is not None else broker.queue_names()
    for queue in queues:
        view = broker.inspector.get(queue, ident)
        # Without a record only its own context shows that enqueue() created it.
        if view is not None and (record is not None or CONTEXT in view.job.context):
            return view
    return None


def _of_job(ident: str, record: Record | None, view: JobView) -> AnyResult:
    """Return the result of a job that has no final record."""
    job = view.job
    request = record.request if record is not None else request_of(job)
    if view.state == "morgue":
        buried = None
        if view.buried_ms is not None:
            buried = datetime.fromtimestamp(view.buried_ms / 1000, UTC if settings.USE_TZ else None)
        return result_of(ident, request, record, FAILED, errors=_errors_of(job), finished_at=buried)
    if view.state != "reserved":
        return result_of(ident, request, record, READY)
    if record is None:
        return result_of(ident, request, record, RUNNING)
    # The attempt that holds the job may not have begun, and one that wrote its end may not be settled.
    return result_of(ident, request, record, record.state if record.token == job.token else READY)


def _of_row(ident: str, record: Record | None) -> AnyResult:
    """Return the result of a job that Redis does not have."""
    row = _find_row(ident) if ident.endswith(_DURABLE) else None
    if record is not None:
        request = record.request
    elif row is not None:
        job = unpack_job(bytes(row.record))
        request = _request(job.task, row.queue, job.args, json.loads(job.options or b"{}").get("context", {}))
    else:
        raise TaskResultDoesNotExist(ident)
    if row is not None and row.state in (row.State.UNSENT, row.State.SENT, row.State.MOVED):
        return result_of(ident, request, record, READY)
    return result_of(ident, request, record, FAILED, errors=[_GONE])


def _find_row(ident: str) -> OutboxJob | None:
    """Return the row that keeps a durable job until it is done."""
    for alias in durability.outboxes("python"):
        if row := rows.table(alias).filter(job_id=ident).order_by("-pk").first():
            return row
    return None


def result_of(
    ident: str,
    request: Mapping[str, Any],
    record: Record | None = None,
    status: str | None = None,
    *,
    errors: Sequence[TaskError] = (),
    finished_at: datetime | None = None,
) -> AnyResult:
    """Return a TaskResult.

    Args:
        ident: id of the job.
        request: see :func:`request_of`.
        record: None = the job has none.
        status: default: that of the record.
        errors: further errors, after those of the record.
        finished_at: the final end; default: that of the record.

    Raises:
        TaskResultDoesNotExist: this process has no such task.
    """
    record = record or Record()
    registered = registry.get(request["task"])
    if not isinstance(registered, FrameworkTask):
        raise TaskResultDoesNotExist(f"{ident}: no Task named {request['task']!r} is registered in this process")
    backend = request.get("backend")
    if backend not in task_backends.settings:  # the alias was removed; refresh() needs one that exists
        backend = registered.task.backend
    task = like(
        registered.task,
        priority=request.get("priority", registered.task.priority),
        backend=backend,
        queue_name=request["queue"],
        run_after=_time(request.get("run_after")),
    )
    found = TaskResultStatus(status or record.state)
    result: AnyResult = TaskResult(
        task=task,
        id=ident,
        status=found,
        enqueued_at=_time(request.get("enqueued_at")),
        started_at=_time(record.first),
        finished_at=finished_at or (_time(record.end) if found in (FAILED, SUCCESSFUL) else None),
        last_attempted_at=_time(record.last),
        args=request["args"],
        kwargs=request["kwargs"],
        backend=backend,
        errors=[*(TaskError(**json.loads(line)) for line in record.errors), *errors],
        worker_ids=list(record.workers),
    )
    if found == SUCCESSFUL:
        object.__setattr__(result, "_return_value", json.loads(record.value))
    return result


def like(task: AnyTask, **changes: Any) -> AnyTask:
    """Return a copy of this task with ``changes``, not validated, for values stored under earlier settings."""
    copy = object.__new__(type(task))
    for name in type(task).__dataclass_fields__:
        object.__setattr__(copy, name, changes.get(name, getattr(task, name)))
    return copy


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
