"""The ``DELAYQ`` setting: one table of all keys, by section, each with its default, its check and its meaning.

The tables in ``docs/reference/settings.md`` are rendered from it (``tests/packaging/settings_tables.py``). The dict is
read on first use and checked, and read again after a test changed it (:func:`conf`). ``CODEC`` and ``CODEC_TYPES`` are
installed when Django starts. The variables of ``CONTEXT`` are stored with a job at the schedule call and set again for
its handler, so a handler that schedules passes them on; for a batch the context of the first job is set.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Final, Self, dataclass_transform

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ..core import codec
from ..core.codec import ValueType
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_flag, check_int, check_known, check_number, check_queue_name, short
from ..core.job import Job
from ..core.layouts import PRIORITY_MODES
from ..core.options import Limits, Rate, TaskOptions, check_concurrency, check_rate, joint_limits
from ..core.records.keys import MAX_SHARDS
from ..masking import SENSITIVE, Mask

APP: Final = "django_delayq"
logger: Final = logging.getLogger("django_delayq.settings")

SETTING: Final = "DELAYQ"
_CHECK: Final = "check"


def key(default: Any, check: Callable[..., object], *args: object, optional: bool = False, **options: object) -> Any:
    """Return a dataclass field with a check.

    Args:
        default: value of a setting that is not given.
        check: called with the name of the setting, its value, ``args`` and ``options``; returns the value to keep, or
            raises InvalidJob.
        optional: accept None without a check; it is accepted anyway where it is the default.
    """
    optional = optional or default is None

    def checked(name: str, value: object) -> object:
        return None if value is None and optional else check(name, value, *args, **options)

    return field(default_factory=lambda: default, metadata={_CHECK: checked})  # a dict cannot be a plain default


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section:
    """Base of all sections: a frozen dataclass whose fields :func:`key` declares. Made of a dict by :meth:`read`."""

    #: function that turns the name of a field into its key in the dict
    spelling: ClassVar[Callable[[str], str]] = str

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def read(cls, path: str, value: object) -> Self:
        """Return the section for a dict of settings.

        Args:
            path: of the dict in the settings; messages begin with it.

        Raises:
            Misconfigured: no dict, an unknown key (with a suggestion), or a wrong value.
        """
        rows = {cls.spelling(row.name): row for row in fields(cls)}  # type: ignore[arg-type]
        try:
            found = check_mapping(path, value)
            check_known(found, rows)
            return cls(
                **{rows[name].name: rows[name].metadata[_CHECK](f"{path}[{name!r}]", found[name]) for name in found}
            )
        except InvalidJob as error:
            text = str(error)  # checks of values name the whole path
            raise Misconfigured(text if text.startswith(path) else f"{path}: {text}") from None


def part(cls: type[Section]) -> Any:
    """Return a dataclass field for a setting that is a section of its own."""
    return key(cls(), cls.read)


# -- checks of values: functions of the name of a setting and its value ------------------------------------------------


def text_like(pattern: str, what: str) -> Callable[[str, object], str]:
    """Return a check for texts of a form.

    Args:
        pattern: regular expression of the whole text.
        what: valid values, for the message.
    """
    form = re.compile(pattern, re.DOTALL)

    def check(name: str, value: object) -> str:
        if isinstance(value, str) and form.fullmatch(value):
            return value
        raise InvalidJob(f"{name} must be {what}, got {short(value)}")

    return check


def list_of(check_item: Callable[[str, object], str]) -> Callable[[str, object], tuple[str, ...]]:
    """Return a check for lists and tuples of texts, which returns a tuple."""

    def check(name: str, value: object) -> tuple[str, ...]:
        if isinstance(value, (list, tuple)):
            return tuple([check_item(name, item) for item in value])
        raise InvalidJob(f"{name} must be a list of strings, got {short(value)}")

    return check


def dict_of(
    check_key: Callable[[str, object], str], check_value: Callable[..., Any], example: str
) -> Callable[[str, object], Mapping[str, Any]]:
    """Return a check for mappings, with an example for the message."""

    def check(name: str, value: object) -> Mapping[str, Any]:
        entries = check_mapping(name, value, example)
        return {check_key(name, entry): check_value(f"{name}[{entry!r}]", found) for entry, found in entries.items()}

    return check


def check_mapping(name: str, value: object, example: str = "") -> Mapping[Any, Any]:
    """Return ``value`` if it is a mapping; otherwise raise :class:`InvalidJob`, which describes one."""
    if isinstance(value, Mapping):
        return value
    like = f" like {example}" if example else ""
    raise InvalidJob(f"{name} must be a dict{like}, got {short(value)}")


_NAME: Final = r"[^\W\d]\w*"
_text: Final = text_like(".+", "a text")
_path: Final = text_like(".+", "the path of a folder")
_variable: Final = text_like(_NAME, "a name like that of a Python variable")
_module: Final = text_like(rf"{_NAME}(\.{_NAME})*", "a module name like 'tasks'")
check_dotted_path: Final = text_like(rf"{_NAME}(\.{_NAME})+", "a dotted path like 'shop.module.name'")
_prefix: Final = text_like("[A-Za-z0-9_.:-]{1,64}", "1 to 64 letters, digits, '_', '.', ':' or '-' (no braces)")
_rate: Final = text_like(r"[1-9]\d*/(s|sec|second|m|min|minute|h|hour|d|day)", "a rate like '1000/min'")
#: actions of HTTP API routes that can be throttled: the permission that a route requires
_action: Final = partial(check_choice, choices=("view", "produce", "consume", "operate", "admin"))
_texts: Final = list_of(_text)
_dotted_paths: Final = list_of(check_dotted_path)


def _queue_name(name: str, value: object) -> str:
    try:
        return check_queue_name(value)
    except InvalidJob as error:
        raise InvalidJob(f"{name}: {error}") from None


def _redis(name: str, value: object) -> object:
    if (isinstance(value, str) and value.strip()) or (isinstance(value, Mapping) and value):
        return value
    raise InvalidJob(
        f"{name} must be the alias of a Redis cache, a URL like redis://localhost:6379/0, or a dict with url, "
        f"sentinels or cluster; got {short(value)}"
    )


def _task_defaults(name: str, value: object) -> Mapping[str, Any]:
    options = check_mapping(name, value, '{"max_attempts": 5}')
    TaskOptions.check_defaults(options, what=name)
    return dict(options)


def _folder(name: str, value: object) -> str:
    return _path(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


# -- keys --------------------------------------------------------------------------------------------------------------


class QueueConf(Section):
    """One entry of ``DELAYQ["QUEUES"]``: how a queue is created. Queues without an entry use the defaults."""

    #: parts of the queue, each in one Redis slot; Redis keeps the number that the queue was created with. None = the
    #: number that a task of the queue names, else 1
    shards: int | None = key(None, check_int, 1, MAX_SHARDS)
    #: "python" = run by workers; "pull" = raw bytes for other consumers, workers never reserve from it
    kind: str = key("python", check_choice, ("python", "pull"))
    #: how often workers visit it, relative to a queue of weight 1
    weight: float = key(1.0, check_number, 0.001, unit="")
    #: most jobs of the queue that are held at the same time: an int over all workers and consumers, or
    #: ``{"total": …, "local": …}`` with a limit for each worker process; None = no limit
    concurrency: Limits | None = key(None, check_concurrency)
    #: most starts of its jobs over all workers and consumers: "10/s", "1000/m", "5/h", "100/d", or a number per second
    rate: Rate | None = key(None, check_rate)
    #: starts that may follow each other at once; None = what the rate grants in a tenth of a second, at least 1
    burst: int | None = key(None, check_int, 1)
    #: maximum number of live jobs; further ones are refused with ``QueueFull``. None = no limit
    max_length: int | None = key(None, check_int, 1)
    #: maximum number of jobs in its morgue, the oldest are removed first; None = no limit
    morgue_max: int | None = key(None, check_int, 1)
    #: seconds that a job stays in its morgue; None = forever
    morgue_ttl: float | None = key(None, check_number, 1)
    #: "strict" = a more urgent class always goes first; "weighted" = it goes first more often
    priorities: str = key("strict", check_choice, PRIORITY_MODES)
    #: seconds after which a due job goes before more urgent ones, which keep three quarters of what is reserved; None =
    #: it waits for as long as they are due
    starve_after: float | None = key(None, check_number, 1)
    #: its jobs are durable (kept in the database until they are done), unless the task or the call overrides it
    durable: bool = key(False, check_flag)

    def __post_init__(self) -> None:
        """Refuse durable jobs and limits of worker processes in a pull queue, and a burst without a rate."""
        if self.durable and self.kind == "pull":
            raise InvalidJob("durable is for jobs of tasks; the bytes of a queue of kind 'pull' are in Redis only")
        if self.concurrency is not None and self.concurrency.local is not None and self.kind == "pull":
            raise InvalidJob('concurrency "local" is for worker processes; a queue of kind "pull" has only a "total"')
        _ = self.limits  # refuses a burst without a rate

    @property
    def limits(self) -> Limits | None:
        """Limits of its jobs; None = none."""
        return joint_limits(self.concurrency, self.rate, self.burst)


class WorkerConf(Section):
    """``DELAYQ["WORKER"]``: defaults of ``manage.py delayq_worker``; its options override them."""

    #: processes that the supervisor keeps running
    processes: int = key(1, check_int, 1, 1024)
    #: maximum number of extra processes for jobs in quarantine, each for one job at a time
    quarantine: int = key(2, check_int, 1, 1024)
    #: jobs that one process runs at the same time
    threads: int = key(5, check_int, 1, 1024)
    #: queues to serve; None = every queue of kind "python"
    queues: tuple[str, ...] | None = key(None, list_of(_queue_name))
    #: seconds that running jobs get to finish after ``SIGTERM``
    grace: float = key(25.0, check_number, 0)
    #: a process is replaced after this many jobs; None = never
    max_jobs: int | None = key(None, check_int, 1)
    #: a process is replaced when it uses more than this many MiB of memory; None = never
    max_rss: int | None = key(None, check_int, 1)
    #: also do the housekeeping (wake, reap) of the queues
    dispatcher: bool = key(True, check_flag)
    #: milliseconds of measured work that a process may hold beyond its free threads
    prefetch_ms: float = key(50.0, check_number, 0, unit="milliseconds")
    #: dotted path of the function that chooses between shards with due work; None = by the weights of their queues
    scheduler: str | None = key(None, check_dotted_path)
    #: seconds that a database connection is kept between jobs; None = leave Django's ``CONN_MAX_AGE`` alone
    conn_max_age: float | None = key(60.0, check_number, 0, optional=True)


class EventsConf(Section):
    """``DELAYQ["EVENTS"]``: the stream of finished attempts."""

    #: events kept in the stream of each shard
    cap: int = key(10_000, check_int, 0)


class MirrorConf(Section):
    """``DELAYQ["MIRROR"]``: the tables of failed jobs and of the morgue, whose secrets are masked (see masking)."""

    #: copy failed jobs and the morgue into the tables; None = if ``django.contrib.admin`` is installed. Without copies
    #: the pages of both are empty and say so; commands and the HTTP API work as before
    enabled: bool | None = key(None, check_flag)
    #: days after which a row is removed, counted from the failure or burial; None = as long as Redis has the job
    keep_days: float | None = key(None, check_number, 0.001, unit="days")
    #: maximum rows of one queue in each of the two tables, the oldest are removed first. Divided among the shards
    max_rows: int = key(1_000_000, check_int, 1)


class HooksConf(Section):
    """``DELAYQ["HOOKS"]``: dotted paths of functions of the project that a worker calls."""

    #: called without arguments in each worker process, after Django is set up and before its first job; an error ends
    #: the process
    worker_init: str | None = key(None, check_dotted_path)
    #: called with the error before a process ends by a fatal error, or although jobs still run in it (flush logs);
    #: there is little time left. It may take no argument
    last_words: str | None = key(None, check_dotted_path)
    #: called with the exception of a failed attempt; returns the error to store. A text replaces its message, a dict
    #: adds fields, bytes are stored as they are. If it fails itself, that is logged and the usual form is stored
    format_error: str | None = key(None, check_dotted_path)
    #: called with the job and the exception of each failure, to send them to an error tracker
    report_error: str | None = key(None, check_dotted_path)

    def paths(self) -> dict[str, str]:
        """Return the configured hooks by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}


