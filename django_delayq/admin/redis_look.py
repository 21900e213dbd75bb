"""A mirrored job as Redis has it at this moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from ..connections import broker
from ..core.errors import DelayQError
from ..core.job import Payload
from ..core.operations.views import JobView
from . import shown

if TYPE_CHECKING:
    from ..models import FailedJob, MirroredJob

__all__ = ["Look", "look_at"]


@dataclass(slots=True)
class Look:
    """What Redis says of a job.

    Attributes:
        words: the state, in a sentence.
        kind: of its badge: good, bad, late or plain.
        view: the job itself, if it is still the one of the row.
        payloads: the first of its payloads.
        total: how many it has.
        answered: whether Redis answered at all.
    """

    words: str
    kind: str = "plain"
    view: JobView | None = None
    payloads: Sequence[Payload] = ()
    total: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    answered: bool = True


def look_at(row: FailedJob | MirroredJob, *, most: int = shown.MOST_PAYLOADS) -> Look:
    """Asks Redis for the job of a row. If Redis does not answer, that is what the result says.

    Args:
        most: payloads that are read.
    """
    try:
        found = broker()
        live = found.inspector.get(row.queue, row.job_id)
        graves = found.inspector.graves(row.queue, row.job_id)
    except DelayQError as error:
        return Look(_("Redis does not answer: %(error)s") % {"error": error}, "bad", answered=False)
    is_live = live is not None and live.state != "morgue"
    if live is not None and is_live and live.job.key == row.key.bytes:
        payloads: Sequence[Payload] = ()
        if live.job.merged:
            payloads = tuple(islice(found.inspector.payloads(row.queue, row.job_id), most))
        return _live(live, payloads)
    buried = next((grave for grave in graves if grave.job.key == row.key.bytes), None)
    if buried is not None:
        words, kind = _("in the morgue"), "plain"
        if is_live:
            words, kind = _("in the morgue, while another job of this id is live"), "late"
        look = Look(words, kind, buried, buried.payloads[:most], len(buried.payloads))
        look.facts[_("buried")] = shown.ago(shown.from_ms(buried.buried_ms))
        return look
    if is_live:
        return Look(_("gone; another job has this id now"), "bad")
    return Look(_("gone: it was run, cancelled or removed since"), "bad")


def _live(view: JobView, payloads: Sequence[Payload]) -> Look:
    words = {
        "delayed": _("waits for its next attempt"),
        "ready": _("due, waits for a worker"),
        "reserved": _("a worker has it now"),
    }.get(view.state, view.state)
    look = Look(words, "good" if view.state == "reserved" else "plain", view, payloads, view.payload_count)
    if view.state == "reserved":
        look.facts[_("worker")] = view.job.worker or "–"
        look.facts[_("its lease ends")] = shown.until(shown.from_ms(view.deadline_ms))
    else:
        look.facts[_("due")] = shown.until(shown.from_ms(view.due_ms))
    if view.gated_due_ms is not None:
        look.facts[_("new content after this run")] = shown.until(shown.from_ms(view.gated_due_ms))
    return look
