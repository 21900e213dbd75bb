"""Forms of the queue pages."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import connections
from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from ..core.layouts import LIMITS
from ..core.records.keys import MAX_SHARDS
from ..settings.conf import conf

_MOST: Final = 1 << 40


class TypedNameForm(forms.Form):
    """Confirmation by typing the queue's name."""

    typed = forms.CharField(
        label=gettext_lazy("Name of the queue"),
        required=True,
        strip=True,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )

    def __init__(self, *args: Any, queue: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._queue = queue

    def clean_typed(self) -> str:
        """Check that the typed name is exactly the queue's."""
        typed: str = self.cleaned_data["typed"]
        if typed != self._queue:
            raise forms.ValidationError(_("This is not the name of the queue. Nothing was done."))
        return typed


class PurgeForm(TypedNameForm):
    """Confirmation of a purge."""

    morgue = forms.BooleanField(label=gettext_lazy("also discard all jobs in its morgue"), required=False)


class DeleteForm(TypedNameForm):
    """Confirmation of a deletion."""

    force = forms.BooleanField(
        label=gettext_lazy("also if it holds jobs: they are lost, with its morgue and its unsent durable jobs"),
        required=False,
    )


class LimitsForm(forms.Form):
    """Limits of a queue; an empty field is no limit."""

    max_length = forms.IntegerField(
        label=gettext_lazy("Maximum of live jobs"),
        help_text=gettext_lazy("further ones are refused"),
        min_value=1,
        max_value=_MOST,
        required=False,
    )
    morgue_max = forms.IntegerField(
        label=gettext_lazy("Maximum of jobs in the morgue"),
        help_text=gettext_lazy("the oldest are deleted first"),
        min_value=1,
        max_value=_MOST,
        required=False,
    )
    morgue_ttl = forms.FloatField(
        label=gettext_lazy("Kept in the morgue for (seconds)"),
        help_text=gettext_lazy("604800 is a week"),
        min_value=1,
        max_value=1e9,
        required=False,
    )
    priorities = forms.ChoiceField(
        label=gettext_lazy("Priorities"),
        choices=[
            ("strict", gettext_lazy("strict: more urgent jobs always go first")),
            ("weighted", gettext_lazy("weighted: more urgent jobs go first more often")),
        ],
    )
    starve_after = forms.FloatField(
        label=gettext_lazy("Due jobs starve after (seconds)"),
        help_text=gettext_lazy("then a quarter of the jobs that workers take are such jobs, whatever their priority"),
        min_value=1,
        max_value=1e9,
        required=False,
    )

    @property
    def limits(self) -> dict[str, Any]:
        """Limits that were entered."""
        return {name: self.cleaned_data[name] for name in LIMITS}


class ReshardForm(forms.Form):
    """Number of shards of a queue."""

    shards = forms.IntegerField(label=gettext_lazy("Shards"), min_value=1, max_value=MAX_SHARDS)


class CreateForm(LimitsForm):
    """Properties of a new queue."""

    name = forms.CharField(label=gettext_lazy("Name"), widget=forms.TextInput(attrs={"autocomplete": "off"}))
    kind = forms.ChoiceField(
        label=gettext_lazy("Kind"),
        choices=[
            ("python", gettext_lazy("python: run by workers")),
            ("pull", gettext_lazy("pull: fetched by your own programs")),
        ],
    )
    shards = forms.IntegerField(label=gettext_lazy("Shards"), min_value=1, max_value=MAX_SHARDS, initial=1)
    field_order = ("name", "kind", "shards", *LIMITS)

    def clean_name(self) -> str:
        """Check the name, and that no queue has it."""
        try:
            name = check_queue_name(self.cleaned_data["name"])
        except InvalidJob as error:
            raise forms.ValidationError(str(error)) from None
        if connections.broker().known_queue(name) is not None:
            raise forms.ValidationError(_("There is a queue of this name. Change that one, or take another name."))
        return name

    def clean(self) -> dict[str, Any]:
        """Check that the settings, if they name the queue, have the same values."""
        cleaned = super().clean() or {}
        name = cleaned.get("name", "")
        if not connections.is_configured(name):
            return cleaned
        entry = conf().queue(name)
        declared = {word: getattr(entry, word) for word in ("kind", *LIMITS)}
        shards = connections.configured_shards(name)
        for word, value in (declared if shards is None else {**declared, "shards": shards}).items():
            if word in cleaned and cleaned[word] != value:
                text = _("The settings name this queue, with %(word)s=%(value)r. Enter that, or change it there.")
                self.add_error(word, text % {"word": word, "value": value})
        return cleaned