class AdminConf(Section):
    """``DELAYQ["ADMIN"]``: the pages of django.contrib.admin."""

    #: register them with the default site; False = the project calls ``django_delayq.admin.register(site)``
    register: bool = key(True, check_flag)
    #: words in names of arguments, payload fields and options whose values are masked, on pages, in responses, logs and
    #: command output
    sensitive: tuple[str, ...] = key(SENSITIVE, _texts)
    #: actions on more jobs than this are run by a worker
    bulk_threshold: int = key(500, check_int, 0, 10_000)
    #: seconds after its due time from which a waiting job is shown as late
    late_after: float = key(60.0, check_number, 0)


class OutboxConf(Section):
    """``DELAYQ["OUTBOX"]``: handling of durable jobs between the database and Redis."""

    #: seconds that a request waits for Redis after a commit; then durable jobs are left to the relay, others are lost
    budget: float = key(0.2, check_number, 0.01, 1)
    #: databases whose outbox is processed; the same in every process of the deployment. Without any, a call that
    #: requests a durable job is refused
    databases: tuple[str, ...] = key(("default",), _texts)
    #: days that a refused row is kept
    keep_days: float = key(30.0, check_number, 0, unit="days")


class InboxConf(Section):
    """``DELAYQ["INBOX"]``: retention of records of ``@exactly_once`` and of API requests that create durable jobs."""

    #: days that an entry is kept: longer than a job may be delayed and retried
    keep_days: float = key(30.0, check_number, 0.001, unit="days")


