"""The ``DELAYQ`` setting: one dict, read when first needed, checked, frozen; read again after a test changed it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .core.errors import Misconfigured
from .core.inputs import short, suggest
from .core.keys import MAX_SHARDS
from .core.options import TaskOptions
from .values import choice, dotted_path, flag, number, queue_name, strings, whole

SETTING: Final = "DELAYQ"

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
T = TypeVar("T")
SPLITTERS: Final = ("default", "rendezvous", "by_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConf:
    """One entry of ``DELAYQ["QUEUES"]``: how a queue is created. A queue that is not named has the defaults."""

    #: parts of the queue, each in one Redis slot; Redis keeps the number that the queue was created with.
    #: None = the number that a task of the queue names, else 1
    shards: int | None = None
    #: "python" = run by workers; "pull" = raw bytes for other consumers, workers never reserve from it
    kind: str = "python"
    #: how often workers visit it, compared with a queue of weight 1
    weight: float = 1.0
    #: most live jobs; one more is refused with QueueFull. Each shard takes its part of them. None = no limit
    max_length: int | None = None
    #: most jobs that its morgue keeps, the oldest go first; None = no limit
    morgue_max: int | None = None
    #: seconds that its morgue keeps a job; None = for ever
    morgue_ttl: float | None = None
    #: "strict" = a more urgent class always goes first; "weighted" = it goes first more often
    priorities: str = "strict"

    def __post_init__(self) -> None:
        if self.shards is not None:
            whole("shards", self.shards, 1, MAX_SHARDS)
        number("weight", self.weight, 0.001)
        choice("kind", self.kind, ("python", "pull"))
        choice("priorities", self.priorities, ("strict", "weighted"))
        for name in ("max_length", "morgue_max"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, 1 << 40)
        if self.morgue_ttl is not None:
            number("morgue_ttl", self.morgue_ttl, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConf:
    """``DELAYQ["WORKER"]``: defaults of ``manage.py delayq_worker``; its options override them."""

    #: processes that the supervisor keeps running
    processes: int = 1
    #: jobs that one process runs at the same time
    threads: int = 5
    #: queues to work on; None = every queue of kind "python"
    queues: tuple[str, ...] | None = None
    #: seconds that running jobs get to finish after SIGTERM
    grace: float = 25.0
    #: a process is replaced after so many jobs; None = never
    max_jobs: int | None = None
    #: a process is replaced when it uses more than so many MiB of memory; None = never
    max_rss: int | None = None
    #: also do the housekeeping (wake, reap) of the queues
    dispatcher: bool = True
    #: milliseconds of measured work that a process may hold beyond its free threads
    prefetch_ms: float = 50.0
    #: seconds between two renewals of the leases; three or more of them must fit into LEASE
    heartbeat: float = 5.0
    #: which of several queues with due work is next: "weighted", "seq" (in turn) or "lag" (longest overdue)
    scheduler: str = "weighted"
    #: order in which a process visits shards: "default", "rendezvous", "by_node" or the dotted path of a function
    splitter: str = "default"
    #: splitter "by_node": how many machines share the work
    nodes: int = 1
    #: splitter "by_node": which of them this one is, counted from 0
    node: int = 0
    #: seconds that a database connection is kept between jobs; None = leave Django's CONN_MAX_AGE alone
    conn_max_age: float | None = 60.0
    #: check a kept database connection before its first use by a job
    conn_health_checks: bool = True

    def __post_init__(self) -> None:
        whole("processes", self.processes, 1, 1024)
        whole("threads", self.threads, 1, 1024)
        number("grace", self.grace, 0)
        number("prefetch_ms", self.prefetch_ms, 0)
        number("heartbeat", self.heartbeat, 0.01)
        choice("scheduler", self.scheduler, ("weighted", "seq", "lag"))
        if self.splitter not in SPLITTERS and "." not in str(self.splitter):
            raise Misconfigured(
                f"splitter must be {', '.join(SPLITTERS)} or the dotted path of a function, got {short(self.splitter)}"
            )
        whole("nodes", self.nodes, 1, 1 << 30)
        whole("node", self.node, 0, 1 << 30)
        for name in ("max_jobs", "max_rss"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, 1 << 40)
        flag("dispatcher", self.dispatcher)
        if self.conn_max_age is not None:
            number("conn_max_age", self.conn_max_age, 0)
        flag("conn_health_checks", self.conn_health_checks)
        if self.queues is not None:
            object.__setattr__(self, "queues", tuple(queue_name(name) for name in strings("queues", self.queues)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConf:
    """``DELAYQ["EVENTS"]``: the stream of finished attempts."""

    #: entries kept per shard
    cap: int = 10_000

    def __post_init__(self) -> None:
        whole("cap", self.cap, 0, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksConf:
    """``DELAYQ["HOOKS"]``: dotted paths of functions of the project that a worker calls."""

    #: without arguments, in each worker process after Django is set up and before its first job; what it raises ends
    #: the process
    worker_init: str | None = None
    #: without arguments, before a process ends although jobs still run in it (flush logs); there is little time left
    last_words: str | None = None
    #: with the exception of a failed run: what is stored of it. A text replaces its message, a dict adds fields, bytes
    #: are stored as they are; if it fails itself, that is logged and the usual form is stored
    format_error: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) is not None:
                dotted_path(one.name, getattr(self, one.name))

    def paths(self) -> dict[str, str]:
        """Those that are given, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """``settings.DELAYQ``, with the keys in lower case."""

    #: alias of a django-redis cache, a URL, or a dict (url, or sentinels, or cluster); None = the embedded Redis
    redis: str | Mapping[str, Any] | None = None
    #: folder of the embedded Redis's data and socket; None = its own default
    embedded_dir: str | None = None
    #: the first part of every key in Redis
    prefix: str = "delayq"
    #: queue name → shards, kind
    queues: Mapping[str, QueueConf] = field(default_factory=dict)
    #: what delayq_worker does unless told otherwise on its command line
    worker: WorkerConf = WorkerConf()
    #: dotted paths of the middlewares around each run, outermost first
    middleware: tuple[str, ...] = ()
    #: dotted paths of the middlewares around each schedule call, outermost first
    schedule_middleware: tuple[str, ...] = ()
    #: functions of the project that a worker calls
    hooks: HooksConf = HooksConf()
    #: name in a job's context → dotted path of the ContextVar that travels under it
    context: Mapping[str, str] = field(default_factory=dict)
    #: dotted paths of the types of the project's own that jobs may carry (see codectypes)
    codec_types: tuple[str, ...] = ()
    #: the stream of finished attempts
    events: EventsConf = EventsConf()
    #: name of the module (or package) that is looked for in every installed app
    tasks_module: str = "tasks"
    #: options that every @task begins with
    task_defaults: Mapping[str, Any] = field(default_factory=dict)
    #: largest encoded arguments of one job, in bytes
    max_args_bytes: int = 1024 * 1024
    #: seconds after which a holder that was not heard of loses its jobs
    lease: float = 15.0
    #: accept due times more than ten years ahead
    allow_far: bool = False

    def queue(self, name: str) -> QueueConf:
        """The settings of one queue."""
        return self.queues.get(name) or QueueConf()


