"""Validation of ``TASKS[alias]["OPTIONS"]`` and of the options of single tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connections as databases

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import (
    check_int,
    check_known,
    check_mapping,
    check_queue_name,
    check_task_name,
    short,
    suggest,
)
from ..core.options import OPTION_NAMES, OWN, TaskOptions, seconds_of

#: number of attempts at a task of Django's framework, unless configured
MAX_ATTEMPTS: Final = 1
DAY: Final = 86_400.0
_MERGED: Final = "define merged tasks with django_delayq's own @task"
_RECURRING: Final = "define recurring tasks with django_delayq's own @task"
_IDS: Final = "each enqueue() creates a job with its own id, so there are no conflicts"
#: options of django_delayq's own tasks that Django's Tasks do not have, and the reason or alternative
UNAVAILABLE: Final = {
    "queue": "set it with the framework's @task(queue_name=…)",
    "priority": "set it with the framework's @task(priority=…), -100 to 100",
    "merge": _MERGED,
    "batch_size": _MERGED,
    "payloads": _MERGED,
    "max_payloads": _MERGED,
    "score_policy": _MERGED,
    "every": _RECURRING,
    "cron": _RECURRING,
    "timezone": _RECURRING,
    "missed": _RECURRING,
    "id": _IDS,
    "score": _MERGED,
    "on_conflict": _IDS,
    "due_policy": _IDS,
    "ack": "a job that is acknowledged before it starts leaves no record by which a lost attempt could be detected",
}
#: options of one task; ``name`` is the name that jobs store, by default "app_label.function"
TASK_OPTIONS: Final = ("name", *(name for name in OPTION_NAMES if name not in UNAVAILABLE))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Validated ``TASKS[alias]["OPTIONS"]``."""

    #: seconds that a result is kept after its end (a ``timedelta`` or a number)
    result_ttl: float = 7 * DAY
    #: largest encoded return value, in bytes
    max_result_bytes: int = 1024 * 1024
    #: alias of the database whose transactions ``enqueue()`` waits for; None = the default one
    using_db: str | None = None
    #: options of every task of this backend
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: options of single tasks, by registered name ("app_label.function") or by module path
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, *names: str) -> dict[str, Any]:
        """Return the options of the task that has any of these names: its own override the defaults."""
        own = next((self.tasks[name] for name in names if name in self.tasks), {})
        return {**self.defaults, **own}


def load(raw: Any, where: str) -> BackendOptions:
    """Return the validated options of a backend.

    Raises:
        Misconfigured: an unknown or invalid option; the message begins with ``where``.
    """
    for problem in problems(raw, where):
        raise Misconfigured(problem)
    options = dict(raw)
    if "result_ttl" in options:
        options["result_ttl"] = _ttl(where, options["result_ttl"])
    return BackendOptions(**options)


def problems(raw: object, where: str) -> Iterator[str]:
    """Yield a message about each error in these options."""
    if not isinstance(raw, Mapping):
        yield f"{where} must be a dict, got {short(raw)}"
        return
    for name, value in raw.items():
        try:
            check_known([name], _CHECKS)
        except InvalidJob as error:
            yield f"{where}: {error}"
            continue
        try:
            _CHECKS[name](f"{where}[{name!r}]", value)
        except (InvalidJob, Misconfigured) as error:
            yield str(error)


def _ttl(name: str, value: object) -> float:
    try:
        seconds = seconds_of("result_ttl", value)
    except InvalidJob as error:
        raise InvalidJob(f"{name}: {error}") from None
    if not 60 <= seconds <= 3650 * DAY:
        raise InvalidJob(f"{name}: results are kept for 60 seconds to ten years, not {seconds:g} s")
    return seconds


def _max_result_bytes(name: str, value: object) -> None:
    check_int(name, value, 1, 64 * 1024 * 1024)


def _using_db(name: str, value: object) -> None:
    if value is not None and value not in list(databases):
        raise InvalidJob(
            f"{name} is {short(value)}, which is not an alias in DATABASES.{suggest(str(value), databases)}"
        )


def _defaults(name: str, value: object) -> None:
    options = check_mapping(name, value, _EXAMPLE)
    for own in ("name", *OWN):
        if own in options and own not in UNAVAILABLE:
            raise InvalidJob(f"{name}: {own!r} belongs to one task; put it into OPTIONS['tasks']")
    build(options, name)


def _tasks(name: str, value: object) -> None:
    for task, options in check_mapping(name, value, f'{{"shop.send_receipt": {_EXAMPLE}}}').items():
        where = f"{name}[{task!r}]"
        build(check_mapping(where, options, _EXAMPLE), where)


_EXAMPLE: Final = '{"max_attempts": 5}'
_CHECKS: Final = {
    "result_ttl": _ttl,
    "max_result_bytes": _max_result_bytes,
    "using_db": _using_db,
    "defaults": _defaults,
    "tasks": _tasks,
}


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
