"""Forms of the verbs: due times, confirmations, properties of queues, and edited arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from .. import connections, limits
from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name
from ..core.layouts import LIMITS, limits_in_force
from ..core.records.keys import MAX_SHARDS
from ..core.workers import CHOICES
from ..masking import HIDDEN, MaskError
from ..settings.conf import mask
from ..status.formatting import duration

if TYPE_CHECKING:
    from .actions import Target

#: unit → its length in seconds, and its name
_UNITS: Final = {
    "seconds": (1, gettext_lazy("seconds")),
    "minutes": (60, gettext_lazy("minutes")),
    "hours": (3600, gettext_lazy("hours")),
    "days": (86_400, gettext_lazy("days")),
}
_LONGEST: Final = 10 * 365 * 86_400
#: lengths of a pause that the page offers, s
PAUSES: Final = {"10m": 600, "1h": 3_600, "1d": 86_400}


class TargetForm(forms.Form):
    """Form of a verb about a target."""

    def __init__(self, *args: Any, target: Target | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._target = target


# -- due times ---------------------------------------------------------------------------------------------------------


def _unit(**options: Any) -> forms.ChoiceField:
    choices = [(unit, name) for unit, (_, name) in _UNITS.items()]
    return forms.ChoiceField(label=gettext_lazy("Unit"), initial="minutes", choices=choices, **options)


class RescheduleForm(TargetForm):
    """New due time of a waiting job."""

    delay = forms.FloatField(label=gettext_lazy("In"), min_value=0, required=False)
    unit = _unit(required=False)
    at = forms.DateTimeField(
        label=gettext_lazy("Or at"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S"),
    )

    def clean(self) -> dict[str, Any]:
        """Return the arguments for ``reschedule``; exactly one of the two must be given."""
        data = super().clean() or {}
        delay, at = data.get("delay"), data.get("at")
        if not self.errors and (delay is None) == (at is None):
            raise forms.ValidationError(_("Give either a delay or a moment."))
        if delay is not None:
            return {"delay": delay * _UNITS[data.get("unit") or "seconds"][0]}
        return {"at": at if at is None or timezone.is_aware(at) else at.timestamp()}


class DelayForm(TargetForm):
    """Delay from now, of at most ten years."""

    delay = forms.IntegerField(label=gettext_lazy("Retry in"), min_value=0, initial=10)
    unit = _unit()

    def clean(self) -> dict[str, Any]:
        """Combine number and unit into ``seconds``."""
        data = super().clean() or {}
        if "delay" in data and "unit" in data:
            data["seconds"] = data["delay"] * _UNITS[data["unit"]][0]
            if data["seconds"] > _LONGEST:
                raise forms.ValidationError(_("This delay is longer than ten years. Choose a shorter one."))
        return data


# -- queues ------------------------------------------------------------------------------------------------------------


class PauseForm(TargetForm):
    """Direction and length of a pause, as the buttons of a queue send them."""

    LABELS: Final = {
        "out": gettext_lazy("Pause workers"),
        "in": gettext_lazy("Pause new jobs"),
        "both": gettext_lazy("Pause both"),
    }

    direction = forms.CharField(required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        lengths = [("", _("until resumed")), *((name, duration(seconds)) for name, seconds in PAUSES.items())]
        self.fields["for"] = forms.CharField(
            required=False, widget=forms.Select(choices=lengths, attrs={"aria-label": _("Length of the pause")})
        )

    def clean(self) -> dict[str, Any]:
        """Return the direction and the length in seconds; None = no end."""
        data = super().clean() or {}
        if data.get("direction") not in self.LABELS:
            raise forms.ValidationError(_("Nothing was paused. Choose new jobs, workers or both."))
        return {"direction": data["direction"], "for": PAUSES.get(data["for"])}


class WorkerChoiceForm(TargetForm):
    """Worker that a button lets watch or ignore a queue."""

    worker = forms.CharField(required=False)
    word = forms.CharField(required=False)

    def clean(self) -> dict[str, Any]:
        """Check the word; that there is such a worker is seen when it is told."""
        data = super().clean() or {}
        if data.get("word") not in CHOICES:
            raise forms.ValidationError(_("There is no such worker any more. Nothing was changed."))
        return data


class TypedNameForm(TargetForm):
    """Confirmation by typing the queue's name."""

    typed = forms.CharField(
        label=gettext_lazy("Name of the queue"), widget=forms.TextInput(attrs={"autocomplete": "off"})
    )

    def clean_typed(self) -> str:
        """Check that the typed name is exactly the queue's."""
        typed: str = self.cleaned_data["typed"]
        if self._target is None or typed != self._target.name:
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


def _count(label: Any, text: Any) -> forms.IntegerField:
    return forms.IntegerField(label=label, help_text=text, min_value=1, max_value=1 << 40, required=False)


def _span(label: Any, text: Any) -> forms.FloatField:
    return forms.FloatField(label=label, help_text=text, min_value=1, max_value=1e9, required=False)


