"""A backend for Django's own Tasks: ``TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend"}}``.

``django.tasks`` from Django 6.0 on, its backport ``django-tasks`` before (``pip install "django-delayq[tasks]"``).
Importing this package imports that framework, so nothing else here does it unless the setting ``TASKS`` asks for it.
"""

from __future__ import annotations

from . import listening
from .backend import DelayQBackend
from .task import DelayQTask

__all__ = ["DelayQBackend", "DelayQTask"]

listening.connect()
