"""The settings of the worker processes that these tests start: Tasks of this folder on our backend."""

import django

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [
    *INSTALLED_APPS,
    *(["django_tasks"] if django.VERSION < (6, 0) else []),
    "tests.tasks_backend.workshop",
]
_WORLD = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
TASKS = {
    "default": {"BACKEND": "django_delayq.backends.DelayQBackend"},
    "immediate": {"BACKEND": f"{_WORLD}.backends.immediate.ImmediateBackend"},
}
