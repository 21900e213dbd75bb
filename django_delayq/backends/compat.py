"""Compatibility layer over the two implementations of Tasks: Django's own from 6.0 on, the backport before.

They are separate: on Django 6 a backend of the backport would not receive Django's signals. So this module checks the
version of Django, and not whether the backport is installed.
"""
# ruff: noqa: F401 (what it imports is what it offers)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import django

#: True if Tasks are a part of Django
NATIVE: Final = django.VERSION >= (6, 0)

if TYPE_CHECKING or NATIVE:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, exceptions, task, task_backends
    except ImportError as error:
        raise ImportError(
            f"Tasks are a part of Django from 6.0 on; this is {django.get_version()}, which needs the backport: "
            f"pip install 'django-delayq[tasks]'"
        ) from error
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    # They had other names in the backport until it adopted Django's.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    InvalidTaskBackend = getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult
