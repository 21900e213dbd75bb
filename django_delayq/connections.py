"""Broker of the process, created from the settings on first use, and the Redis that the settings name for it."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Final

from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from . import signals
from .core import layouts
from .core.broker import Broker
from .core.errors import Misconfigured
from .core.inputs import short, suggest
from .core.queue import Queue
from .core.redis.connection import Connection, RedisConfig, connect
from .core.task import registry
from .core.thread_lock import ThreadLock
from .settings.conf import SETTING, Conf, check_installed, conf

#: seconds the site waits for one reply from Redis. A script takes milliseconds, but a Redis that writes its log to a
#: slow disk may stall for a second.
PATIENCE: Final = 3.0

_lock: Final = ThreadLock()
#: brokers of the process, by the seconds that they wait for a reply; None = as the settings say
_brokers: Final[dict[float | None, DjangoBroker]] = {}
#: broker that tests substitute for all of them; see :func:`stand_in`
_stand_in: DjangoBroker | None = None


def broker(seconds: float | None = None) -> DjangoBroker:
    """Return the process's broker, or the one of the same deployment that waits at most ``seconds`` for each reply.

    The broker connects on first use, not here. The embedded Redis, however, is started here.

    Raises:
        Misconfigured: the settings name no usable Redis; the message says what to do.
    """
    current = _stand_in  # another thread may end the test, or close the brokers
    if current is None:
        current = _brokers.get(seconds)
    if current is None:
        check_installed()
        refuse_in_tests()
        with _lock:
            current = _brokers.get(seconds)
            if current is None:
                current = _brokers[seconds] = make_broker(conf(), seconds)
    return current


def hurried_broker() -> DjangoBroker:
    """Return a broker of the same deployment that waits at most :data:`PATIENCE` seconds for each reply.

    So an unreachable Redis does not block the threads of a server.

    Raises:
        Misconfigured: see :func:`broker`.
    """
    return broker(PATIENCE)


def swift_broker() -> DjangoBroker:
    """Return a broker of the same deployment that waits ``OUTBOX["budget"]`` for a reply, for sending after a commit.

    Raises:
        Misconfigured: see :func:`broker`.
    """
    return broker(conf().outbox.budget)


class DjangoBroker(Broker):
    """Broker whose queues get their shards, kind and limits from settings and tasks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.registry.new_queue = lambda name: (configured_shards(name), conf().queue(name).kind)
        self.on_unreadable = signals.notify_unreadable
        self._limited: set[str] = set()

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """Return the queue of this name.

        For an existing queue the values in Redis win, except for limits that the settings define.
        """
        if name in self._limited and (known := self.registry.believed(name)) is not None:
            return known
        opened = super().queue(name, shards=shards, kind=kind)
        self.limit_as_configured(name)
        return opened

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Queue]:
        """Return the queues that a process serves, with their limits from the settings. See :meth:`Broker.served`."""
        queues = super().served(names, every=every, awaited=awaited)
        for queue in queues:
            if queue.name not in self._limited:
                self.limit_as_configured(queue.name)
        return queues

    def limit_as_configured(self, name: str) -> None:
        """Write the limits of a queue from the settings to Redis, if Redis holds other values.

        The settings are authoritative for the limits of the queues that they name. The limits of other queues are kept
        in Redis only. Each process does this once, and a dispatcher after each loss of data: otherwise processes with
        different settings, as during a deploy, would overwrite each other's limits for ever.
        """
        if is_configured(name):
            entry = conf().queue(name)
            self.limit(name, **{word: getattr(entry, word) for word in layouts.LIMITS})
        self._limited.add(name)

    def existing(self, name: str) -> Queue | None:
        """Return the queue if it exists in Redis, else None."""
        return self.registry.believed(name) or self.known_queue(name)


def queue(name: str) -> Queue:
    """Return a queue of the process's broker."""
    return broker().queue(name)


def existing_queue(name: str) -> Queue | None:
    """Return the queue if the deployment has it, else None. Looking up a job must not create a queue."""
    return broker().existing(name)


def is_configured(name: str) -> bool:
    """Return True if ``DELAYQ["QUEUES"]`` names the queue, so that its limits can only be changed in the settings."""
    return name in conf().queues


def configured_shards(name: str) -> int | None:
    """Return the number of shards that the settings, or else a task, define for a queue; None if neither does."""
    named = (task.options.shards for task in registry if task.options.queue == name)
    return conf().queue(name).shards or next((shards for shards in named if shards is not None), None)


def other_shards(of: Broker) -> list[str]:
    """Return messages about queues whose number of shards in Redis differs from the settings."""
    configured = [(live, configured_shards(live.name)) for live in of.queues()]
    return [live.text_of_other_shards(shards) for live, shards in configured if shards not in (None, live.shards)]


def close_broker() -> None:
    """Close the process's brokers, if there are any. The next use creates new ones."""
    with _lock:
        closed = list(_brokers.values())
        _brokers.clear()
    for one in closed:
        one.tally.close()
        one.connection.close()


def _close_after_change(*, setting: str, **_: object) -> None:
    if setting in (SETTING, "CACHES"):
        close_broker()


setting_changed.connect(_close_after_change, dispatch_uid="django_delayq.connections")


