"""The ``DELAYQ`` setting: one dict, read on first use, checked, frozen, and read again after a test changed it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, TypeVar

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from ..core.errors import Misconfigured
from ..core.inputs import short, suggest
from ..core.options import TaskOptions
from ..masking import Mask
from .sections import (
    AdminConf,
    ApiConf,
    EventsConf,
    HooksConf,
    InboxConf,
    MetricsConf,
    MirrorConf,
    OutboxConf,
    PipelineConf,
    QueueConf,
    WorkerConf,
)
from .values import dotted_path, flag, number, queue_name, strings, whole

SETTING: Final = "DELAYQ"
APP: Final = "django_delayq"

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """``settings.DELAYQ``, with the keys in lower case."""

    #: alias of a django-redis cache, a URL, or a dict (url, or sentinels, or cluster); None = the embedded Redis
    redis: str | Mapping[str, Any] | None = None
    #: folder of the embedded Redis's data and socket; None = its own default
    embedded_dir: str | None = None
    #: first part of every key in Redis
    prefix: str = "delayq"
    #: queue name → shards, kind
    queues: Mapping[str, QueueConf] = field(default_factory=dict)
    #: defaults of delayq_worker, overridden by its command line
    worker: WorkerConf = WorkerConf()
    #: dotted paths of the middleware around each attempt, outermost first
    middleware: tuple[str, ...] = ()
    #: dotted paths of the middleware around each schedule call, outermost first
    schedule_middleware: tuple[str, ...] = ()
    #: functions of the project that a worker calls
    hooks: HooksConf = HooksConf()
    #: name in a job's context → dotted path of the ContextVar stored under it
    context: Mapping[str, str] = field(default_factory=dict)
    #: dotted paths of project types that jobs may carry (see codec_types)
    codec_types: tuple[str, ...] = ()
    #: the stream of finished attempts
    events: EventsConf = EventsConf()
    #: durable jobs between the database and Redis
    outbox: OutboxConf = OutboxConf()
    #: records of @exactly_once
    inbox: InboxConf = InboxConf()
    #: the pages of django.contrib.admin
    admin: AdminConf = AdminConf()
    #: the HTTP API
    api: ApiConf = ApiConf()
    #: metrics for Prometheus and OpenTelemetry
    metrics: MetricsConf = MetricsConf()
    #: the data pipeline on Spark
    pipeline: PipelineConf = PipelineConf()
    #: the tables of failed jobs and of the morgue
    mirror: MirrorConf = MirrorConf()
    #: name of the task module (or package) that is imported from every installed app
    tasks_module: str = "tasks"
    #: default options of every @task
    task_defaults: Mapping[str, Any] = field(default_factory=dict)
    #: largest encoded arguments of one job, in bytes
    max_args_bytes: int = 1024 * 1024
    #: seconds without a heartbeat after which a holder loses its jobs
    lease: float = 15.0
    #: accept due times more than ten years ahead
    allow_far: bool = False

    def queue(self, name: str) -> QueueConf:
        """Return the settings of one queue."""
        return self.queues.get(name) or QueueConf()


def load(raw: object) -> Conf:
    """Return a :class:`Conf` for the value of ``settings.DELAYQ``.

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
    """Return the current settings.

    Raises:
        Misconfigured: the settings are wrong.
    """
    global _conf
    if _conf is None:
        _conf = load(getattr(settings, SETTING, {}))
    return _conf


def conf_or_defaults() -> Conf:
    """Return the settings, or the defaults while the settings are wrong or absent.

    For situations in which raising would hide the system check that explains the error (task modules being imported).
    """
    try:
        return conf()
    except (Misconfigured, ImproperlyConfigured):
        return Conf()


_is_installed: bool = False


def check_installed() -> None:
    """Check that ``INSTALLED_APPS`` contains the app; otherwise no worker would have its tasks.

    Raises:
        Misconfigured: the app is missing. Nothing is checked before Django's apps are loaded.
    """
    global _is_installed
    if _is_installed or not apps.ready:
        return
    if not apps.is_installed(APP):
        raise Misconfigured(
            f"{APP!r} is not in INSTALLED_APPS, so there are no workers and no checks for what is scheduled. Add it: "
            f'INSTALLED_APPS = [..., "{APP}"]'
        )
    _is_installed = True


def mask() -> Mask:
    """Return the mask for displayed job values, with the words of ``ADMIN["sensitive"]``."""
    return _mask(conf_or_defaults().admin.sensitive)


@lru_cache(maxsize=4)
def _mask(words: tuple[str, ...]) -> Mask:
    return Mask(words)


def _forget(*, setting: str, **_: object) -> None:
    global _conf
    if setting in (SETTING, "CACHES"):
        _conf = None


setting_changed.connect(_forget, dispatch_uid="django_delayq.settings.conf")


# --- readers: one per key, each raising Misconfigured with the path of the wrong value


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
    "ADMIN": lambda value: _section(AdminConf, value, f"{SETTING}['ADMIN']"),
    "API": lambda value: _section(ApiConf, value, f"{SETTING}['API']"),
    "METRICS": lambda value: _section(MetricsConf, value, f"{SETTING}['METRICS']"),
    "PIPELINE": lambda value: _section(PipelineConf, value, f"{SETTING}['PIPELINE']"),
    "EVENTS": lambda value: _section(EventsConf, value, f"{SETTING}['EVENTS']"),
    "OUTBOX": lambda value: _section(OutboxConf, value, f"{SETTING}['OUTBOX']"),
    "INBOX": lambda value: _section(InboxConf, value, f"{SETTING}['INBOX']"),
    "MIRROR": lambda value: _section(MirrorConf, value, f"{SETTING}['MIRROR']"),
    "TASKS_MODULE": _tasks_module,
    "TASK_DEFAULTS": _task_defaults,
    "MAX_ARGS_BYTES": lambda value: whole(f"{SETTING}['MAX_ARGS_BYTES']", value, 1, 512 * 1024 * 1024),
    "LEASE": lambda value: number(f"{SETTING}['LEASE']", value, 1, 3600),
    "ALLOW_FAR": lambda value: flag(f"{SETTING}['ALLOW_FAR']", value),
}
