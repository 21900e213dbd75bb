"""Actions on jobs: definitions, the confirmation page, and the result messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import repair
from ..core.errors import DelayQError
from ..settings.conf import conf
from .base import ReadOnlyAdmin
from .filters import lookups_of
from .forms import DelayForm
from .outcomes import result_message
from .paging import CappedCount

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

#: long columns that are not needed to identify a row
LONG_COLUMNS: Final = ("args", "options", "error_message", "error_traceback")
#: rows in which a confirmation page counts queues and tasks
_COUNTED_ROWS: Final = 10_000
#: kinds of jobs that it lists
_MOST_KINDS: Final = 8


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

    def as_function(self) -> Callable[[JobActionsMixin, HttpRequest, QuerySet[Any]], HttpResponse]:
        """Return the function that Django's admin calls for this action."""

        @admin.action(permissions=[self.verb], description=self.title)
        def function(page: JobActionsMixin, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse:
            return page.perform(request, rows, self)

        function.__name__ = self.name
        return function


RETRY_NOW: Final = JobAction(
    name="retry_now",
    verb="retry",
    title=gettext_lazy("Retry now"),
    effect=gettext_lazy("They become due at once, and the next free worker runs them. Failed attempts stay counted."),
)
RETRY_IN: Final = JobAction(
    name="retry_in",
    verb="retry",
    title=gettext_lazy("Retry in…"),
    delayed=True,
    effect=gettext_lazy("They become due after the delay. Failed attempts stay counted."),
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
    effect=gettext_lazy("They move to the morgue and are not retried automatically. Retry or discard them there."),
)


@dataclass(slots=True)
class Target:
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

    def perform(self, request: HttpRequest, rows: QuerySet[Any], action: JobAction) -> HttpResponse:
        """Ask for confirmation, then run the action now or, for many jobs, leave it to a worker as a bulk action."""
        target = self._target(request, rows)
        confirmed = "confirmed" in request.POST
        form = DelayForm(request.POST if confirmed else None) if action.delayed else None
        if not confirmed or (form is not None and not form.is_valid()):
            return self._confirm(request, target, action, form)
        seconds = form.span.total_seconds() if form is not None else 0.0
        back = HttpResponseRedirect(request.get_full_path())
        try:
            if target.background:
                return HttpResponseRedirect(self._order(request, target, action, seconds))
            outcomes = self._carry_out(request, target, action, seconds)
        except DelayQError as error:
            self.message_user(request, _("The action failed: %(error)s") % {"error": error}, messages.ERROR)
            return back
        level, text = result_message(outcomes)
        self.message_user(request, text, level)
        return back

    # -- target ------------------------------------------------------------------------------------------------------

    def _target(self, request: HttpRequest, rows: QuerySet[Any]) -> Target:
        """Return the target. "All matching" excludes rows newer than the confirmation page."""
        until = _moment(request.POST.get("until")) or timezone.now()
        if request.POST.get("select_across") != "1":
            return Target(rows, rows.count(), None, until)
        changelist = request.delayq_changelist  # type: ignore[attr-defined]
        lookups = {**lookups_of(changelist), **self.search_lookups(changelist.query)}
        rows = rows.filter(**{f"{self.keyset}__lte": until})
        # The one count that is not capped: the user must see how many jobs are affected.
        return Target(rows, rows.order_by().count(), {**lookups, f"{self.keyset}__lte": until.isoformat()}, until)

    def search_lookups(self, query: str) -> dict[str, Any]:
        """Return the lookups of a search."""
        return {}

    # -- confirmation ------------------------------------------------------------------------------------------------

    def _confirm(self, request: HttpRequest, target: Target, action: JobAction, form: DelayForm | None) -> HttpResponse:
        kinds = Counter(target.rows.order_by().values_list("queue", "task")[:_COUNTED_ROWS])
        named = kinds.most_common(_MOST_KINDS)
        selected = request.POST.getlist(helpers.ACTION_CHECKBOX_NAME)
        context = {
            "action": action,
            "form": form,
            "target": target,
            "count": CappedCount(target.total),
            "kinds": [{"queue": queue, "task": task, "number": CappedCount(number)} for (queue, task), number in named],
            "others": sum(kinds.values()) - sum(number for _kind, number in named),
            "counted": CappedCount(_COUNTED_ROWS) if target.total > _COUNTED_ROWS else "",
            "selected": selected[:1] if target.all_matching else selected,
            "checkbox": helpers.ACTION_CHECKBOX_NAME,
            "until": target.until.isoformat(),
            "back": request.get_full_path(),
            "yes": action.title,
            "harmful": action.harmful,
            "threshold": CappedCount(conf().admin.bulk_threshold),
        }
        return self.render(request, "jobs_confirm", action.title, context, trail=[(str(action.title), "")])

    # -- execution ---------------------------------------------------------------------------------------------------

    def _carry_out(self, request: HttpRequest, target: Target, action: JobAction, seconds: float) -> Counter[str]:
        rows = list(target.rows.defer(*LONG_COLUMNS))
        try:
            outcomes = repair.VERBS[action.verb](rows, seconds or None)
        except DelayQError:
            self.note(
                request,
                rows,
                action.flag,
                f"{action.title}: {_('Redis did not answer; the action may be incomplete.')}",
            )
            raise
        self.note(request, rows, action.flag, f"{action.title}: {_summary(outcomes)}")
        return outcomes

    def _order(self, request: HttpRequest, target: Target, action: JobAction, seconds: float) -> str:
        """Order the action as a bulk action and return the URL of its progress page."""
        order = repair.order(
            action.verb,
            self.model,
            target.lookups or {},
            user=request.user,
            delay=seconds if action.delayed else None,
            total=target.total,
        )
        self.note(request, [order], CHANGE, f"{action.title}: {target.total}")
        progress = self.url_of("bulkaction", "change", order.pk)
        if progress:
            text = _("A worker carries out this action. This page shows its progress.")
        else:
            text = _("A worker carries out this action.")
        self.message_user(request, text, messages.INFO)
        return progress or request.get_full_path()


def _moment(text: str | None) -> datetime | None:
    """Return a moment posted by our form; None if it is invalid. It can only narrow the target."""
    try:
        moment = parse_datetime(text or "")
    except ValueError:
        return None
    if moment is None or timezone.is_aware(moment) is not settings.USE_TZ:
        return None
    return min(moment, timezone.now())


def _summary(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{outcome} {number}" for outcome, number in sorted(outcomes.items()) if number) or "nothing"
