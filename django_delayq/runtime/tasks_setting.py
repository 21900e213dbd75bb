"""Setting ``TASKS``, read without importing Django's Tasks, because most projects do not use them.

Django registers its own check of ``TASKS`` when ``django.tasks`` is imported, which Django itself never does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

import django
from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

_PATH: Final = "django_delayq.backends."
_NATIVE: Final = django.VERSION >= (6, 0)


def queue_names() -> set[str]:
    """Return the queues that backends of this package list: Tasks can be sent there by ``using(queue_name=…)``."""
    lists = [entry.get("QUEUES") for entry in _ours()]
    return {name for names in lists if isinstance(names, (list, tuple, set)) for name in names if isinstance(name, str)}


def _ours() -> list[Mapping[str, Any]]:
    """Return the entries of ``TASKS`` that name a backend of this package, as far as visible without importing it."""
    tasks = getattr(settings, "TASKS", None)
    entries = [entry for entry in tasks.values() if isinstance(entry, Mapping)] if isinstance(tasks, Mapping) else []
    return [entry for entry in entries if str(entry.get("BACKEND")).startswith(_PATH)]


def prepare(modules: Iterable[str]) -> None:
    """Let Django check our backend, and register its Tasks for workers. Called after the task modules were imported.

    Args:
        modules: names of the imported task modules.
    """
    if _ours():
        try:
            from .. import backends  # noqa: F401  # this import registers Django's check of TASKS
        except ImportError:
            return  # check delayq.E044 reports it
    if f"{_PATH}backend" in sys.modules:
        from ..backends.backend import adopt_tasks

        adopt_tasks(modules)


@register("delayq")
def check_world(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check the requirements of a backend of this package before Django 6.0."""
    if _NATIVE or not _ours() or find_spec("django_tasks"):
        return []
    return [
        Error(
            f"TASKS names a backend of django_delayq, but Django {django.get_version()} has no Tasks, and their "
            f"backport is not installed.",
            hint="pip install 'django-delayq[tasks]', or use Django 6.0 or newer.",
            id="delayq.E044",
        )
    ]
