"""Actions on many jobs of the job browser: those that are selected, or all that match the filters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import connections
from ..core.bulk import CANCEL, DISCARD, RUN_NOW, Verb, change, kick
from ..core.job import Generation
from .browse import BrowseQuery
from .live_list import LiveListPages
from .outcomes import result_message

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

#: maximum seconds of a request that changes all jobs that match
LONGEST: Final = 10.0
MOST_SELECTED: Final = 250
_KEY_DIGITS: Final = 32
#: outcomes of the engine whose messages have another name
_OUTCOMES: Final = {"kicked": "retried", "gone": "unchanged"}


@dataclass(frozen=True, slots=True)
class PlaceAction:
    """Action on jobs of some places; ``permission`` is that of the app."""

    name: str
    permission: str
    places: tuple[str, ...]
    title: _StrPromise
    effect: _StrPromise
    verb: Callable[[], Verb]
    harmful: bool = False


ACTIONS: Final = {
    action.name: action
    for action in (
        PlaceAction(
            "run",
            "run_livejob",
            ("waiting", "failed"),
            gettext_lazy("Run now"),
            gettext_lazy("They become due now, and the next free worker runs them."),
            lambda: RUN_NOW,
        ),
        PlaceAction(
            "cancel",
            "cancel_livejob",
            ("waiting", "failed"),
            gettext_lazy("Cancel"),
            gettext_lazy("They are deleted for good, with their arguments and payloads."),
            lambda: CANCEL,
            harmful=True,
        ),
        PlaceAction(
            "retry",
            "retry_morguejob",
            ("morgue",),
            gettext_lazy("Retry now"),
            gettext_lazy("They leave the morgue, and the next free worker runs them. Their failures are reset."),
            kick,
        ),
        PlaceAction(
            "discard",
            "discard_morguejob",
            ("morgue",),
            gettext_lazy("Discard"),
            gettext_lazy("They are deleted for good, with their arguments. This cannot be undone."),
            lambda: DISCARD,
            harmful=True,
        ),
    )
}


class LiveBulkPages(LiveListPages):
    """Confirmation pages and execution of the actions."""

    def bulk_pages(self) -> list[URLPattern]:
        """Return the URL of each action."""
        return [
            self.page(f"bulk/{name}/", partial(self.bulk_view, action=action), f"bulk_{name}", methods="POST")
            for name, action in ACTIONS.items()
        ]

    def bulk_actions(self, request: HttpRequest, place: str) -> list[Any]:
        """Return the actions on jobs of a place that the user may use, with their URLs."""
        return [
            (action, self.url(f"bulk_{action.name}"))
            for action in ACTIONS.values()
            if place in action.places and _may(request, action)
        ]

    def bulk_view(self, request: HttpRequest, action: PlaceAction) -> HttpResponse:
        """Render the confirmation page, or carry the action out.

        Raises:
            PermissionDenied: the user may not use the action.
        """
        if not _may(request, action):
            raise PermissionDenied
        query = BrowseQuery.of(QueryDict(request.POST.get("address", "")))
        selected = request.POST.getlist("selected")[:MOST_SELECTED]
        all_matching = request.POST.get("across") == "1" and not query.where.is_empty and not query.text
        if query.place not in action.places or not (selected or all_matching):
            messages.warning(request, _("Nothing was done. Select jobs, or filter the list and choose all that match."))
            return self.back(self.link(query))
        if "confirmed" not in request.POST:
            return self._confirm_bulk(request, action, query, [] if all_matching else selected)
        if not all_matching:
            return self._change_selected(request, action, query, [_selected_of(one) for one in selected])
        return self._change_matching(request, action, query)

    def _confirm_bulk(
        self,
        request: HttpRequest,
        action: PlaceAction,
        query: BrowseQuery,
        selected: Sequence[str],
        cursor: str = "",
    ) -> HttpResponse:
        context = {
            "action": action,
            "query": query,
            "filters": query.filters.items(),
            "address": request.POST.get("address", ""),
            "selected": selected,
            "cursor": cursor,
            "yes": _("Continue") if cursor else action.title,
            "harmful": action.harmful,
            "back": self.link(query),
        }
        return self.render(request, "live_bulk", action.title, context, trail=[(str(action.title), "")])

    def _change_selected(
        self, request: HttpRequest, action: PlaceAction, query: BrowseQuery, selected: list[tuple[str, str, bytes]]
    ) -> HttpResponse:
        act, counts = action.verb().action, Counter[str]()
        try:
            for name, ident, key in selected:
                queue = connections.existing_queue(name)
                outcome = "" if queue is None else act.anywhere(queue, ident, Generation((key,)))
                counts[outcome or "gone"] += 1
        finally:  # also if Redis became unavailable midway
            self.note(request, query.queue or "*", f"{action.name} selected: {dict(counts)}")
        _report(request, counts)
        return self.back(self.link(query))

    def _change_matching(self, request: HttpRequest, action: PlaceAction, query: BrowseQuery) -> HttpResponse:
        """Change all jobs that match, for at most :data:`LONGEST` seconds; then the user may continue."""
        verb, counts, end = replace(action.verb(), place=query.place), Counter[str](), time.monotonic() + LONGEST
        begin, _sep, cursor = request.POST.get("cursor", "").partition(":")
        names = [query.queue] if query.queue else sorted(connections.broker().queue_names())
        position = ""
        try:
            for name in names:
                queue = connections.existing_queue(name)
                if queue is None or name < begin:
                    continue
                changed = change(
                    queue,
                    verb,
                    query.where,
                    accepts=query.accepts(),
                    cursor=cursor if name == begin else "",
                    seconds=max(0.0, end - time.monotonic()),
                )
                counts += changed.counts
                if changed.cursor:
                    position = f"{name}:{changed.cursor}"
                    break
        finally:
            filters = ", ".join(f"{name} {value}" for name, value in query.filters.items())
            self.note(request, query.queue or "*", f"{action.name} all that match ({filters}): {dict(counts)}")
        _report(request, counts)
        if position:
            messages.warning(request, _("Stopped after %(n)g s. Some jobs were not read yet.") % {"n": LONGEST})
            return self._confirm_bulk(request, action, query, [], position)
        return self.back(self.link(query))


def _may(request: HttpRequest, action: PlaceAction) -> bool:
    user: Any = request.user
    return bool(user.has_perm(f"django_delayq.{action.permission}"))


def _selected_of(text: str) -> tuple[str, str, bytes]:
    """Return queue, id and key of a checkbox.

    Raises:
        Http404: it is not the value of one.
    """
    digits, _colon, name = text.partition(":")
    queue, slash, ident = name.partition("/")
    try:
        if len(digits) != _KEY_DIGITS or not slash or not ident:
            raise ValueError(text)
        return queue, ident, bytes.fromhex(digits)
    except ValueError:
        raise Http404("the selection could not be read; select the jobs again") from None


def _report(request: HttpRequest, counts: Mapping[str, int]) -> None:
    """Show the numbers of jobs by outcome."""
    outcomes = {_OUTCOMES.get(word, word): number for word, number in counts.items()}
    level, text = result_message(outcomes, _("No job matched."))
    messages.add_message(request, level, text)
