"""The ``DELAYQ`` setting: one dict, read on first use, checked, frozen, and read again after a test changed it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import (
    check_flag,
    check_int,
    check_known,
    check_number,
    check_queue_name,
    short,
)
from ..core.options import TaskOptions
from ..masking import Mask
from .section import Section, check_dotted_path, check_dotted_paths, check_mapping, check_texts, key, section
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

SETTING: Final = "DELAYQ"
APP: Final = "django_delayq"
#: value of ``REDIS`` that names the embedded Redis, where it is not the default
EMBEDDED: Final = "embedded"

_PREFIX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def _redis(name: str, value: object) -> object:
    if (isinstance(value, str) and value.strip()) or (isinstance(value, Mapping) and value):
        return value
    raise InvalidJob(
        f"{name} must be the alias of a Redis cache, a URL like redis://localhost:6379/0, or a dict with url, "
        f"sentinels or cluster; got {short(value)}"
    )


def _prefix(name: str, value: object) -> str:
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        return value
    raise InvalidJob(f"{name} must be 1 to 64 letters, digits, '_', '.', ':' or '-' (no braces); got {short(value)}")


def _queues(name: str, value: object) -> Mapping[str, QueueConf]:
    entries = check_mapping(name, value, '{"orders": {"shards": 5}}')
    return {_queue_name(name, queue): QueueConf.read(f"{name}[{queue!r}]", entry) for queue, entry in entries.items()}


def _queue_name(name: str, queue: object) -> str:
    try:
        return check_queue_name(queue)
    except InvalidJob as error:
        raise InvalidJob(f"{name}: {error}") from None


def _tasks_module(name: str, value: object) -> str:
    if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")):
        return value
    raise InvalidJob(f"{name} must be a module name like 'tasks', got {short(value)}")


def _task_defaults(name: str, value: object) -> Mapping[str, Any]:
    options = check_mapping(name, value, '{"max_attempts": 5}')
    TaskOptions.check_defaults(options, what=name)
    return dict(options)


def _context(name: str, value: object) -> Mapping[str, str]:
    variables = check_mapping(name, value, '{"trace": "shop.tracing.trace_id"}')
    for variable in variables:
        if not (isinstance(variable, str) and variable.isidentifier()):
            raise InvalidJob(f"{name}: the name {short(variable)} must be like that of a Python variable")
    return {variable: check_dotted_path(f"{name}[{variable!r}]", path) for variable, path in variables.items()}


def _folder(name: str, value: object) -> str:
    path = value.__fspath__() if hasattr(value, "__fspath__") else value
    if isinstance(path, str) and path:
        return path
    raise InvalidJob(f"{name} must be the path of a folder, got {short(value)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf(Section):
    """``settings.DELAYQ``, with the keys in lower case."""

    #: alias of a Redis cache, a URL, "embedded", or a dict (url, or sentinels, or cluster); None = the embedded Redis
    redis: str | Mapping[str, Any] | None = key(None, _redis)
    #: let tests use this Redis, without the testing kit
    real_in_tests: bool = key(False, check_flag)
    #: folder of the embedded Redis's data and socket; None = its own default
    embedded_dir: str | None = key(None, _folder)
    #: first part of every key in Redis
    prefix: str = key("delayq", _prefix)
    #: queue name → shards, kind
    queues: Mapping[str, QueueConf] = key({}, _queues)
    #: defaults of delayq_worker, overridden by its command line
    worker: WorkerConf = key(WorkerConf(), section, WorkerConf)
    #: dotted paths of the middleware around each attempt, outermost first
    middleware: tuple[str, ...] = key((), check_texts)
    #: dotted paths of the middleware around each schedule call, outermost first
    schedule_middleware: tuple[str, ...] = key((), check_texts)
    #: functions of the project that a worker calls
    hooks: HooksConf = key(HooksConf(), section, HooksConf)
    #: name in a job's context → dotted path of the ContextVar stored under it
    context: Mapping[str, str] = key({}, _context)
    #: dotted path of the codec of arguments and payloads; None = JSON (see codec_types)
    codec: str | None = key(None, check_dotted_path)
    #: dotted paths of project types that jobs may carry (see codec_types)
    codec_types: tuple[str, ...] = key((), check_dotted_paths)
    #: the stream of finished attempts
    events: EventsConf = key(EventsConf(), section, EventsConf)
    #: durable jobs between the database and Redis
    outbox: OutboxConf = key(OutboxConf(), section, OutboxConf)
    #: records of @exactly_once
    inbox: InboxConf = key(InboxConf(), section, InboxConf)
    #: the pages of django.contrib.admin
    admin: AdminConf = key(AdminConf(), section, AdminConf)
    #: the HTTP API
    api: ApiConf = key(ApiConf(), section, ApiConf)
    #: metrics for Prometheus and OpenTelemetry
    metrics: MetricsConf = key(MetricsConf(), section, MetricsConf)
    #: the data pipeline on Spark
    pipeline: PipelineConf = key(PipelineConf(), section, PipelineConf)
    #: the tables of failed jobs and of the morgue
    mirror: MirrorConf = key(MirrorConf(), section, MirrorConf)
    #: name of the task module (or package) that is imported from every installed app
    tasks_module: str = key("tasks", _tasks_module)
    #: default options of every @task
    task_defaults: Mapping[str, Any] = key({}, _task_defaults)
    #: largest encoded arguments of one job, in bytes
    max_args_bytes: int = key(1024 * 1024, check_int, 1, 512 * 1024 * 1024)
    #: seconds without a heartbeat after which a holder loses its jobs
    lease: float = key(15.0, check_number, 1, 3600)
    #: accept due times more than ten years ahead
    allow_far: bool = key(False, check_flag)

    @classmethod
    def label(cls, name: str) -> str:
        """Return the path of a setting."""
        return f"{SETTING}[{name.upper()!r}]"

    def check_together(self) -> None:
        """Refuse a heartbeat that is too slow for the lease."""
        if self.worker.heartbeat * 3 > self.lease:
            raise InvalidJob(
                f"{SETTING}: three heartbeats of {self.worker.heartbeat:g} s do not fit into a LEASE of "
                f"{self.lease:g} s, so one late heartbeat would lose jobs. Raise LEASE or lower WORKER['heartbeat']"
            )

    @property
    def is_embedded(self) -> bool:
        """True if the Redis is the embedded one."""
        return self.redis is None or self.redis == EMBEDDED

    @property
    def is_mirrored(self) -> bool:
        """True if failed jobs and the morgue are copied into tables."""
        enabled = self.mirror.enabled
        return apps.is_installed("django.contrib.admin") if enabled is None else enabled

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
    names = {one.name.upper(): one.name for one in fields(Conf)}
    try:
        check_known(raw, names)
    except InvalidJob as error:
        raise Misconfigured(f"{SETTING}: {error}") from None
    return Conf(**{names[name]: value for name, value in raw.items()})


_conf: Conf | None = None


def conf() -> Conf:
    """Return the current settings.

    Raises:
        Misconfigured: the settings are wrong.
    """
    global _conf
    current = _conf
    if current is None:
        current = _conf = load(getattr(settings, SETTING, {}))
    return current


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
