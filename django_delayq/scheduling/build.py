"""Building of jobs from calls: the task, the plan, the schedule middleware, and the entries of ``schedule_many``.

``DELAYQ["SCHEDULE_MIDDLEWARE"]`` names functions that are built once per process with the next call, similar to the
middleware around an attempt::

    def with_tenant(next):
        def call(scheduling):
            scheduling.options.setdefault("context", {})["tenant"] = tenant.get()
            return next(scheduling)
        return call

The first one is the outermost. A middleware raises to refuse a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.utils import timezone

from .. import connections
from ..core.builder import JobBuilder, JobRules
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_known, check_queue_name, short, suggest
from ..core.job import NewJob, random_block, random_blocks
from ..core.task import Task, registry
from ..outbox import durability
from ..settings.conf import SETTING, check_installed, collect_context, conf, load_function


def find_task(task: Task | str) -> Task:
    """Return the registered task, given itself or its name.

    Raises:
        InvalidJob: it is not a task; the message says what to do.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        registered = registry.get(task)
        if registered is None:
            raise InvalidJob(f"no task is named {short(task)}.{suggest(task, registry.tasks)}")
        return registered
    if hasattr(task, "enqueue"):
        raise InvalidJob(f"{short(task)} is a task of Django's framework: call its enqueue(…)")
    if callable(task):
        name = getattr(task, "__qualname__", None) or short(task)
        raise InvalidJob(f"{name} is not a task; put @task (from django_delayq import task) above it")
    raise InvalidJob(f"expected a task or the name of one, got {short(task)}")