class ApiConf(Section):
    """``DELAYQ["API"]``: the HTTP API, if the project includes ``django_delayq.api.urls``."""

    #: dotted paths of Django REST framework's authentication classes; None = tokens, if ``rest_framework.authtoken`` is
    #: installed, and sessions
    authentication: tuple[str, ...] | None = key(None, _dotted_paths)
    #: dotted path of ``allow(request, action, queue) -> bool``, called after the permission checks; ``queue`` is ``""``
    #: for requests that concern no queue
    allow: str | None = key(None, check_dotted_path)
    #: action (view, produce, consume, operate, admin) → rate for each user, like "1000/min"
    throttle: Mapping[str, str] = key({}, dict_of(_action, _rate, '{"produce": "1000/min"}'))
    #: bytes of the largest request body
    max_body: int = key(4 * 1024 * 1024, check_int, 1024, 1 << 30)
    #: maximum number of jobs that one request may produce or refer to
    max_jobs: int = key(1000, check_int, 1, 10_000)
    #: longest wait of a reserve, in seconds
    max_wait: float = key(20.0, check_number, 0, 20)
    #: maximum number of waiting reserves in one process; further ones are answered at once
    max_waiting: int = key(500, check_int, 0, 100_000)
    #: maximum number of waiting reserves of one user
    max_waiting_per_user: int = key(100, check_int, 0, 100_000)
    #: seconds for which the response to an Idempotency-Key is kept
    keep_answers: float = key(86_400.0, check_number, 1, 30 * 86_400)


