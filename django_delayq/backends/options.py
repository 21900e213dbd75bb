"""Validation of ``TASKS[alias]["OPTIONS"]`` and of the options of single tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections as databases

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import (
    check_int,
    check_known,
    check_queue_name,
    check_seconds,
    check_task_name,
    short,
    suggest,
)
from ..core.options import TASK_OPTIONS as OWN_OPTIONS
from ..core.options import TaskOptions
from ..settings.section import Section, check_mapping, key

#: number of attempts at a task of Django's framework, unless configured
MAX_ATTEMPTS: Final = 1
DAY: Final = 86_400.0
_MERGED: Final = "define merged tasks with django_delayq's own @task"
_RECURRING: Final = "define recurring tasks with django_delayq's own @task"
_IDS: Final = "each enqueue() creates a job with its own id, so there are no conflicts"
#: options of django_delayq's own tasks that Django's Tasks do not have, and the reason or alternative
UNAVAILABLE: Final = {
    **{name: _MERGED for name, row in OWN_OPTIONS.items() if row.kind == "merged"},
    **{name: _RECURRING for name, row in OWN_OPTIONS.items() if row.kind in ("recurring", "cron")},
    "queue": "set it with the framework's @task(queue_name=…)",
    "priority": "set it with the framework's @task(priority=…), -100 to 100",
    "merge": _MERGED,
    "every": _RECURRING,
    "cron": _RECURRING,
    "id": _IDS,
    "on_conflict": _IDS,
    "due_policy": _IDS,
    "ack": "a job that is acknowledged before it starts leaves no record by which a lost attempt could be detected",
}
#: options of one task; ``name`` is the name that jobs store, by default "app_label.function"
TASK_OPTIONS: Final = ("name", *(name for name in OWN_OPTIONS if name not in UNAVAILABLE))


_EXAMPLE: Final = '{"max_attempts": 5}'


def _ttl(name: str, value: object) -> float:
    seconds = check_seconds(name, value)
    if not 60 <= seconds <= 3650 * DAY:
        raise InvalidJob(f"{name}: results are kept for 60 seconds to ten years, not {seconds:g} s")
    return seconds


def _using_db(name: str, value: object) -> str:
    if value in list(databases):
        return str(value)
    raise InvalidJob(f"{name} is {short(value)}, which is not an alias in DATABASES.{suggest(str(value), databases)}")


def _defaults(name: str, value: object) -> Mapping[str, Any]:
    options = check_mapping(name, value, _EXAMPLE)
    for own in options:
        if own == "name" or (own in TASK_OPTIONS and OWN_OPTIONS[own].project == "none"):
            raise InvalidJob(f"{name}: {own!r} belongs to one task; put it into OPTIONS['tasks']")
    build(options, name)
    return options


def _tasks(name: str, value: object) -> Mapping[str, Any]:
    tasks = check_mapping(name, value, f'{{"shop.send_receipt": {_EXAMPLE}}}')
    for task, options in tasks.items():
        where = f"{name}[{task!r}]"
        build(check_mapping(where, options, _EXAMPLE), where)
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions(Section):
    """Validated ``TASKS[alias]["OPTIONS"]``."""

    #: seconds that a result is kept after its end (a ``timedelta`` or a number)
    result_ttl: float = key(7 * DAY, _ttl)
    #: largest encoded return value, in bytes
    max_result_bytes: int = key(1024 * 1024, check_int, 1, 64 * 1024 * 1024)
    #: alias of the database whose transactions ``enqueue()`` waits for; None = the default one
    using_db: str | None = key(None, _using_db)
    #: options of every task of this backend
    defaults: Mapping[str, Any] = key({}, _defaults)
    #: options of single tasks, by registered name ("app_label.function") or by module path
    tasks: Mapping[str, Mapping[str, Any]] = key({}, _tasks)

    def of(self, *names: str) -> dict[str, Any]:
        """Return the options of the task that has any of these names: its own override the defaults."""
        own = next((self.tasks[name] for name in names if name in self.tasks), {})
        return {**self.defaults, **own}


def problems(raw: object, where: str) -> Iterator[str]:
    """Yield a message about each error in these options."""
    entries = [{name: value} for name, value in raw.items()] if isinstance(raw, Mapping) else [raw]
    for entry in entries:
        try:
            BackendOptions.read(where, entry)
        except Misconfigured as error:
            yield str(error)


def build(given: Mapping[str, Any], what: str, **placed: Any) -> TaskOptions:
    """Return the options of one task.

    Args:
        given: values by names of :data:`TASK_OPTIONS`.
        what: the task, for error messages.
        placed: queue and priority, which the framework sets.

    Raises:
        Misconfigured: an unknown or invalid option, with a suggestion; the message begins with ``what``.
    """
    for name in given:
        if name in UNAVAILABLE:
            raise Misconfigured(f"{what}: the option {name!r} is not available for Django's Tasks: {UNAVAILABLE[name]}")
    own = {name: value for name, value in given.items() if name != "name"}
    try:
        check_known(given, TASK_OPTIONS, "option")
        if given.get("name") is not None:
            check_task_name(given["name"])
        if "queue" in placed:
            check_queue_name(placed["queue"])
    except InvalidJob as error:
        raise Misconfigured(f"{what}: {error}") from None
    return TaskOptions.build({"max_attempts": MAX_ATTEMPTS, **own, **placed}, what=what)
