"""What the makers of jobs share: what the command line, the task and the settings say of the jobs of rows."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from ... import connections as ours
from ...core.task import Task, registry, suggest
from ...settings.conf import conf


def names(text: str) -> tuple[str, ...]:
    """An argparse type: columns or fields like ``pk,day``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def known_task(name: str, *, payload: str | None) -> Task:
    """The task of a name, if its jobs can be made.

    Args:
        payload: where the payload of a merged one comes from.

    Raises:
        CommandError: there is no such task, or its jobs want a payload and have none, or the other way round.
    """
    task = registry.get(name)
    if task is None:
        raise CommandError(
            f"there is no task {name!r} here.{suggest(name, registry.tasks)} `manage.py delayq_check` "
            "names those that there are. Jobs of an unknown task would wait for a worker that knows it",
            returncode=2,
        )
    if bool(task.options.merge) != (payload is not None):
        told = "is merged: its jobs need a --payload" if task.options.merge else "is not merged: leave --payload out"
        raise CommandError(f"task {name!r} {told}", returncode=2)
    return task


def policies(queue: str, task: Task | None, **given: object) -> dict[str, str]:
    """Options of the writer: what a call of ``schedule()`` takes from the task and the settings.

    Args:
        task: None = the jobs have none.
        given: options that go before those of the task; None = it was not given.
    """
    said: dict[str, Any] = {
        "shards": ours.configured_shards(queue),
        "maxArgsBytes": conf().max_args_bytes,
        "allowFar": str(conf().allow_far).lower(),
    }
    if task is not None:
        said |= {"priority": task.options.priority, "expires": task.options.expires}
    if task is not None and task.options.merge:
        said |= {
            "duePolicy": task.options.due_policy,
            "scorePolicy": task.options.score_policy,
            "payloads": task.options.payloads,
            "maxPayloads": task.options.max_payloads,
        }
    said |= {name: value for name, value in given.items() if value is not None}
    return {name: str(value) for name, value in said.items() if value is not None}
