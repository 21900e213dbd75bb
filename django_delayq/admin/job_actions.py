"""Actions on jobs: definitions, the confirmation page, and the result messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.contrib import messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import repair
from ..core.errors import DelayQError
from ..settings.conf import conf
from .base import ReadOnlyAdmin
from .filters import lookups_of
from .forms import DelayForm
from .paging import CappedCount

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

__all__ = [
    "BURY",
    "DISCARD",
    "LONG_COLUMNS",
    "RETRY_IN",
    "RETRY_NOW",
    "JobAction",
    "JobActionsMixin",
    "phrases",
    "told",
]

#: long columns that are not needed to identify a row
LONG_COLUMNS: Final = ("args", "options", "error_message", "error_traceback")
#: rows in which a confirmation page counts queues and tasks
_COUNTED: Final = 10_000
#: kinds of jobs that it lists
_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAction:
    """Definition of an action on jobs.

    Attributes:
        name: name of the action.
        verb: verb of :mod:`django_delayq.repair`; also the permission ``<verb>_<model>``.
        title: text of its button.
        effect: description of its effect, for the confirmation page.
        delayed: asks for a delay.
        harmful: cannot be undone.
        flag: flag of its entries in the admin's log.
    """

    name: str
    verb: str
    title: _StrPromise
    effect: _StrPromise
    delayed: bool = False
    harmful: bool = False
    flag: int = CHANGE


RETRY_NOW: Final = JobAction(
    name="retry_now",
    verb="retry",
    title=gettext_lazy("Retry now"),
    effect=gettext_lazy(
        "They become due at once and are run by the next free worker. Attempts that failed stay counted."
    ),
)
RETRY_IN: Final = JobAction(
    name="retry_in",
    verb="retry",
    title=gettext_lazy("Retry in…"),
    delayed=True,
    effect=gettext_lazy("They become due after the delay. Attempts that failed stay counted."),
)
DISCARD: Final = JobAction(
    name="discard",
    verb="discard",
    title=gettext_lazy("Discard"),
    harmful=True,
    flag=DELETION,
    effect=gettext_lazy("They are deleted for good, with their arguments. This cannot be undone."),
)
BURY: Final = JobAction(
    name="bury",
    verb="bury",
    title=gettext_lazy("Bury"),
    effect=gettext_lazy(
        "They are not tried again by themselves, and wait in the morgue until somebody retries or discards them."
    ),
)


@dataclass(slots=True)
class Wanted:
    """Target of an action: selected rows, or all rows that a list shows."""

    rows: QuerySet[Any]
    total: int
    lookups: dict[str, Any] | None
    until: datetime

    @property
    def all_matching(self) -> bool:
        """True if the target is everything that the list shows."""
        return self.lookups is not None

    @property
    def background(self) -> bool:
        """True if a worker has to carry out the action."""
        return self.all_matching and self.total > conf().admin.bulk_threshold


class JobActionsMixin(ReadOnlyAdmin):
    """List with actions on its rows."""

    def perform(self, request: HttpRequest, rows: QuerySet[Any], deed: JobAction) -> HttpResponse:
        """Ask for confirmation, then carry out the action or order it as a bulk action."""
        wanted = self._wanted(request, rows)
        confirmed = "confirmed" in request.POST
        form = DelayForm(request.POST if confirmed else None) if deed.delayed else None
        if not confirmed or (form is not None and not form.is_valid()):
            return self._ask(request, wanted, deed, form)
        seconds = form.span.total_seconds() if form is not None else 0.0
        back = HttpResponseRedirect(request.get_full_path())
        try:
            if wanted.background:
                return HttpResponseRedirect(self._order(request, wanted, deed, seconds))
            outcomes = self._do(request, wanted, deed, seconds)
        except DelayQError as error:
            self.message_user(request, _("Redis could not do it: %(error)s") % {"error": error}, messages.ERROR)
            return back
        level, words = told(outcomes)
        self.message_user(request, words, level)
        return back

    # -- what is meant -----------------------------------------------------------------------------------------------

    def _wanted(self, request: HttpRequest, rows: QuerySet[Any]) -> Wanted:
        """Return the target. "All matching" excludes rows newer than the confirmation page."""
        until = _moment(request.POST.get("until")) or timezone.now()
        if request.POST.get("select_across") != "1":
            return Wanted(rows, rows.count(), None, until)
        changelist = request.delayq_changelist  # type: ignore[attr-defined]
        lookups = {**lookups_of(changelist), **self.search_lookups(changelist.query)}
        rows = rows.filter(**{f"{self.keyset}__lte": until})
        # The one count that is not capped: the user must see how many jobs are affected.
        return Wanted(rows, rows.order_by().count(), {**lookups, f"{self.keyset}__lte": until.isoformat()}, until)

    def search_lookups(self, query: str) -> dict[str, Any]:
        """Return the lookups of a search."""
        return {}

    # -- the question ------------------------------------------------------------------------------------------------

    def _ask(self, request: HttpRequest, wanted: Wanted, deed: JobAction, form: DelayForm | None) -> HttpResponse:
        kinds = Counter(wanted.rows.order_by().values_list("queue", "task")[:_COUNTED])
        named = kinds.most_common(_NAMED)
        selected = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
        context = {
            "deed": deed,
            "form": form,
            "wanted": wanted,
            "count": CappedCount(wanted.total),
            "kinds": [{"queue": queue, "task": task, "number": CappedCount(number)} for (queue, task), number in named],
            "others": sum(kinds.values()) - sum(number for _kind, number in named),
            "partly": CappedCount(_COUNTED) if wanted.total > _COUNTED else "",
            "selected": selected[:1] if wanted.all_matching else selected,
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
            "until": wanted.until.isoformat(),
            "back": request.get_full_path(),
            "threshold": CappedCount(conf().admin.bulk_threshold),
        }
        return self.render(request, "confirm.html", deed.title, context)

    # -- the deed ----------------------------------------------------------------------------------------------------

    def _do(self, request: HttpRequest, wanted: Wanted, deed: JobAction, seconds: float) -> Counter[str]:
        rows = list(wanted.rows.defer(*LONG_COLUMNS))
        try:
            outcomes = _VERBS[deed.verb](rows, seconds)
        except DelayQError:
            self.note(request, rows, deed.flag, f"{deed.title}: {_('Redis did not answer; it may be done in part.')}")
            raise
        self.note(request, rows, deed.flag, f"{deed.title}: {_summary(outcomes)}")
        return outcomes

    def _order(self, request: HttpRequest, wanted: Wanted, deed: JobAction, seconds: float) -> str:
        """Order the action as a bulk action and return the URL of its progress page."""
        action = repair.order(
            deed.verb,
            self.model,
            wanted.lookups or {},
            user=request.user,
            delay=seconds if deed.delayed else None,
            total=wanted.total,
        )
        self.note(request, [action], CHANGE, f"{deed.title}: {wanted.total}")
        self.message_user(request, _("A worker carries it out. This page tells how far it is."), messages.INFO)
        return reverse("admin:django_delayq_bulkaction_change", args=[action.pk], current_app=self.admin_site.name)


_VERBS: Final[Mapping[str, Callable[[list[Any], float], Counter[str]]]] = {
    "retry": lambda rows, seconds: repair.retry(rows, delay=seconds or None),
    "discard": lambda rows, seconds: repair.discard(rows),
    "bury": lambda rows, seconds: repair.bury(rows),
}


def _moment(text: str | None) -> datetime | None:
    """Return a moment posted by our form; None if it is invalid. It can only narrow the target."""
    try:
        found = parse_datetime(text or "")
    except ValueError:
        return None
    if found is None or timezone.is_aware(found) is not settings.USE_TZ:
        return None
    return min(found, timezone.now())


# --- results


def _phrase(outcome: str, n: int) -> str:
    match outcome:
        case "retried":
            return ngettext("%(n)d job will be retried.", "%(n)d jobs will be retried.", n) % {"n": n}
        case "discarded":
            return ngettext("%(n)d job was discarded.", "%(n)d jobs were discarded.", n) % {"n": n}
        case "buried":
            return ngettext("%(n)d job was buried.", "%(n)d jobs were buried.", n) % {"n": n}
        case "live":
            return ngettext(
                "%(n)d stays, because another job of its id is live.",
                "%(n)d stay, because other jobs of their ids are live.",
                n,
            ) % {"n": n}
        case "running":
            return ngettext(
                "%(n)d was left alone, because it is running now.",
                "%(n)d were left alone, because they are running now.",
                n,
            ) % {"n": n}
        case "gone":
            return ngettext(
                "%(n)d was not there any more: it was run, changed or removed meanwhile.",
                "%(n)d were not there any more: they were run, changed or removed meanwhile.",
                n,
            ) % {"n": n}
    return f"{outcome}: {n}"


_DONE: Final = ("retried", "discarded", "buried")
_NOT_DONE: Final = ("live", "running", "gone")


def phrases(outcomes: Mapping[str, int]) -> list[str]:
    """Return one sentence for each outcome."""
    known = (*_DONE, *_NOT_DONE)
    words = [*known, *sorted(set(outcomes) - set(known))]
    return [_phrase(word, outcomes[word]) for word in words if outcomes.get(word)]


def told(outcomes: Mapping[str, int]) -> tuple[int, str]:
    """Return level and text of the result message."""
    said = phrases(outcomes)
    done = said and not any(number for word, number in outcomes.items() if word not in _DONE)
    return messages.SUCCESS if done else messages.WARNING, " ".join(said) or _("Nothing was done.")


def _summary(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{word} {number}" for word, number in sorted(outcomes.items()) if number) or "nothing"
