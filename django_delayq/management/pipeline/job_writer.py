"""Task and options of the data source that writes jobs, for the subcommands that create jobs from rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from ... import connections as ours
from ...core.inputs import suggest
from ...core.task import Task, registry
from ...settings.conf import conf

if TYPE_CHECKING:
    from argparse import _ArgumentGroup


def column_names(text: str) -> tuple[str, ...]:
    """Return columns or fields like ``pk,day``, as an argparse type."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def add_fields(jobs: _ArgumentGroup, noun: str, *, payload: str = "payload of merged tasks") -> None:
    """Add the options that name the parts of a row of which its job is made.

    Args:
        jobs: group of the options.
        noun: name of such a part: column or field.
        payload: meaning of ``--payload``.
    """
    for name, text in (("args", "positional arguments"), ("kwargs", "named arguments"), ("context", "the context")):
        # "args" is reserved among the options of a Django command
        dest, meaning = f"job_{name}", f"{noun}s that are {text}"
        jobs.add_argument(f"--{name}", dest=dest, type=column_names, default=(), metavar="A,B", help=meaning)
    jobs.add_argument("--payload", metavar=noun.upper(), help=payload)
    jobs.add_argument("--score", metavar=noun.upper(), help="score of the payload")


def known_task(name: str, *, payload: str | None) -> Task:
    """Return the task of this name, if its jobs can be created.

    Args:
        payload: source of the payload of a merged task.

    Raises:
        CommandError: there is no such task, or a payload is missing or superfluous.
    """
    task = registry.get(name)
    if task is None:
        raise CommandError(
            f"there is no task {name!r} here.{suggest(name, registry.tasks)} Give the name of a registered task: "
            "no worker runs the jobs of an unknown one",
            returncode=2,
        )
    if bool(task.options.merge) != (payload is not None):
        problem = "is merged: its jobs need a --payload" if task.options.merge else "is not merged: leave --payload out"
        raise CommandError(f"task {name!r} {problem}", returncode=2)
    return task


def options(queue: str, task: Task | None, **overrides: object) -> dict[str, str]:
    """Return options of the writer: the values that ``schedule()`` takes from the task and the settings.

    Args:
        task: the task; None if the jobs have none.
        overrides: options that override those of the task; None = not given.
    """
    values: dict[str, Any] = {
        "shards": ours.configured_shards(queue),
        "maxArgsBytes": conf().max_args_bytes,
        "allowFar": str(conf().allow_far).lower(),
        "codec": conf().codec,
    }
    if task is not None:
        values |= {"priority": task.options.priority, "expires": task.options.expires}
    if task is not None and task.options.merge:
        values |= {
            "duePolicy": task.options.due_policy,
            "scorePolicy": task.options.score_policy,
            "payloads": task.options.payloads,
            "maxPayloads": task.options.max_payloads,
        }
    values |= {name: value for name, value in overrides.items() if value is not None}
    return {name: str(value) for name, value in values.items() if value is not None}
