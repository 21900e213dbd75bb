"""Sentences about the outcomes of an action on jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.contrib import messages
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .formatting import grouped

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
