"""Actions on any number of jobs: a selection of rows, stored as an order that a worker runs in chunks.

The order stores its position after each chunk. If a worker is killed, another one resumes from there. Users see the
progress and can stop the order. Rows that were added after the order are not affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import router, transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from ..core.verdicts import Release
from ..mirror.rows import PLACES, Model, place_of, text
from ..models import NAME_LENGTH, BulkAction
from ..scheduling.tasks import task
from ..scheduling.verbs import schedule
from ..settings.conf import conf
from ..worker.attempt import CurrentJob, current_job
from .jobs import act, check_delay, check_verb

State = BulkAction.State

#: name and queue of the task that runs orders; a worker has to serve that queue
TASK: Final = "django_delayq.carry_out"
QUEUE: Final = "delayq"
CHUNK: Final = 250
_TARGETS: Final = {place.model.__name__: place for place in PLACES.values()}
#: states in which an order goes on
WAITING: Final = (State.WAITING, State.RUNNING)
#: those in which its job does: that of a failed one was restored from the morgue by an operator
_GOING_ON: Final = (*WAITING, State.FAILED)


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
        InvalidJob: an unknown action, or an implausible delay. For wrong filters see :func:`matching`.
    """
    check_verb(action, model)
    delay_ms = check_delay(delay)
    rows = matching(model, filters)
    last = rows.order_by().aggregate(last=Max("pk"))["last"] or 0
    options = {"until": last, **({"delay": delay_ms / 1000} if delay_ms is not None else {})}
    using = router.db_for_write(BulkAction)
    with transaction.atomic(using=using):
        bulk_action = BulkAction._default_manager.using(using).create(
            action=action,
            target=place_of(model).model.__name__,
            filters=dict(filters),
            options=options,
            total=rows.count() if total is None else total,
            ordered_by="" if user is None else str(user)[:NAME_LENGTH],
            ordered_by_pk="" if user is None else str(user.pk),
        )
        ident = str(bulk_action.pk)
        durable = using in conf().outbox.databases  # then the order survives a loss of Redis
        schedule(carry_out, ident, id=f"order-{ident}", using_db=using, durable=durable)
    return bulk_action


def stop(ordered: BulkAction) -> bool:
    """Stop an order before its next chunk. Completed chunks are not undone.

    Returns:
        False if it had ended already.
    """
    return bool(_orders().filter(pk=ordered.pk, state__in=WAITING).update(state=State.STOPPED, ended_at=Now()))


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
    while (ordered := _orders().filter(pk=pk).first()) is not None and ordered.state in _GOING_ON:
        job = current_job()
        if job is not None and job.should_stop:
            raise Release("this process is stopping; another one resumes the bulk action")
        try:
            _run_chunk(ordered)
        except Exception as error:
            _orders().filter(pk=pk).update(error=_error_text(error))
            raise
    return {} if ordered is None else dict(ordered.counts)


def _run_chunk(ordered: BulkAction) -> None:
    """Run one chunk."""
    rows = matching(_TARGETS[ordered.target].model, ordered.filters)
    chunk = list(rows.filter(pk__gt=ordered.position, pk__lte=ordered.options["until"]).order_by("pk")[:CHUNK])
    counts = Counter(ordered.counts) + act(ordered.action, chunk, ordered.options.get("delay"))
    progress: dict[str, Any] = {"counts": dict(counts), "done": ordered.done + len(chunk), "error": ""}
    if chunk:
        progress["position"] = chunk[-1].pk
    is_last = len(chunk) < CHUNK
    state = {"state": State.DONE, "ended_at": Now()} if is_last else {"state": State.RUNNING, "ended_at": None}
    # Unless another worker has resumed it, because this one was considered dead, or a user has stopped it meanwhile.
    here = _orders().filter(pk=ordered.pk, position=ordered.position)
    if not here.filter(state__in=_GOING_ON).update(**progress, **state):
        here.update(**progress)


def _orders() -> Any:
    return BulkAction._default_manager.using(router.db_for_write(BulkAction))


def _error_text(error: BaseException) -> str:
    return text(f"{type(error).__name__}: {error}", 10_000)


def matching(model: Model, filters: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the selected rows.

    Args:
        model: FailedJob or MorgueJob.
        filters: lookups of Django (``failures__gte``) and their values, as JSON has them: times as ISO strings. A row
            has to match all of them; no filters = all rows.

    Raises:
        Exception: an unknown name or an invalid value, so that the selection is never larger than intended.
    """
    rows: QuerySet[Any] = place_of(model).table.filter(**filters)
    return rows