class LimitsForm(TargetForm):
    """Limits of a queue; an empty field is no limit."""

    max_length = _count(gettext_lazy("Maximum of live jobs"), gettext_lazy("further ones are refused"))
    morgue_max = _count(gettext_lazy("Maximum of jobs in the morgue"), gettext_lazy("the oldest are deleted first"))
    morgue_ttl = _span(gettext_lazy("Kept in the morgue for"), gettext_lazy("seconds; 604800 is a week"))
    priorities = forms.ChoiceField(
        label=gettext_lazy("Priorities"),
        choices=[
            ("strict", gettext_lazy("strict: more urgent jobs always go first")),
            ("weighted", gettext_lazy("weighted: more urgent jobs go first more often")),
        ],
    )
    starve_after = _span(
        gettext_lazy("Due jobs starve after"),
        gettext_lazy("seconds; then a quarter of the jobs that workers take are such jobs, whatever their priority"),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._target is not None and self._target.subject is not None:
            self.initial = limits_in_force(self._target.subject.layout)

    @property
    def is_configured(self) -> bool:
        """True if the settings name the queue, so that its limits follow them."""
        return self._target is not None and connections.is_configured(self._target.name)

    def clean(self) -> dict[str, Any]:
        """Refuse limits of a queue that the settings name."""
        if self.is_configured:
            raise forms.ValidationError(_("The limits of this queue follow the settings."))
        return super().clean() or {}


class ThrottleForm(TargetForm):
    """Limit over all workers at run time: of a group, of a task, or of the queue; without numbers it is cleared."""

    group = forms.CharField(
        label=gettext_lazy("Group"), required=False, strip=False, help_text=gettext_lazy("of the queue")
    )
    task = forms.CharField(
        label=gettext_lazy("Or task"),
        required=False,
        help_text=gettext_lazy("in all queues; neither = the whole queue"),
    )
    concurrency = _count(gettext_lazy("Jobs at a time"), gettext_lazy("over all workers"))
    rate = forms.CharField(
        label=gettext_lazy("Starts in a time"),
        required=False,
        help_text=gettext_lazy("like 10/s, 1000/m, 5/h or 100/d"),
    )
    burst = _count(gettext_lazy("Starts at once"), gettext_lazy("of the rate"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not self.is_bound:
            with suppress(InvalidJob):
                numbers = limits.get(**self._jobs_of(self.initial))
                rate = {"rate": f"{numbers['rate']:g}/s"} if "rate" in numbers else {}
                self.initial = {**self.initial, **numbers, **rate}

    def clean(self) -> dict[str, Any]:
        """Return the jobs and the numbers as ``limits.set()`` takes them."""
        data = super().clean() or {}
        numbers = {name: data[name] for name in ("concurrency", "rate", "burst") if data.get(name)}
        return {"jobs": self._jobs_of(data), "numbers": numbers}

    def _jobs_of(self, data: Mapping[str, Any]) -> dict[str, str]:
        named = {name: data[name] for name in ("task", "group") if data.get(name)}
        return named if "task" in named or self._target is None else {"queue": self._target.name, **named}


class ReshardForm(TargetForm):
    """Number of shards of a queue."""

    shards = forms.IntegerField(label=gettext_lazy("Shards"), min_value=1, max_value=MAX_SHARDS)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial = {"shards": self._target.subject.shards if self._target is not None else 1}


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


# -- other content -----------------------------------------------------------------------------------------------------


class JSONText(forms.CharField):
    """Field for JSON of one type, edited by a user; tags like ``{"$dt": …}`` stay as they are.

    Args:
        stored: the value in Redis, a list or a dict; masked parts of the text stand for its parts.
        names: names of the items of a list, for the mask.
    """

    widget = forms.Textarea(attrs={"cols": 90, "spellcheck": "false", "class": "vLargeTextField delayq-json"})

    def __init__(self, *, stored: Any, names: list[str], **options: Any) -> None:
        self._stored, self._names = stored, names
        masked = mask().arguments(stored, {}, names)[0] if isinstance(stored, list) else mask().value(stored)
        text = json.dumps(masked, ensure_ascii=False, indent=2)
        super().__init__(required=False, strip=True, initial=text, **options)
        self.widget.attrs["rows"] = min(24, max(3, text.count("\n") + 2))

    def clean(self, value: Any) -> Any:
        """Return the value, with masked parts restored."""
        kind = type(self._stored)
        try:
            edited = json.loads(super().clean(value) or json.dumps(kind()))
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(_("This is not JSON: %(error)s") % {"error": error}) from None
        if not isinstance(edited, kind):
            expected = _("a list […]") if kind is list else _("an object {…}")
            raise forms.ValidationError(_("This must be %(expected)s.") % {"expected": expected})
        try:
            return mask().restored(edited, self._stored, self._names if kind is list else None)
        except MaskError:
            text = _(
                "“%(hidden)s” is the placeholder of a hidden value. Leave it where it was, or replace it with a new "
                "value."
            )
            raise forms.ValidationError(text % {"hidden": HIDDEN}) from None
        except RecursionError:
            raise forms.ValidationError(_("This is nested too deeply. Use a flatter value.")) from None


class EditForm(DelayForm):
    """Edited arguments of one job."""

    def __init__(self, *args: Any, call: tuple[list[Any], dict[str, Any]], names: list[str], **options: Any) -> None:
        super().__init__(*args, **options)
        text = _("A JSON list: %(names)s") % {"names": ", ".join(names) or "…"}
        self.fields["args"] = JSONText(stored=call[0], names=names, label=_("Arguments"), help_text=text)
        text = _("A JSON object.")
        self.fields["kwargs"] = JSONText(stored=call[1], names=[], label=_("Named arguments"), help_text=text)
        self.fields["delay"].initial = 0
        self.order_fields(("args", "kwargs", "delay", "unit"))
