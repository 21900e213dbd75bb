"""Lookup of results: the job itself has the current state, the record has what the job does not keep."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from django.conf import settings

from .. import connections
from ..core.job_view import JobView
from ..outbox import durability, rows
from ..outbox.rows import unpack_job
from ..settings.conf import conf
from .compat import TaskError, TaskResultDoesNotExist
from .errors import Gone
from .result_records import FAILED, READY, RUNNING, ResultRecord, Results
from .stored import (
    LOST,
    Head,
    core_error,
    external_error,
    is_durable,
    is_result_id,
    may_be_in,
    read_errors,
    result_of,
)

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..models import OutboxJob
    from .stored import AnyResult

_GONE: Final = external_error(Gone, "it was cancelled, discarded or deleted, or it expired, before an attempt ended")


def find(ident: object) -> AnyResult:
    """Return the result of this id.

    Raises:
        TaskResultDoesNotExist: it was never enqueued (or its transaction has not committed), or it has expired.
        QueueUnavailable: Redis is unreachable.
    """
    if not isinstance(ident, str) or not is_result_id(ident):
        raise TaskResultDoesNotExist(str(ident))
    record, view = _read(connections.broker(), ident)
    if view is None and (record is None or not record.final) and is_durable(ident):
        row = _row(ident)
        if row is not None:
            return _of_row(ident, row, record)
    head = _head(record, view)
    if head is None:
        raise TaskResultDoesNotExist(ident)
    return _of_view(ident, head, record, view)


def _read(broker: DjangoBroker, ident: str) -> tuple[ResultRecord | None, JobView | None]:
    results = Results(broker)
    record = results.read(ident)
    view = next(_views(broker, ident, record), None)
    if view is None and record is not None and not record.final:
        # It may have ended between the two reads: a worker writes the record before the job is deleted.
        record = results.read(ident) or record
    return record, view


def _views(broker: DjangoBroker, ident: str, record: ResultRecord | None) -> Iterator[JobView]:
    if record is not None and record.head:
        names = [Head.unpack(record.head).queue]
    else:
        names = [queue.name for queue in broker.queues() if may_be_in(ident, queue.name)]
    for name in names:
        view = broker.inspector.get(name, ident)
        # Without a record only its own context shows that enqueue() created it.
        if view is not None and (record is not None or Head.of_job(view.job).facts is not None):
            yield view


def _head(record: ResultRecord | None, view: JobView | None) -> Head | None:
    if record is not None and record.head:
        return Head.unpack(record.head)
    return Head.of_job(view.job) if view is not None else None


# --- a durable job that Redis does not have


def _row(ident: str) -> OutboxJob | None:
    """Return the job's row in the database.

    It exists while Redis does not have the job yet, or has lost it and will get it again.
    """
    for alias in filter(durability.has_table, conf().outbox.databases):
        for row in rows.table(alias).filter(job_id=ident).order_by("-pk"):
            if may_be_in(ident, row.queue):
                return row
    return None


def _of_row(ident: str, row: OutboxJob, known: ResultRecord | None) -> AnyResult:
    record = known or ResultRecord()
    head = Head.unpack(record.head) if record.head else Head.of_new(unpack_job(bytes(row.record)), row.queue)
    if row.state in (row.State.UNSENT, row.State.SENT, row.State.MOVED):
        return result_of(ident, head, record, status=READY)
    return result_of(ident, head, record, status=FAILED, finished_at=_ended(record), errors=read_errors([_GONE]))


# --- everything else


def _of_view(ident: str, head: Head, known: ResultRecord | None, view: JobView | None) -> AnyResult:
    record = known or ResultRecord()
    result = partial(result_of, ident, head, record)
    if view is None:
        if record.final:
            return result(status=record.state, finished_at=_ended(record))
        return result(status=FAILED, finished_at=_ended(record), errors=read_errors([_GONE]))
    if view.state == "morgue":
        if record.state == FAILED:
            return result(status=FAILED, finished_at=_ended(record))
        last = core_error(view.job)
        return result(status=FAILED, finished_at=_moment(view.buried_ms), errors=[last] if last is not None else [])
    is_started = known is None or record.token == view.job.token
    if view.state == "reserved" and is_started:
        # Its end may be stored already, shortly before the job is deleted.
        state = record.state if known is not None else RUNNING
        return result(status=state, finished_at=_ended(record) if record.final else None)
    return result(status=READY, errors=_lost_attempt_errors(record, view))


def _lost_attempt_errors(record: ResultRecord, view: JobView) -> list[TaskError]:
    """Return the error of an attempt that began and stored no end, if it was counted."""
    if record.state != RUNNING or view.job.failures <= record.failures:
        return []
    last = core_error(view.job)
    return [last] if last is not None else read_errors([LOST.crashed])


def _ended(record: ResultRecord) -> datetime | None:
    return datetime.fromisoformat(record.end) if record.end else None


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC if settings.USE_TZ else None)
