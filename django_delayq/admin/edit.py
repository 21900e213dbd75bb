"""Retry of one job with edited content: a form over the job's present content in Redis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from .. import repair
from ..core import codec
from ..core.errors import DelayQError, InvalidJob
from ..core.job import Payload, Undecodable
from ..core.job_view import JobView
from ..repair.edit import MOST_PAYLOADS
from ..settings.conf import mask
from ..status.job_content import argument_names, loaded, split_call
from . import formatting
from .forms import CallForm, EditForm, PayloadsForm
from .job_actions import JobActionsMixin
from .outcomes import result_message
from .redis_state import RedisState, read_state

if TYPE_CHECKING:
    from django.http import HttpRequest

#: maximum size of content that can be edited in a form
_MOST_BYTES: Final = 200_000


class EditMixin(JobActionsMixin):
    """Mixin that adds the page ``<key>/edit/``."""

    def get_urls(self) -> list[Any]:
        """Return the URLs, with the edit page before the catch-all pattern."""
        name = self.url_name("edit")
        edit_path = path("<path:object_id>/edit/", self.admin_site.admin_view(self.edit_view), name=name)
        return [edit_path, *super().get_urls()]

    def has_edit_permission(self, request: HttpRequest) -> bool:
        """Return True with the permission ``edit_<model>``."""
        return self.may(request, "edit")

    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the form, or retry the job with the posted content.

        Raises:
            PermissionDenied: the user may not edit jobs.
        """
        if not self.has_edit_permission(request):
            raise PermissionDenied
        row = self.object_or_404(request, object_id)
        state = read_state(row, most=MOST_PAYLOADS + 1)
        refusal = _refusal(state)
        if refusal or state.view is None:
            self.message_user(request, refusal, messages.ERROR)
            return HttpResponseRedirect(self.url("change", row.pk))
        form = _form(state.view, state.payloads, row.task, request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            outcomes = self._retry(request, row, form)
            if outcomes is not None:
                level, text = result_message(outcomes)
                self.message_user(request, text, level)
                return HttpResponseRedirect(self.url("changelist"))
        title, back = _("Retry with other content"), self.url("change", row.pk)
        context = {"form": form, "row": row, "state": state, "back": back, "yes": _("Retry with this content")}
        return self.render(request, "edit", title, context, trail=[(row.job_id, back), (title, "")])

    def _retry(self, request: HttpRequest, row: Any, form: EditForm) -> dict[str, int] | None:
        """Retry the job and return the outcomes; None if the form has to be shown again."""
        data = form.cleaned_data
        try:
            if isinstance(form, PayloadsForm):
                payloads = [(_value(entry["payload"]), str(entry["score"])) for entry in data["payloads"]]
                outcome = repair.retry_edited(row, payloads=payloads, delay=data["seconds"] or None)
            else:
                args, kwargs = _value(data["args"]), _value(data["kwargs"])
                outcome = repair.retry_edited(row, args=args, kwargs=kwargs, delay=data["seconds"] or None)
        except (InvalidJob, Undecodable, TypeError, ValueError) as error:
            form.add_error(None, ValidationError(mask().text(str(error))))
            return None
        except DelayQError as error:
            form.add_error(None, ValidationError(_("The action failed: %(error)s") % {"error": error}))
            return None
        self.note(request, [row], CHANGE, f"{_('Retry with other content')}: {outcome}")
        return {outcome: 1}


def _value(edited: Any) -> Any:
    """Return the value that the handler will receive, tags decoded.

    Raises:
        Undecodable: a tag is invalid.
        ValueError: it is nested too deep.
    """
    try:
        return codec.decode(json.dumps(edited).encode())
    except RecursionError:
        raise ValueError(_("This is nested too deeply. Use a flatter value.")) from None


def _refusal(state: RedisState) -> str:
    """Return why there is nothing to edit; empty if there is."""
    if state.view is None:
        return _("There is nothing to edit (%(state)s).") % {"state": state.label}
    if state.view.state == "reserved":
        return _("The job is running. Wait until this attempt has ended.")
    if state.total > MOST_PAYLOADS:
        return _("The job has %(n)d payloads, too many for this form. Retry it unchanged, or schedule a new job.") % {
            "n": state.total
        }
    size = len(state.view.job.args) + sum(len(payload.data) for payload in state.payloads)
    if size > _MOST_BYTES:
        return _(
            "The content has %(size)s, too much for this form. Retry the job unchanged, or schedule a new one."
        ) % {"size": formatting.size(size)}
    try:
        if state.view.job.merged:
            for payload in state.payloads:
                loaded(payload.data)
        else:
            split_call(state.view.job.args)
    except ValueError:
        return _(
            "The stored content is not JSON, so it cannot be edited. Retry the job unchanged, or schedule a new one."
        )
    return ""


def _form(view: JobView, payloads: Sequence[Payload], task: str, posted: Any) -> EditForm:
    version = _version(view.job.args, payloads)
    if view.job.merged:
        entries = [{"score": _score(payload), "payload": loaded(payload.data)} for payload in payloads]
        return PayloadsForm(posted, payloads=entries, mask=mask(), version=version)
    call = split_call(view.job.args)
    return CallForm(posted, call=call, names=argument_names(task), mask=mask(), version=version)


def _score(payload: Payload) -> Any:
    """Return a score as a number, or as its original text if the number would be written differently."""
    for kind in (int, float):
        try:
            number = kind(payload.score)
        except ValueError:
            continue
        if str(number) == payload.score:
            return number
    return payload.score


def _version(args: bytes, payloads: Sequence[Payload]) -> str:
    """Return a keyed digest that identifies the content without revealing it, since the page contains it."""
    parts = [args, *(payload.score.encode() + b"\0" + payload.data for payload in payloads)]
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return salted_hmac("django_delayq.admin.edit", framed, algorithm="sha256").hexdigest()[:32]
