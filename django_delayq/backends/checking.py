"""Messages of ``DelayQBackend.check()``, which Django's own check of the setting ``TASKS`` calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning

from ..core.errors import InvalidJob
from ..core.inputs import check_queue_name, short, suggest
from ..settings.conf import SETTING, conf_or_defaults
from .options import problems
from .registration import known_names

if TYPE_CHECKING:
    from .backend import DelayQBackend


def messages(backend: DelayQBackend) -> Iterator[CheckMessage]:
    """Yield every error in the settings of one backend."""
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed("django_delayq"):
        yield Error(
            f"{where} is a backend of django_delayq, which is not in INSTALLED_APPS.",
            hint='Add "django_delayq" to INSTALLED_APPS: its worker runs the tasks.',
            id="delayq.E043",
        )
    yield from _queues(backend.given_queues, where)
    has_errors = False
    for problem in problems(backend.options, f"{where}['OPTIONS']"):
        has_errors = True
        yield Error(problem, hint="Correct it: no task can be enqueued until then.", id="delayq.E041")
    if not has_errors:
        yield from _unknown_tasks(backend, f"{where}['OPTIONS']['tasks']")


def _queues(given: object, where: str) -> Iterator[CheckMessage]:
    if not isinstance(given, (list, tuple, set, frozenset)):
        yield Error(
            f"{where}['QUEUES'] must be a list of queue names, got {short(given)}.",
            hint="Give a list like ['default']; [] takes every name.",
            id="delayq.E040",
        )
        return
    for name in sorted(given, key=str):
        try:
            check_queue_name(name)
        except InvalidJob as error:
            yield Error(f"{where}['QUEUES']: {error}.", hint="Give the queue another name.", id="delayq.E040")
            continue
        if conf_or_defaults().queue(name).kind == "pull":
            yield Error(
                f"{where}['QUEUES'] names {name!r}, which is of kind 'pull' in {SETTING}['QUEUES']: workers "
                f"do not run its tasks.",
                hint="Give the tasks another queue, or make this one of kind 'python'.",
                id="delayq.E042",
            )


def _unknown_tasks(backend: DelayQBackend, where: str) -> Iterator[CheckMessage]:
    names = known_names()
    for name in backend.settings.tasks:
        if name not in names:
            yield Warning(
                f"{where} names {short(name)}, which is not a Task.{suggest(name, names)}",
                hint="Correct the name (its app's label and the function, or its module path), or remove it.",
                id="delayq.W040",
            )
