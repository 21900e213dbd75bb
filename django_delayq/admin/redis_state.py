"""Live lookup of a mirrored job in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from ..connections import broker, hurried_broker
from ..core.errors import DelayQError
from ..core.job import Payload
from ..core.job_view import JobView
from . import content, formatting

if TYPE_CHECKING:
    from ..models import FailedJob, MirroredJob


@dataclass(slots=True)
class RedisState:
    """State of a job in Redis.

    Attributes:
        label: the state, in a sentence.
        kind: of its badge: good, bad, late or plain.
        view: the job itself, if it still has the key of the row.
        payloads: the first of its payloads.
        total: the number of its payloads.
        facts: further facts by name.
        answered: False if Redis did not reply.
    """

    label: str
    kind: str = "plain"
    view: JobView | None = None
    payloads: Sequence[Payload] = ()
    total: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    answered: bool = True


def read_state(row: FailedJob | MirroredJob, *, most: int = content.MOST_PAYLOADS) -> RedisState:
    """Return the state of a row's job in Redis, or that Redis is unavailable.

    Args:
        row: the mirrored job.
        most: maximum number of payloads to read.
    """
    try:
        inspector = broker().inspector
        live = inspector.get(row.queue, row.job_id)
        records = inspector.graves(row.queue, row.job_id)
    except DelayQError as error:
        return RedisState(_("Redis does not answer: %(error)s") % {"error": error}, "bad", answered=False)
    is_live = live is not None and live.state != "morgue"
    if live is not None and is_live and live.job.key == row.key.bytes:
        payloads: Sequence[Payload] = ()
        if live.job.merged:
            payloads = tuple(islice(inspector.payloads(row.queue, row.job_id), most))
        return _live(live, payloads)
    buried = next((record for record in records if record.job.key == row.key.bytes), None)
    if buried is not None:
        label, kind = _("in the morgue"), "plain"
        if is_live:
            label, kind = _("in the morgue, while another job of this id is live"), "late"
        state = RedisState(label, kind, buried, buried.payloads[:most], len(buried.payloads))
        state.facts[_("buried")] = formatting.ago(formatting.from_ms(buried.buried_ms))
        return state
    if is_live:
        return RedisState(_("gone; another job has this id now"), "bad")
    return RedisState(_("gone: it was run, cancelled or removed"), "bad")


def running_ones(rows: Sequence[MirroredJob]) -> set[Any]:
    """Return the primary keys of the rows whose jobs a worker holds now; none if Redis is unavailable."""
    if not rows:
        return set()
    try:
        hurried = hurried_broker()
        jobs = [(row.pk, queue, row.job_id) for row in rows if (queue := hurried.existing(row.queue)) is not None]
        leases = hurried.inspector.leases([(queue, ident) for _pk, queue, ident in jobs])
    except DelayQError:
        return set()
    return {pk for (pk, _queue, _ident), lease in zip(jobs, leases, strict=True) if lease is not None}


def _live(view: JobView, payloads: Sequence[Payload]) -> RedisState:
    label = {
        "delayed": _("waiting for retry"),
        "ready": _("due, waiting for a worker"),
        "reserved": _("reserved by a worker"),
    }.get(view.state, view.state)
    state = RedisState(label, "good" if view.state == "reserved" else "plain", view, payloads, view.payload_count)
    if view.state == "reserved":
        state.facts[_("worker")] = view.job.worker or formatting.NOTHING
        state.facts[_("end of lease")] = formatting.until(formatting.from_ms(view.deadline_ms))
    else:
        state.facts[_("due")] = formatting.until(formatting.from_ms(view.due_ms))
    if view.gated_due_ms is not None:
        state.facts[_("new content due")] = formatting.until(formatting.from_ms(view.gated_due_ms))
    return state