def load(raw: object) -> Conf:
    """A :class:`Conf` of the value of ``settings.DELAYQ``.

    Raises:
        Misconfigured: unknown key (with a suggestion) or a wrong value; the message gives the path of the key.
    """
    if not isinstance(raw, Mapping):
        raise Misconfigured(f"{SETTING} must be a dict, got {short(raw)}")
    known = {f.name.upper(): f.name for f in fields(Conf)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            raise Misconfigured(
                f"{SETTING}: unknown key {short(key)}.{suggest(str(key).upper(), known)} "
                f"Known keys: {', '.join(known)}."
            )
        values[known[key]] = _READERS[key](value)
    made = Conf(**values)
    if made.worker.heartbeat * 3 > made.lease:
        raise Misconfigured(
            f"{SETTING}: three heartbeats of {made.worker.heartbeat:g} s do not fit into a LEASE of {made.lease:g} s, "
            f"so one late heartbeat would lose jobs. Raise LEASE or lower WORKER['heartbeat']"
        )
    return made


_conf: Conf | None = None


def conf() -> Conf:
    """The settings as they are now; :class:`Misconfigured` when they are wrong."""
    global _conf
    if _conf is None:
        _conf = load(getattr(settings, SETTING, {}))
    return _conf


def conf_or_defaults() -> Conf:
    """The settings, or the defaults while the settings are wrong or absent.

    For moments in which raising would hide the system check that explains the error (task modules being imported).
    """
    try:
        return conf()
    except (Misconfigured, ImproperlyConfigured):
        return Conf()


def _forget(*, setting: str, **_: object) -> None:
    global _conf
    if setting in (SETTING, "CACHES"):
        _conf = None
        from .connections import close_broker

        close_broker()


setting_changed.connect(_forget, dispatch_uid="django_delayq.conf")


# --- readers: one per key, each raising Misconfigured with the path of what is wrong


def _section(cls: type[T], value: object, path: str) -> T:
    if not isinstance(value, Mapping):
        raise Misconfigured(f"{path} must be a dict, got {short(value)}")
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise Misconfigured(
                f"{path}: unknown key {short(key)}.{suggest(str(key).lower(), known)} Known keys: {', '.join(known)}."
            )
    try:
        return cls(**value)
    except Misconfigured as error:
        raise Misconfigured(f"{path}: {error}") from None


def _redis(value: object) -> object:
    if value is None or (isinstance(value, str) and value.strip()) or (isinstance(value, Mapping) and value):
        return value
    raise Misconfigured(
        f"{SETTING}['REDIS'] must be the alias of a django-redis cache, a URL like redis://localhost:6379/0, or a dict "
        f"with url, sentinels or cluster; got {short(value)}"
    )


def _prefix(value: object) -> str:
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        return value
    raise Misconfigured(
        f"{SETTING}['PREFIX'] must be 1 to 64 letters, digits, '_', '.', ':' or '-' (no braces); got {short(value)}"
    )


def _queues(value: object) -> Mapping[str, QueueConf]:
    path = f"{SETTING}['QUEUES']"
    if not isinstance(value, Mapping):
        raise Misconfigured(f'{path} must be a dict like {{"orders": {{"shards": 5}}}}, got {short(value)}')
    return {
        queue_name(name, f"{path}: "): _section(QueueConf, entry, f"{path}[{name!r}]") for name, entry in value.items()
    }


def _tasks_module(value: object) -> str:
    if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")):
        return value
    raise Misconfigured(f"{SETTING}['TASKS_MODULE'] must be a module name like 'tasks', got {short(value)}")


def _task_defaults(value: object) -> Mapping[str, Any]:
    path = f"{SETTING}['TASK_DEFAULTS']"
    if not isinstance(value, Mapping):
        raise Misconfigured(f'{path} must be a dict of task options like {{"max_attempts": 5}}, got {short(value)}')
    TaskOptions.check_defaults(value, what=path)
    return dict(value)


def _context(value: object) -> Mapping[str, str]:
    path = f"{SETTING}['CONTEXT']"
    if not isinstance(value, Mapping):
        raise Misconfigured(f'{path} must be a dict like {{"trace": "shop.tracing.trace_id"}}, got {short(value)}')
    for name in value:
        if not (isinstance(name, str) and name.isidentifier()):
            raise Misconfigured(f"{path}: the name {short(name)} must be like that of a Python variable")
    return {name: dotted_path(f"{path}[{name!r}]", entry) for name, entry in value.items()}


def _codec_types(value: object) -> tuple[str, ...]:
    path = f"{SETTING}['CODEC_TYPES']"
    return tuple(dotted_path(path, entry) for entry in strings(path, value))


def _embedded_dir(value: object) -> str | None:
    if value is None:
        return None
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if isinstance(value, str) and value:
        return value
    raise Misconfigured(f"{SETTING}['EMBEDDED_DIR'] must be the path of a folder, got {short(value)}")


_READERS: Final[dict[str, Callable[[object], Any]]] = {
    "REDIS": _redis,
    "EMBEDDED_DIR": _embedded_dir,
    "PREFIX": _prefix,
    "QUEUES": _queues,
    "WORKER": lambda value: _section(WorkerConf, value, f"{SETTING}['WORKER']"),
    "MIDDLEWARE": lambda value: strings(f"{SETTING}['MIDDLEWARE']", value),
    "SCHEDULE_MIDDLEWARE": lambda value: strings(f"{SETTING}['SCHEDULE_MIDDLEWARE']", value),
    "HOOKS": lambda value: _section(HooksConf, value, f"{SETTING}['HOOKS']"),
    "CONTEXT": _context,
    "CODEC_TYPES": _codec_types,
    "EVENTS": lambda value: _section(EventsConf, value, f"{SETTING}['EVENTS']"),
    "TASKS_MODULE": _tasks_module,
    "TASK_DEFAULTS": _task_defaults,
    "MAX_ARGS_BYTES": lambda value: whole(f"{SETTING}['MAX_ARGS_BYTES']", value, 1, 512 * 1024 * 1024),
    "LEASE": lambda value: number(f"{SETTING}['LEASE']", value, 1, 3600),
    "ALLOW_FAR": lambda value: flag(f"{SETTING}['ALLOW_FAR']", value),
}