def stand_in(one: DjangoBroker | None) -> DjangoBroker | None:
    """Substitute ``one`` for the process's brokers, whatever the settings say. For tests. None restores the real ones.

    Returns:
        The previous substitute, or None.
    """
    global _stand_in
    with _lock:
        before, _stand_in = _stand_in, one
    return before


def can_confirm() -> bool:
    """Return True if the settings name something that confirms writes; also for a substitute, which ignores it."""
    return _stand_in is not None or broker().connection.confirmation is not None


def make_broker(settings: Conf, seconds: float | None = None) -> DjangoBroker:
    """Return a separate broker for ``settings``, see :func:`broker`. The caller closes its connection."""
    connection = make_connection(settings)
    new = DjangoBroker(
        connection if seconds is None else connection.hurried(seconds),
        prefix=settings.prefix,
        lease_ms=int(settings.lease * 1000),
        event_cap=settings.events.cap,
    )
    if settings.metrics.scripts:
        new.observe(new.tally.waited)
    return new


# -- the Redis that the settings name --------------------------------------------------------------------------------


def make_connection(settings: Conf) -> Connection:
    """Return a connection to the Redis that ``settings`` name."""
    redis = settings.redis
    if settings.is_embedded:
        return connect(RedisConfig.parse(embedded_url(settings)))
    if isinstance(redis, str) and "://" not in redis:
        return Connection.wrap(check_cache(redis).get_client(write=True))
    return connect(RedisConfig.parse(redis))


def embedded_directory(settings: Conf) -> Path:
    """Return the folder of the embedded Redis: ``EMBEDDED_DIR``, else ``.delayq`` in the project's ``BASE_DIR``.

    Raises:
        Misconfigured: it is not meant, because ``DEBUG`` is off, and ``REDIS`` names nothing; or neither setting names
            a folder.
    """
    if settings.redis is None and not django_settings.DEBUG and not is_test_run():
        raise Misconfigured(
            "no Redis is configured, and DEBUG is False: jobs in the embedded one would be lost with this machine. Set "
            f"{SETTING}['REDIS'] to a URL like 'redis://localhost:6379/0', or to 'embedded' if that is what you want"
        )
    base: Any = getattr(django_settings, "BASE_DIR", None)
    if settings.embedded_dir is None and base is None:
        raise Misconfigured(
            f"no Redis is configured, and the embedded one needs a folder: set {SETTING}['EMBEDDED_DIR'] (there is no "
            f"BASE_DIR in the settings), or set {SETTING}['REDIS'] to a URL like 'redis://localhost:6379/0'"
        )
    return Path(settings.embedded_dir or Path(base) / ".delayq")


def embedded_url(settings: Conf) -> str:
    """Return the URL of the embedded Redis, which is started if necessary; see :func:`embedded_directory`."""
    from . import embedded

    return embedded.ensure(embedded_directory(settings))


def check_cache(alias: str) -> Any:
    """Check that a cache exists and is on Redis, without a call to its server.

    Returns:
        The part of a cache of django-redis, or of Django's own Redis cache, whose ``get_client()`` makes clients.

    Raises:
        Misconfigured: there is no such cache, or it is not on Redis.
    """
    settings = django_settings.CACHES
    if alias not in settings:
        raise Misconfigured(
            f"{SETTING}['REDIS'] is {short(alias)}, which is no alias in CACHES.{suggest(alias, settings)} "
            f"Add it there, or give a URL like 'redis://localhost:6379/0'"
        )
    try:
        cache: Any = caches[alias]
        makers = cache._cache if isinstance(cache, RedisCache) else cache.client
        makers.get_client  # noqa: B018 - other caches have none
    except (ImportError, AttributeError, KeyError, ImproperlyConfigured):
        raise Misconfigured(
            f"{SETTING}['REDIS'] names the cache {short(alias)}, whose backend {settings[alias].get('BACKEND')} is not "
            f"on Redis, or not installed. Use 'django.core.cache.backends.redis.RedisCache' or "
            f"'django_redis.cache.RedisCache' there, or give a URL like 'redis://localhost:6379/0'"
        ) from None
    return makers


# -- tests -----------------------------------------------------------------------------------------------------------

_permitted: bool = False


def is_test_run() -> bool:
    """Return True between Django's ``setup_test_environment`` and ``teardown_test_environment``.

    `manage.py test`, pytest-django and every runner derived from Django's call them. Worker processes that a test
    starts do not.
    """
    utils = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


def permit_in_tests(permitted: bool) -> None:
    """Let tests use the Redis of the settings, or refuse it; the pytest plugin does so by its ini option."""
    global _permitted
    _permitted = permitted


def may_use_redis() -> bool:
    """Return False in a test run whose tests may not use the Redis of the settings."""
    return not is_test_run() or _permitted or conf().real_in_tests


def refuse_in_tests() -> None:
    """Refuse the Redis of the settings to a test that did not ask for it; also a call that waits for a commit.

    Raises:
        Misconfigured: this is a test run.
    """
    if _stand_in is None and not _brokers and not may_use_redis():
        raise Misconfigured(
            "this test would use the Redis of the settings. Let the test class inherit from "
            "django_delayq.testing.DelayQTestCase, or use `with fake_queue():` or pytest with its plugin; tests that "
            f"need a real Redis set {SETTING}['REAL_IN_TESTS'] = True, or delayq = real in pytest's ini file"
        )
