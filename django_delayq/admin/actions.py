"""Registry of verbs: what each is called, who may use it, what its page asks, and what it does.

A verb about one thing (a queue, a job, a worker) is an :class:`Action` with one page, which asks and runs. Actions on
many jobs are the same objects; the lists that offer them ask with the same template, ``confirm.html``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _, ngettext

from ..core.errors import DelayQError, Misconfigured, QueuePaused, QueueUnavailable
from .base import RedisPages
from .formatting import grouped

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    from .forms import TargetForm


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a verb.

    Attributes:
        name: its name in the log of the admin.
        back: URL of its page.
        subject: the queue, job or worker itself.
        trail: breadcrumbs up to its page.
        up: URL of the list that has it.
    """

    name: str
    back: str
    subject: Any = None
    trail: Sequence[tuple[str, str]] = ()
    up: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a verb.

    Attributes:
        text: message to the user.
        log: entry of the admin's log; "" = none.
        level: level of the message.
        back: URL that follows; "" = the page of the target.
        hint: second message, a warning.
        about: name in the log, and of the page that follows, if it is not that of the target.
    """

    text: str
    log: str = ""
    level: int = messages.SUCCESS
    back: str = ""
    hint: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Definition of a verb.

    Attributes:
        name: name of its URL, and of its button in a list.
        permission: verb of the permission that it needs.
        title: text of its button and title of its page.
        run: carries it out, with what the form has.
        asks: a page asks first, with the text that ``confirm.html`` has for the name; else a button acts at once.
        form: form of that page, or for what its button sends.
        yes: button that confirms.
        harmful: it cannot be undone.
        prefilled: fields of the form that a link to the page may fill.
    """

    name: str
    permission: str
    title: _StrPromise
    run: Any
    asks: bool = False
    form: type[TargetForm] | None = None
    yes: _StrPromise | str = ""
    harmful: bool = False
    prefilled: Sequence[str] = ()


def action(title: _StrPromise, permission: str = "", **more: Any) -> Callable[[Callable[..., Any]], Action]:
    """Return a decorator that makes an :class:`Action` of the function that runs it, and names it so."""

    def made(run: Callable[..., Any]) -> Action:
        name = run.__name__
        return Action(name=name, permission=permission or name, title=title, run=run, **{"yes": title, **more})

    return made


class ActionPages(RedisPages):
    """Pages over Redis with verbs."""

    def action_page(self, route: str, action: Action, find: Callable[..., Target]) -> URLPattern:
        """Return the URL of a verb; ``find`` returns its target from the parts of the route, or raises Http404."""
        view = partial(self.act_view, action=action, find=find)
        methods = "GET HEAD POST" if action.asks else "POST"
        return self.page(f"{route}{action.name}/", view, action.name, verb=action.permission, methods=methods)

    def offered(self, request: HttpRequest, actions: Iterable[Action], *names: str) -> list[tuple[Action, str]]:
        """Return the verbs that the user may use, with their URLs."""
        return [(one, self.url(one.name, *names)) for one in actions if self.may(request, one.permission)]

    def act_view(self, request: HttpRequest, action: Action, find: Callable[..., Target], **where: str) -> HttpResponse:
        """Render the page that asks, or carry the verb out."""
        target = find(**where)
        posted = request.POST if request.method == "POST" else None
        initial = {name: request.GET[name] for name in action.prefilled if name in request.GET}
        form = None if action.form is None else action.form(posted, target=target, initial=initial)
        if posted is not None and (form is None or form.is_valid()):
            done = self.carry_out(request, action, target, form)
            if done is not None:
                made = self.url("change", done.about) if done.about else target.back
                return HttpResponseRedirect(done.back or made)
        if action.asks:
            return self.ask(request, action, target, form)
        for error in chain.from_iterable(form.errors.values() if form is not None else ()):
            messages.error(request, str(error))
        return HttpResponseRedirect(target.back)

    def carry_out(
        self, request: HttpRequest, action: Action, target: Target, form: TargetForm | None = None
    ) -> Outcome | None:
        """Run a verb, log it, and show its outcome. After an error return None; the form shows it, or a message."""
        try:
            done: Outcome = action.run(target, {} if form is None else form.cleaned_data)
        except DelayQError as error:
            if isinstance(error, QueueUnavailable | Misconfigured) and not isinstance(error, QueuePaused):
                self.note(request, target.name, f"{action.name}: Redis did not answer; it may be incomplete")
                raise
            if form is None:
                messages.error(request, str(error))
            else:
                form.add_error(None, str(error))
            return None
        if done.log:
            self.note(request, done.about or target.name, done.log)
        messages.add_message(request, done.level, done.text)
        if done.hint:
            messages.warning(request, done.hint)
        return done

    def question(self, action: Action, target: Target) -> dict[str, Any]:
        """Return what the text of a question needs."""
        return {}

    def ask(self, request: HttpRequest, action: Action, target: Target, form: TargetForm | None) -> HttpResponse:
        """Render the page that asks."""
        context = {"action": action, "target": target, "form": form, "back": target.back}
        context |= self.question(action, target)
        title = f"{action.title}: {target.name}" if target.name else action.title
        return self.render(request, "confirm", title, context, trail=[*target.trail, (str(action.title), "")])


# -- outcomes of actions on many jobs ----------------------------------------------------------------------------------

_DONE: Final = ("retried", "moved", "cancelled", "discarded", "buried")
_NOT_DONE: Final = ("live", "running", "gone", "unchanged")


def phrases(outcomes: Mapping[str, int]) -> list[str]:
    """Return one sentence for each outcome."""
    usual = (*_DONE, *_NOT_DONE)
    ordered = [*usual, *sorted(set(outcomes) - set(usual))]
    return [_phrase(outcome, outcomes[outcome]) for outcome in ordered if outcomes.get(outcome)]


def result_message(outcomes: Mapping[str, int], nothing: str = "") -> tuple[int, str]:
    """Return level and text of the result message; ``nothing`` is the text if there was no job."""
    text = " ".join(phrases(outcomes))
    done = text and not any(outcomes.get(outcome) for outcome in _NOT_DONE)
    return messages.SUCCESS if done else messages.WARNING, text or nothing or _("Nothing was done.")


def _phrase(outcome: str, n: int) -> str:
    texts = {
        "retried": ngettext("%(n)s job will be retried.", "%(n)s jobs will be retried.", n),
        "moved": ngettext("%(n)s job is due now.", "%(n)s jobs are due now.", n),
        "cancelled": ngettext("%(n)s job was cancelled.", "%(n)s jobs were cancelled.", n),
        "discarded": ngettext("%(n)s job was discarded.", "%(n)s jobs were discarded.", n),
        "buried": ngettext("%(n)s job was buried.", "%(n)s jobs were buried.", n),
        "live": ngettext(
            "%(n)s job was not changed, because another job with its id is live.",
            "%(n)s jobs were not changed, because other jobs with their ids are live.",
            n,
        ),
        "running": ngettext(
            "%(n)s job was not changed, because it is running.",
            "%(n)s jobs were not changed, because they are running.",
            n,
        ),
        "gone": ngettext(
            "%(n)s job no longer existed: it was run, changed or removed in the meantime.",
            "%(n)s jobs no longer existed: they were run, changed or removed in the meantime.",
            n,
        ),
        "unchanged": ngettext(
            "%(n)s job was not changed: it was run, changed or removed in the meantime.",
            "%(n)s jobs were not changed: they were run, changed or removed in the meantime.",
            n,
        ),
    }
    return texts[outcome] % {"n": grouped(n)} if outcome in texts else f"{outcome}: {n}"
