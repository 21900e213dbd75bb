"""Backend for Django's own Tasks: ``TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend"}}``.

Uses ``django.tasks`` from Django 6.0 on, and its backport ``django-tasks`` before
(``pip install "django-delayq[tasks]"``). Importing this package imports that framework, so the rest of django_delayq
imports it only if the setting ``TASKS`` names it.
"""

from .backend import DelayQBackend as DelayQBackend