# -- the plan of a call ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of the calls of one task with the same ``queue`` and ``durable``.

    It has everything that the settings and the task decide before the arguments are known.
    """

    builder: JobBuilder
    queue: str
    durable: bool


#: plans of calls that name neither ``queue`` nor ``durable``, while no schedule middleware and no context is configured
READY: Final[dict[Task, Plan]] = {}


def plan_of(task: Task, options: Mapping[str, Any], *, many: bool = False) -> Plan:
    """Return the plan of a call.

    Args:
        options: options of the call, or the common ones of ``schedule_many``.
        many: many jobs are to be built, by one thread.

    Raises:
        InvalidJob: ``queue`` or ``durable`` is wrong.
        Misconfigured: the app is not in ``INSTALLED_APPS``, or the settings are wrong.
    """
    check_installed()
    project, queue = conf(), _queue_of(task, options)
    next_block = random_blocks().__next__ if many else random_block
    builder = JobBuilder(task, job_rules(), collect_context(), next_block)
    plan = Plan(builder, queue, durability.is_durable(task, options, queue))
    is_of_task = "queue" not in options and "durable" not in options
    if apps.ready and is_of_task and not (many or project.schedule_middleware or project.context):
        READY[task] = plan
    return plan


def job_rules() -> JobRules:
    """Return the rules of the settings for new jobs."""
    project = conf()
    zone = None if settings.USE_TZ else timezone.get_default_timezone()
    return JobRules(project.max_args_bytes, project.allow_far, zone, connections.can_confirm)


def _queue_of(task: Task, options: Mapping[str, Any]) -> str:
    given = options.get("queue")
    if given is None:
        return task.options.queue
    name = check_queue_name(given)
    if conf().queue(name).kind == "pull":
        raise InvalidJob(
            f"queue {name!r} is of kind pull, so no worker would run the job; use Queue({name!r}).put(…), "
            f"or another queue"
        )
    return name


def _forget(**_: object) -> None:
    READY.clear()
    _chain_of.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_delayq.scheduling.build")


# -- middleware around a schedule call ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Scheduling:
    """One requested job, before it is checked. Changes made here are stored.

    Attributes:
        task: the task; a middleware may replace it, except in ``schedule_many``.
        args, kwargs: the function's arguments; always empty for a merged task.
        options: options of the call by name: ``delay``, ``id``, ``context``, …; for a merged task also ``payload`` and
            ``score``.
        many: True for an entry of ``schedule_many``. The entry is stored with its chunk, so the handle has no outcome
            yet, and an entry that is not passed on is counted as ``skipped``.
    """

    task: Task
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    many: bool
    #: innermost call; internal, not for middleware
    end: Callable[[Scheduling], object]

    def __repr__(self) -> str:
        return f"<Scheduling {self.task.name}>"


#: calls the rest of the chain; returns the job's handle
Chain = Callable[[Scheduling], Any]


def chain() -> Chain | None:
    """Return the middleware of the settings around :attr:`Scheduling.end`; None if there is none.

    Raises:
        Misconfigured: one cannot be imported or called.
    """
    paths = conf().schedule_middleware
    return _chain_of(paths) if paths else None


@lru_cache(maxsize=1)
def _chain_of(paths: tuple[str, ...]) -> Chain:
    return reduce(_around, reversed(paths), lambda scheduling: scheduling.end(scheduling))


def _around(inner: Chain, path: str) -> Chain:
    where = f"{SETTING}['SCHEDULE_MIDDLEWARE']"
    call = load_function(where, path)(inner)
    if not callable(call):
        raise Misconfigured(f"{where}: {path} must return a function of one scheduling, not {short(call)}")

    def checked(scheduling: Scheduling) -> Any:
        handle = call(scheduling)
        if handle is None:  # a forgotten `return`; a middleware raises to refuse a job
            raise Misconfigured(
                f"{where}: {path} returned None instead of a handle; return what next(scheduling) returned, or raise "
                f"to refuse the job"
            )
        return handle

    return checked


# -- entries of schedule_many ------------------------------------------------------------------------------------------

#: outcome of the handle that a schedule middleware receives for an entry of schedule_many
COLLECTED: Final = "collected"
_NONE: Final[Mapping[str, Any]] = {}


class EntryReader:
    """Reader of the entries of one call.

    Args:
        options: options for all jobs; those of an entry override them.

    Attributes:
        skipped: number of entries that a schedule middleware did not pass on.
    """

    def __init__(self, plan: Plan, options: Mapping[str, Any]) -> None:
        self._plan = plan
        self._builder = plan.builder
        self._common = {name: value for name, value in options.items() if name in self._builder.entry_keys}
        self.skipped = 0

    def read(self, entries: Iterable[Mapping[str, Any]]) -> Iterator[NewJob]:
        """Yield a record for each entry. Errors carry the entry's index."""
        around = chain()
        for index, entry in enumerate(entries):
            try:
                call = self._call_of(entry)
                new = self._builder.build(*call) if around is None else self._pass(around, *call)
            except (InvalidJob, TypeError) as error:
                kind = InvalidJob if isinstance(error, InvalidJob) else TypeError
                raise kind(f"entry {index}: {error}") from error
            if new is None:
                self.skipped += 1
            else:
                yield new

    def _call_of(self, entry: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Mapping[str, Any]]:
        """Return ``(args, kwargs, options)`` of an entry after checking its keys."""
        if type(entry) is not dict and not isinstance(entry, Mapping):
            content = "id, payload, score" if self._builder.task.options.merge else "args, kwargs"
            raise InvalidJob(f"expected a dict with {content} and options, got {short(entry)}")
        if not entry.keys() <= self._builder.entry_keys:
            self._builder.refuse_keys(entry)
            if "durable" in entry:
                raise InvalidJob("durable applies to all jobs of one call; use schedule_many(task, jobs, durable=True)")
            check_known(entry, sorted(self._builder.entry_keys), "job option")
        args, kwargs = explicit(entry.get("args"), entry.get("kwargs"))
        if self._common:
            return args, kwargs, {**self._common, **entry}
        return args, kwargs, _NONE if len(entry) == 1 and "args" in entry else entry

    def _pass(
        self, around: Chain, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> NewJob | None:
        """Return the record of an entry after the schedule middleware; None if they do not pass it on."""
        from .verbs import JobHandle  # the verbs import this module

        task, built = self._builder.task, []

        def end(scheduling: Scheduling) -> object:
            if scheduling.task is not task or not scheduling.options.keys() <= self._builder.entry_keys:
                raise InvalidJob(
                    "in schedule_many a schedule middleware may change the arguments and the options of a job, not its "
                    "task, its queue or its database"
                )
            new = self._builder.build(scheduling.args, scheduling.kwargs, scheduling.options)
            built.append(new)
            return JobHandle(new.id, self._plan.queue, COLLECTED, new.due_ms_here)

        options = {name: value for name, value in options.items() if name not in ("args", "kwargs")}
        around(Scheduling(task, args, kwargs, options, many=True, end=end))
        return built[-1] if built else None


def explicit(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments given as ``args=`` and ``kwargs=``.

    Raises:
        TypeError: they are not a list or tuple and a dict.
    """
    if args is not None and not isinstance(args, (list, tuple)):
        raise TypeError(f"args must be a list or tuple, got {short(args)}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs must be a dict, got {short(kwargs)}")
    return tuple(args) if args else (), dict(kwargs) if kwargs else {}