class MetricsConf(Section):
    """``DELAYQ["METRICS"]``: metrics for Prometheus and OpenTelemetry."""

    #: anyone may read ``/metrics``; False = requires the permission to view the HTTP API
    public: bool = key(False, check_flag)
    #: measure every script call; True = the metrics show by script how long callers wait for Redis
    scripts: bool = key(False, check_flag)


class PipelineConf(Section):
    """``DELAYQ["PIPELINE"]``: the data pipeline on Spark (:mod:`django_delayq.pipeline`)."""

    #: folder (or URL that Spark and deltalake can write to) of the history
    root: str = key(".delayq/history", _text)
    #: Spark's master: ``local[*,4]`` runs here with four tries for each task; or ``spark://host:7077`` and others
    master: str = key("local[*,4]", _text)
    #: Spark's own options, added to and overriding the defaults of a session
    conf: Mapping[str, str] = key({}, dict_of(_text, _text, '{"spark.driver.memory": "2g"}'))
    #: task or queue → seconds by which an attempt may be late; a later one counts as missed. "*" = all others
    sla: Mapping[str, float] = key({"*": 60.0}, dict_of(_text, partial(check_number, low=0), '{"*": 60}'))
    #: days that the events are kept; None = forever
    keep_events_days: float | None = key(180.0, check_number, 0.001, unit="days", optional=True)
    #: days that the hourly metrics, and the records of the pipeline's runs, are kept; None = forever
    keep_hours_days: float | None = key(365.0, check_number, 0.001, unit="days", optional=True)


