"""A backend for Django's own Tasks: ``TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend"}}``.

``django.tasks`` from Django 6.0 on, its backport ``django-tasks`` before (``pip install "django-delayq[tasks]"``). The
names are loaded when they are first used, because most projects have neither: only :mod:`.tasks_setting` does without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .backend import DelayQBackend
    from .task import DelayQTask

__all__ = ["DelayQBackend", "DelayQTask"]

_HOME: Final = {"DelayQBackend": "backend", "DelayQTask": "task"}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.listening").connect()
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
