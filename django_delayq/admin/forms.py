"""Forms for due times, and for retries with edited content."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

from django import forms
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..masking import HIDDEN, Mask, MaskError

_UNITS: Final = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86_400}
_UNIT_NAMES: Final = (("seconds", _("seconds")), ("minutes", _("minutes")), ("hours", _("hours")), ("days", _("days")))
_LONGEST: Final = 10 * 365 * 86_400
_WIDE: Final = {"cols": 90, "spellcheck": "false", "class": "vLargeTextField delayq-json"}


class RescheduleForm(forms.Form):
    """New due time of a waiting job."""

    delay = forms.FloatField(label=_("In"), min_value=0, required=False)
    unit = forms.ChoiceField(
        label=_("unit"),
        choices=_UNIT_NAMES,
        initial="minutes",
        required=False,
    )
    at = forms.DateTimeField(
        label=_("Or at"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
    )

    def clean(self) -> dict[str, Any]:
        """Check that exactly one of the two is given."""
        data = super().clean() or {}
        if not self.errors and (data.get("delay") is None) == (data.get("at") is None):
            raise forms.ValidationError(_("Give either a delay or a moment."))
        return data

    @property
    def when(self) -> dict[str, Any]:
        """Arguments for ``reschedule``."""
        data = self.cleaned_data
        if data["delay"] is not None:
            return {"delay": data["delay"] * _UNITS[data["unit"] or "seconds"]}
        at = data["at"]
        return {"at": at if timezone.is_aware(at) else at.timestamp()}


class DelayForm(forms.Form):
    """Delay from now."""

    delay = forms.IntegerField(label=_("Retry in"), min_value=0, initial=10)
    unit = forms.ChoiceField(
        label=_("Unit"),
        initial="minutes",
        choices=_UNIT_NAMES,
    )

    def clean(self) -> dict[str, Any]:
        """Combine number and unit into a span of at most ten years."""
        data = super().clean() or {}
        if "delay" in data and "unit" in data:
            seconds = data["delay"] * _UNITS[data["unit"]]
            if seconds > _LONGEST:
                raise forms.ValidationError(_("This delay is longer than ten years. Choose a shorter one."))
            data["seconds"] = seconds
        return data

    @property
    def span(self) -> timedelta:
        """Delay of a valid form."""
        return timedelta(seconds=self.cleaned_data["seconds"])


class JSONText(forms.CharField):
    """Field for JSON of one type, edited by a user; tags like ``{"$dt": …}`` stay as they are.

    Args:
        kind: dict or list.
        stored: the value in Redis; masked parts of the text stand for its parts.
        mask: the mask for secrets.
        names: names of the items, for the mask.
    """

    widget = forms.Textarea(attrs=_WIDE)

    def __init__(self, *, kind: type, stored: Any, mask: Mask, names: list[str] | None = None, **options: Any) -> None:
        self._kind = kind
        self._stored = stored
        self._mask = mask
        self._names = names or []
        text = self._text()
        super().__init__(required=False, strip=True, initial=text, **options)
        self.widget.attrs["rows"] = min(24, max(3, text.count("\n") + 2))

    def _masked(self) -> Any:
        if self._kind is list:
            return self._mask.arguments(self._stored, {}, self._names)[0]
        return self._mask.value(self._stored)

    def _text(self) -> str:
        return json.dumps(self._masked(), ensure_ascii=False, indent=2)

    def clean(self, value: Any) -> Any:
        """Return the value, with masked parts restored."""
        text = super().clean(value) or json.dumps(self._kind())
        try:
            edited = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not JSON: %(error)s") % {"error": error}) from None
        if not isinstance(edited, self._kind):
            expected = _("a list […]") if self._kind is list else _("an object {…}")
            raise forms.ValidationError(_("This must be %(expected)s.") % {"expected": expected})
        try:
            if isinstance(edited, list):
                return self._mask.restored_arguments(edited, self._stored, self._names)
            return self._mask.restored(edited, self._stored)
        except MaskError:
            raise forms.ValidationError(
                _(
                    "“%(hidden)s” is the placeholder of a hidden value. Leave it where it was, or "
                    "replace it with a new value."
                )
                % {"hidden": HIDDEN}
            ) from None
        except RecursionError:
            raise forms.ValidationError(_("This is nested too deeply. Use a flatter value.")) from None


class EditForm(DelayForm):
    """Edited content of one job. ``version`` detects concurrent changes to the job."""

    version = forms.CharField(widget=forms.HiddenInput, required=False)
    field_order = ("args", "kwargs", "payloads", "delay", "unit", "version")

    def __init__(self, *args: Any, version: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._version = version
        self.fields["version"].initial = version
        self.fields["delay"].initial = 0

    def clean_version(self) -> str:
        """Check that the job still has the content that was shown."""
        if self.cleaned_data["version"] != self._version:
            raise forms.ValidationError(
                _("The job has changed since this page was opened. Open the page again to edit its current content.")
            )
        return self._version


class CallForm(EditForm):
    """Edited arguments."""

    def __init__(
        self, *args: Any, call: tuple[list[Any], dict[str, Any]], names: list[str], mask: Mask, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        positional, named = call
        self.fields["args"] = JSONText(
            kind=list,
            stored=positional,
            mask=mask,
            names=names,
            label=_("Arguments"),
            help_text=_("A JSON list: %(names)s") % {"names": ", ".join(names) or "…"},
        )
        self.fields["kwargs"] = JSONText(
            kind=dict, stored=named, mask=mask, label=_("Named arguments"), help_text=_("A JSON object.")
        )
        self.order_fields(self.field_order)


class PayloadsForm(EditForm):
    """Edited payloads."""

    def __init__(self, *args: Any, payloads: list[dict[str, Any]], mask: Mask, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["payloads"] = JSONText(
            kind=list,
            stored=payloads,
            mask=mask,
            label=_("Payloads"),
            help_text=_('A JSON list of objects {"score": …, "payload": …}; the lowest score is handled first.'),
        )
        self.order_fields(self.field_order)

    def clean_payloads(self) -> list[dict[str, Any]]:
        """Check that each entry has a payload and a numeric score."""
        entries: list[dict[str, Any]] = self.cleaned_data["payloads"]
        if not entries:
            raise forms.ValidationError(_("A merged job needs at least one payload. To drop the job, discard it."))
        for place, entry in enumerate(entries, 1):
            if not isinstance(entry, dict) or entry.keys() != {"score", "payload"} or not _is_number(entry["score"]):
                raise forms.ValidationError(
                    _('Entry %(place)d must be {"score": a number, "payload": …}.') % {"place": place}
                )
        return entries


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and abs(float(value)) < float("inf")
    except (TypeError, ValueError, OverflowError):
        return False