class Conf(Section):
    """``settings.DELAYQ``, with the keys in lower case."""

    spelling = str.upper

    #: alias of a Redis cache, a URL, "embedded", or a dict (url, or sentinels, or cluster); None = the embedded Redis
    redis: str | Mapping[str, Any] | None = key(None, _redis)
    #: let tests use this Redis, without the testing kit
    real_in_tests: bool = key(False, check_flag)
    #: folder of the embedded Redis's data and socket; None = its own default
    embedded_dir: str | None = key(None, _folder)
    #: first part of every key in Redis
    prefix: str = key("delayq", _prefix)
    #: queue name → shards, kind
    queues: Mapping[str, QueueConf] = key({}, dict_of(_queue_name, QueueConf.read, '{"orders": {"shards": 5}}'))
    #: defaults of delayq_worker, overridden by its command line
    worker: WorkerConf = part(WorkerConf)
    #: dotted paths of the middleware around each attempt, outermost first
    middleware: tuple[str, ...] = key((), _texts)
    #: dotted paths of the middleware around each schedule call, outermost first
    schedule_middleware: tuple[str, ...] = key((), _texts)
    #: functions of the project that a worker calls
    hooks: HooksConf = part(HooksConf)
    #: name in a job's context → dotted path of the ContextVar stored under it
    context: Mapping[str, str] = key({}, dict_of(_variable, check_dotted_path, '{"trace": "shop.tracing.trace_id"}'))
    #: dotted path of the codec of arguments and payloads; None = JSON (see codec_types)
    codec: str | None = key(None, check_dotted_path)
    #: dotted paths of project types that jobs may carry (see codec_types)
    codec_types: tuple[str, ...] = key((), _dotted_paths)
    #: the stream of finished attempts
    events: EventsConf = part(EventsConf)
    #: durable jobs between the database and Redis
    outbox: OutboxConf = part(OutboxConf)
    #: records of @exactly_once
    inbox: InboxConf = part(InboxConf)
    #: the pages of django.contrib.admin
    admin: AdminConf = part(AdminConf)
    #: the HTTP API
    api: ApiConf = part(ApiConf)
    #: metrics for Prometheus and OpenTelemetry
    metrics: MetricsConf = part(MetricsConf)
    #: the data pipeline on Spark
    pipeline: PipelineConf = part(PipelineConf)
    #: the tables of failed jobs and of the morgue
    mirror: MirrorConf = part(MirrorConf)
    #: name of the task module (or package) that is imported from every installed app
    tasks_module: str = key("tasks", _module)
    #: default options of every @task
    task_defaults: Mapping[str, Any] = key({}, _task_defaults)
    #: largest encoded arguments of one job, in bytes
    max_args_bytes: int = key(1024 * 1024, check_int, 1, 512 * 1024 * 1024)
    #: seconds without a heartbeat after which a holder loses its jobs
    lease: float = key(15.0, check_number, 1, 3600)
    #: accept due times more than ten years ahead
    allow_far: bool = key(False, check_flag)

    @functools.cached_property
    def context_variables(self) -> Mapping[str, ContextVar[Any]]:
        """The context variables by the names under which they are stored.

        Raises:
            Misconfigured: a path cannot be imported, or is not a ContextVar.
        """
        variables = {}
        for name, path in self.context.items():
            where = f"{SETTING}['CONTEXT'][{name!r}]"
            variables[name] = variable = load_object(where, path)
            if not isinstance(variable, ContextVar):
                raise Misconfigured(f"{where}: {path} is no contextvars.ContextVar, it is {short(variable)}")
        return variables

    @property
    def is_embedded(self) -> bool:
        """True if the Redis is the embedded one."""
        return self.redis in (None, "embedded")

    @property
    def is_mirrored(self) -> bool:
        """True if failed jobs and the morgue are copied into tables."""
        enabled = self.mirror.enabled
        return apps.is_installed("django.contrib.admin") if enabled is None else enabled

    def queue(self, name: str) -> QueueConf:
        """Return the settings of one queue."""
        return self.queues.get(name) or QueueConf()


# -- the settings of this process --------------------------------------------------------------------------------------


_conf: Conf | None = None


def conf() -> Conf:
    """Return the current settings.

    Raises:
        Misconfigured: the settings are wrong.
    """
    global _conf
    current = _conf
    if current is None:
        current = _conf = Conf.read(SETTING, getattr(settings, SETTING, {}))
    return current


