"""A project whose ``TASKS`` is a backend of ours, in either world: Django's own Tasks or the backport."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.test import override_settings

TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend", "QUEUES": ["default", "queue_1", "mail"]}}

if django.VERSION < (6, 0) and importlib.util.find_spec("django_tasks") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # The backend is asked for while the module with the tasks is imported.
    with override_settings(TASKS=TASKS):
        from . import deeds
        from .stage import compat, make_worker


@pytest.fixture(autouse=True)
def tasks_setting(settings: Any) -> Iterator[None]:
    """``settings.TASKS`` of these tests."""
    settings.TASKS = TASKS
    deeds.seen.clear()
    yield
    # Registered again without the options of the test: the registry is that of all tests.
    settings.TASKS = TASKS
    for task in vars(deeds).values():
        if isinstance(task, compat.Task):
            compat.task_backends["default"].validate_task(task)


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any, str]]]:
    """Signals of the framework as they arrive: (name, sender, status then)."""
    told: list[tuple[str, Any, str]] = []
    receivers = []
    for name in ("task_enqueued", "task_started", "task_finished"):

        def receiver(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            told.append((name, sender, str(task_result.status.value)))

        getattr(compat, name).connect(receiver)
        receivers.append((getattr(compat, name), receiver))
    yield told
    for signal, receiver in receivers:
        signal.disconnect(receiver)


@pytest.fixture
def work(delayq: Any, transactional_db: None) -> Callable[..., Any]:
    """``work()``: a worker of this process does everything that is ready, in all queues of the tests."""

    def run(**changes: Any) -> Any:
        chosen = {"queues": ("default", "queue_1", "mail"), "threads": 2, "burst": True, "dispatcher": False, **changes}
        worker = make_worker(**chosen)
        worker.start()
        assert worker.done.wait(20), "the worker did not run dry"
        assert worker.stop(5)
        return worker

    return run
