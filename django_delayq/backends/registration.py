"""Registration of Django's Tasks as tasks of the queue: the names that jobs store, and their options from ``TASKS``."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django.apps import apps
from django.db import connections as databases

from ..core import task as core
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_int, check_known, check_number, check_task_name, plain_seconds
from ..core.job import PRIORITIES
from ..core.options import TASK_OPTIONS, TaskOptions
from ..scheduling.tasks import task_name
from ..settings.conf import Section, check_mapping, key
from .compat import AnyTask, InvalidTask, Task

logger: Final = logging.getLogger("django_delayq.tasks")

#: number of attempts at a task of Django's framework, unless configured
MAX_ATTEMPTS: Final = 1
DAY: Final = 86_400.0
#: Set by the framework; of ids, because each enqueue() has one of its own; and early acks, which leave no record by
#: which a lost attempt could be detected.
_UNAVAILABLE: Final = {"queue", "priority", "merge", "every", "cron", "id", "on_conflict", "due_policy", "ack"}
#: of other tasks
_KINDS: Final = ("merged", "recurring", "cron")
_OPTIONS: Final = [name for name, row in TASK_OPTIONS.items() if name not in _UNAVAILABLE and row.kind not in _KINDS]
#: options of one task; ``name`` is the name that jobs store, by default "app_label.function"
AVAILABLE: Final = ("name", *_OPTIONS)
_EXAMPLE: Final = '{"max_attempts": 5}'
_lock: Final = threading.RLock()
_known: Final[dict[Callable[..., Any], FrameworkTask]] = {}
#: Tasks that were decorated while Django's apps were loading
_deferred: Final[list[AnyTask]] = []


# -- options -----------------------------------------------------------------------------------------------------------


def _defaults(name: str, value: object) -> Mapping[str, Any]:
    options = check_mapping(name, value, _EXAMPLE)
    for option in options:
        if option == "name" or (option in AVAILABLE and TASK_OPTIONS[option].project == "none"):
            raise InvalidJob(f"{name}: {option!r} belongs to one task; put it into OPTIONS['tasks']")
    _build(options, name)
    return options


def _tasks(name: str, value: object) -> Mapping[str, Any]:
    tasks = check_mapping(name, value, f'{{"shop.send_receipt": {_EXAMPLE}}}')
    for task, options in tasks.items():
        where = f"{name}[{task!r}]"
        _build(check_mapping(where, options, _EXAMPLE), where)
    return tasks


class BackendOptions(Section):
    """Validated ``TASKS[alias]["OPTIONS"]``."""

    #: seconds that a result is kept after its end (a ``timedelta`` or a number)
    result_ttl: float = key(7 * DAY, lambda name, value: check_number(name, plain_seconds(value), 60, 3650 * DAY))
    #: largest encoded return value, in bytes
    max_result_bytes: int = key(1024 * 1024, check_int, 1, 64 * 1024 * 1024)
    #: alias of the database whose transactions ``enqueue()`` waits for; None = the default one
    using_db: str | None = key(None, lambda name, value: check_choice(name, value, tuple(databases)))
    #: options of every task of this backend
    defaults: Mapping[str, Any] = key({}, _defaults)
    #: options of single tasks, by registered name ("app_label.function") or by module path
    tasks: Mapping[str, Mapping[str, Any]] = key({}, _tasks)

    def of(self, *names: str) -> dict[str, Any]:
        """Return the options of the task that has any of these names: its own override the defaults."""
        own = next((self.tasks[name] for name in names if name in self.tasks), {})
        return {**self.defaults, **own}


def _build(given: Mapping[str, Any], what: str, **placed: Any) -> TaskOptions:
    """Return the options of one task.

    Args:
        given: values by names of :data:`AVAILABLE`.
        what: the task, for error messages.
        placed: queue and priority, which the framework sets.

    Raises:
        Misconfigured: an unknown or invalid option, with a suggestion; the message begins with ``what``.
    """
    try:
        check_known(given, AVAILABLE, "option")
        if given.get("name") is not None:
            check_task_name(given["name"])
    except InvalidJob as error:
        raise Misconfigured(f"{what}: {error}") from None
    own = {name: value for name, value in given.items() if name != "name"}
    return TaskOptions.build({"max_attempts": MAX_ATTEMPTS, **own, **placed}, what=what)


def priority_class(priority: float) -> int:
    """Return the queue's class of a framework priority: -100 … 100 maps to 7 … 0, and 0 to the default, 4."""
    return round((100 - priority) / 200 * (PRIORITIES - 1))


# -- tasks -------------------------------------------------------------------------------------------------------------


class FrameworkTask(core.Task):
    """Registered task whose function was decorated with the framework's ``@task``. Listens to its own attempts.

    A receiver of the signals of all attempts would cost every other job of the worker as much as it costs the Tasks.

    Attributes:
        task: the framework's Task, as it was decorated.
        given: the options that it was built from.
    """

    def __init__(self, task: AnyTask, name: str, options: TaskOptions, given: Mapping[str, Any]) -> None:
        from . import attempts  # loads the worker's part, which needs this module

        self.task = task
        self.given = given
        self.listener = functools.partial(attempts.handle_event, self)
        super().__init__(attempts.worker_function(self), name=name, options=options)


def register(task: AnyTask, options: BackendOptions) -> FrameworkTask | None:
    """Return the registered task of this Task's function.

    It is created if there is none, or if the options of its own backend have changed.

    Returns:
        None while Django's apps are loading: the name begins with the app's label, which is unknown until then.
        :func:`adopt` registers the task later.

    Raises:
        InvalidTask: an unknown or invalid option, or another function has the name.
    """
    if not apps.apps_ready:
        _deferred.append(task)
        return None
    with _lock:
        earlier = _known.get(task.func)
        if earlier is not None and earlier.task.backend != task.backend:
            return earlier  # a worker has one policy for a task: that of the backend it was made for, not of using()
        try:
            by_default = task_name(task.func)
            given = options.of(by_default, task.module_path)
            if earlier is not None and earlier.given == given:
                return earlier
            first = earlier.task if earlier is not None else task
            placed = {"queue": first.queue_name, "priority": priority_class(first.priority)}
            built = _build(given, f"@task {task.module_path}", **placed)
            registered = FrameworkTask(first, given.get("name") or by_default, built, given)
            if earlier is not None and earlier.name != registered.name:
                core.registry.remove(earlier)
            core.registry.add(registered)  # one step if the name is the same, because a worker may look it up now
        except Misconfigured as error:
            raise InvalidTask(str(error)) from None
        _known[task.func] = registered
        return registered


def known(func: Callable[..., Any]) -> FrameworkTask | None:
    """Return the registered task of this function."""
    return _known.get(func)


def known_names() -> set[str]:
    """Return the names that options of single tasks may use: registered names, default names and module paths."""
    tasks = list(_known.values())
    return {name for one in tasks for name in (one.name, task_name(one.task.func), one.task.module_path)}


def adopt(modules: Iterable[str], options_of: Callable[[AnyTask], BackendOptions]) -> None:
    """Register Tasks that could not be registered before: those decorated early, and those of other backends.

    ``using(backend=…)`` may send any Task of these modules here, and then a worker needs it.
    """
    while _deferred:
        task = _deferred.pop(0)  # the decorated one is first, before those of using()
        register(task, options_of(task))
    for name in modules:
        for value in list(vars(sys.modules[name]).values()):
            if isinstance(value, Task) and value.func not in _known:
                try:
                    register(value, options_of(value))
                except InvalidTask as error:
                    logger.warning("%s cannot be run by django_delayq: %s", value.module_path, error)