def conf_or_defaults() -> Conf:
    """Return the settings, or the defaults while the settings are wrong or absent.

    For situations in which raising would hide the system check that explains the error (task modules being imported).
    """
    try:
        return conf()
    except (Misconfigured, ImproperlyConfigured):
        return Conf()


def check_installed() -> None:
    """Check that ``INSTALLED_APPS`` contains the app; otherwise no worker would have its tasks.

    Raises:
        Misconfigured: the app is missing. Nothing is checked before Django's apps are loaded.
    """
    if apps.ready and not apps.is_installed(APP):
        raise Misconfigured(
            f"{APP!r} is not in INSTALLED_APPS, so there are no workers and no checks for what is scheduled. Add it: "
            f'INSTALLED_APPS = [..., "{APP}"]'
        )


def mask() -> Mask:
    """Return the mask for displayed job values, with the words of ``ADMIN["sensitive"]``."""
    return _mask(conf_or_defaults().admin.sensitive)


_mask: Final = functools.lru_cache(maxsize=4)(Mask)


# -- objects that the settings name ------------------------------------------------------------------------------------


def load_object(where: str, path: str) -> Any:
    """Return the object at ``path``.

    Raises:
        Misconfigured: it cannot be imported; the message begins with ``where``.
    """
    try:
        return import_string(path)
    except ImportError as error:
        raise Misconfigured(f"{where}: {path} cannot be imported: {error}") from error


def load_function(where: str, path: str) -> Callable[..., Any]:
    """Return the function or class at ``path``.

    Raises:
        Misconfigured: there is none.
    """
    loaded: object = load_object(where, path)
    if callable(loaded):
        return loaded
    raise Misconfigured(f"{where}: {path} is not callable")


def load_plain_function(where: str, path: str) -> Callable[..., Any]:
    """Return the plain function at ``path``, whose calls return their results directly.

    Raises:
        Misconfigured: there is none, or it is an ``async def`` or a generator.
    """
    function = load_function(where, path)
    for code in (function, type(function).__call__):
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
            raise Misconfigured(
                f"{where}: {path} is async or a generator, so its result would come too late; make it a plain function"
            )
    return function


# -- codec -------------------------------------------------------------------------------------------------------------


#: types that the settings named
_installed: Final[list[ValueType]] = []


def install_codec(settings: Conf) -> None:
    """Use the codec and register the types that ``CODEC`` and ``CODEC_TYPES`` name, and remove all earlier ones.

    Raises:
        Misconfigured: one of them cannot be imported, is none, or clashes with another type; then JSON is used.
    """
    codec.use(None)
    while _installed:
        codec.forget(_installed.pop())
    where = f"{SETTING}['CODEC_TYPES']"
    try:
        for path in settings.codec_types:
            _installed.append(codec.install(_value_type(where, path)))
        where = f"{SETTING}['CODEC']"
        codec.use(None if settings.codec is None else codec.codec_at(settings.codec))
    except Misconfigured as error:
        raise Misconfigured(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def _value_type(where: str, path: str) -> ValueType:
    loaded = load_object(where, path)
    try:
        return loaded if isinstance(loaded, ValueType) else ValueType(*loaded)
    except TypeError:
        raise Misconfigured(
            f"{where}: {path}: a ValueType or a tuple (tag, type, dump, load) was expected, not {short(loaded)}"
        ) from None


def install_codec_quietly() -> None:
    """Call :func:`install_codec` for the current settings. A wrong one is logged; a system check explains it."""
    try:
        install_codec(conf_or_defaults())
    except Misconfigured as error:
        logger.error("%s", error)


def _changed(*, setting: str, **_: object) -> None:
    global _conf
    if setting in (SETTING, "CACHES"):
        _conf = None
    if setting == SETTING:
        install_codec_quietly()


setting_changed.connect(_changed, dispatch_uid="django_delayq.settings.conf")


# -- context -----------------------------------------------------------------------------------------------------------


def collect_context() -> Mapping[str, Any]:
    """Return the current values of the variables, without those that are unset or None."""
    values = {name: variable.get(None) for name, variable in conf().context_variables.items()}
    return {name: value for name, value in values.items() if value is not None}


def restore_context(job: Job) -> None:
    """Set the variables to their values at the schedule call of ``job``, for the rest of the current context."""
    variables = conf().context_variables
    context = job.context if variables else {}
    for name, variable in variables.items():
        if name in context:
            variable.set(context[name])
