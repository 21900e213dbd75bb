"""Actions on any number of jobs: a selection of rows, stored as an order that a worker runs in chunks.

The order stores its position after each chunk. If a worker is killed, another one resumes from there. Users see the
progress and can stop the order. Rows that were added after the order are not affected.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import FieldError, ValidationError
from django.db import router, transaction
from django.db.models import Max, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..core.errors import InvalidJob, Release
from ..core.inputs import short, suggest
from ..mirror.index_mirror import database_of
from ..mirror.rows import PLACES, Model, place_of, text
from ..models import NAME_LENGTH, BulkAction
from ..scheduling.tasks import task
from ..scheduling.verbs import schedule
from ..settings.conf import conf
from ..worker.attempt import CurrentJob, current_job
from .jobs import VERBS, delay_ms_of_action

logger: Final = logging.getLogger(__name__)
State = BulkAction.State

#: name and queue of the task that runs orders; a worker has to serve that queue
TASK: Final = "django_delayq.carry_out"
QUEUE: Final = "delayq"
CHUNK: Final = 250
_TARGETS: Final = {place.model.__name__: place for place in PLACES.values()}
#: states in which an order goes on
WAITING: Final = (State.WAITING, State.RUNNING)


def order(
    action: str,
    model: Model,
    filters: Mapping[str, Any],
    *,
    user: Any = None,
    delay: timedelta | float | None = None,
    total: int | None = None,
) -> BulkAction:
    """Create an order for all jobs that match now. A worker starts it after the commit.

    Args:
        action: retry, discard or (failed jobs) bury.
        model: FailedJob or MorgueJob.
        filters: see :func:`matching`.
        user: user who creates the order.
        delay: delay of retry.
        total: number of jobs, if it is known.

    Raises:
        InvalidJob: an unknown action or filter, or an implausible delay.
    """
    if action not in VERBS or (action == "bury" and model.__name__ != "FailedJob"):
        raise InvalidJob(f"{action!r} is no action on {model.__name__}; use retry, discard, or bury for failed jobs")
    delay_ms = delay_ms_of_action(delay)
    rows = matching(model, filters)
    last = rows.order_by().aggregate(last=Max("pk"))["last"] or 0
    options = {"until": last, **({"delay": delay_ms / 1000} if delay_ms is not None else {})}
    using = router.db_for_write(BulkAction)
    with transaction.atomic(using=using):
        bulk_action = BulkAction._default_manager.using(using).create(
            action=action,
            target=place_of(model).model.__name__,
            filters=storable(filters),
            options=options,
            total=rows.count() if total is None else total,
            ordered_by="" if user is None else str(user)[:NAME_LENGTH],
            ordered_by_pk="" if user is None else str(user.pk),
        )
        schedule(
            carry_out, str(bulk_action.pk), id=f"order-{bulk_action.pk}", using_db=using, durable=_is_durable(using)
        )
    return bulk_action


def _is_durable(using: str) -> bool:
    """Return True if the job of an order can be durable, so that it survives a loss of Redis."""
    outbox = conf().outbox
    return outbox.enabled and using in outbox.databases


def stop(ordered: BulkAction) -> bool:
    """Stop an order before its next chunk. Completed chunks are not undone.

    Returns:
        False if it had ended already.
    """
    using = router.db_for_write(BulkAction)
    waiting = BulkAction._default_manager.using(using).filter(pk=ordered.pk, state__in=WAITING)
    return waiting.update(state=State.STOPPED, ended_at=Now()) > 0


def _mark_failed(job: CurrentJob, error: BaseException) -> None:
    """Mark the order as failed after its last attempt."""
    _orders().filter(pk=job.args[0], state__in=WAITING).update(
        state=State.FAILED, ended_at=Now(), error=_error_text(error)
    )


@task(
    name=TASK,
    queue=QUEUE,
    max_attempts=10,
    retry_in=10,
    crash_limit=10,
    timeout=None,
    max_lease=None,
    on_exhausted=_mark_failed,
    retry_for=None,
    give_up_on=(),
    ack="late",
    expires=None,
)
def carry_out(pk: str) -> dict[str, int]:
    """Run an order from its stored position. Return counts of jobs by outcome."""
    ordered = _orders().filter(pk=pk).first()
    if ordered is None:
        logger.warning("bulk action %s no longer exists, so nothing was done", pk)
        return {}
    if ordered.state == State.FAILED:  # an operator has restored its job from the morgue
        _orders().filter(pk=pk, state=State.FAILED).update(state=State.RUNNING, ended_at=None)
        ordered.refresh_from_db()
    while ordered.state in WAITING:
        job = current_job()
        if job is not None and job.should_stop:
            raise Release("this process is stopping; another one resumes the bulk action")
        try:
            ended = _run_chunk(ordered)
        except Exception as error:
            _orders().filter(pk=pk).update(error=_error_text(error))
            raise
        ordered = _orders().get(pk=pk)
        if ended:
            break
    return dict(ordered.counts)


def _run_chunk(ordered: BulkAction) -> bool:
    """Run one chunk. Return True if it was the last one."""
    place = _TARGETS[ordered.target]
    rows = matching(place.model, ordered.filters)
    chunk = list(rows.filter(pk__gt=ordered.position, pk__lte=ordered.options["until"]).order_by("pk")[:CHUNK])
    counts = Counter(ordered.counts)
    if chunk:
        counts += VERBS[ordered.action](chunk, ordered.options.get("delay"))
    progress: dict[str, Any] = {"counts": dict(counts), "done": ordered.done + len(chunk), "error": ""}
    if chunk:
        progress["position"] = chunk[-1].pk
    ended = len(chunk) < CHUNK
    state: dict[str, Any] = {"state": State.DONE, "ended_at": Now()} if ended else {"state": State.RUNNING}
    # Unless another worker has resumed it, because this one was considered dead, or a user has stopped it meanwhile.
    here = _orders().filter(pk=ordered.pk, position=ordered.position)
    if not here.filter(state__in=WAITING).update(**progress, **state):
        here.update(**progress)
    return ended


def _orders() -> Any:
    return BulkAction._default_manager.using(router.db_for_write(BulkAction))


def _error_text(error: BaseException) -> str:
    return text(f"{type(error).__name__}: {error}", 10_000)


# -- selection of rows, by filters that can be stored as JSON ----------------------------------------------------------

#: fields for filters, each also with a lookup of :data:`LOOKUPS` after two underscores
FIELDS: Final = ("queue", "task", "error_class", "job_id", "failures", "crashes", "priority", "merged", "shard")
_MORGUE_FIELDS: Final = ("reason", "outcome")
LOOKUPS: Final = ("exact", "in", "gt", "gte", "lt", "lte", "startswith", "contains", "icontains")
#: further filters: ``search`` = in the id or the error message; ``since`` ≤ time of the failure or burial < ``until``
NAMED_FILTERS: Final = ("search", "since", "until")
FILTERS: Final = (*FIELDS, *_MORGUE_FIELDS, *NAMED_FILTERS)


def matching(model: Model, filters: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the selected rows.

    Args:
        model: FailedJob or MorgueJob.
        filters: names of :data:`FILTERS`, or of a column with a lookup (``failures__gte``), and JSON values; times as
            ISO strings. A row has to match all of them; no filters = all rows.

    Raises:
        InvalidJob: an unknown name or an invalid value, so that the selection is never larger than intended.
    """
    place = place_of(model)
    fields = (*FIELDS, *(_MORGUE_FIELDS if place.moment == "buried_at" else ()), place.moment)
    condition = Q()
    for name, value in filters.items():
        condition &= _condition(str(name), value, fields, place.moment)
    rows: QuerySet[Any] = model._default_manager.using(database_of(place)).all()
    try:
        return rows.filter(condition)
    except (FieldError, ValidationError, TypeError, ValueError) as error:
        raise InvalidJob(f"invalid filters: {error}") from None


def _condition(name: str, value: Any, fields: tuple[str, ...], moment: str) -> Q:
    if name == "search":
        return Q(job_id__icontains=str(value)) | Q(error_message__icontains=str(value))
    if name in ("since", "until"):
        return Q(**{f"{moment}__{'gte' if name == 'since' else 'lt'}": _moment(name, value)})
    field, _, lookup = name.partition("__")
    if field not in fields or lookup not in ("", *LOOKUPS):
        names = (*fields, *NAMED_FILTERS)
        raise InvalidJob(f"jobs cannot be filtered by {short(name)}.{suggest(field, names)} Known: {', '.join(names)}")
    return Q(**{name: _moment(name, value) if field == moment else value})


def _moment(name: str, value: Any) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else parse_datetime(value)
    except (TypeError, ValueError):
        moment = None
    if moment is None:
        raise InvalidJob(f"{name} must be a moment like 2030-01-31T12:00:00+00:00, got {short(value)}")
    if settings.USE_TZ and timezone.is_naive(moment):
        return timezone.make_aware(moment)
    if not settings.USE_TZ and timezone.is_aware(moment):
        return timezone.make_naive(moment)
    return moment


def storable(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same filters, with times as strings."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in filters.items()}
