"""One broker per process, made from the settings when first needed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from django.conf import settings as django_settings

from .conf import SETTING, Conf, conf
from .core.broker import Broker
from .core.connection import Connection, RedisConfig, connect
from .core.errors import Misconfigured
from .core.queue import Queue
from .core.task import registry, short, suggest

_lock: Final = threading.Lock()
_broker: DjangoBroker | None = None


def broker() -> DjangoBroker:
    """The process's broker. It connects when it is first used, not here (the embedded Redis is started here).

    Raises:
        Misconfigured: the settings name no usable Redis; the message says what to do.
    """
    global _broker
    if _broker is None:
        with _lock:
            if _broker is None:
                _broker = make_broker(conf())
    return _broker


class DjangoBroker(Broker):
    """A broker whose queues have the shards and the kind that settings and tasks give them."""

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """The queue of this name; what Redis says of an existing one wins."""
        known = self._queues.get(name)
        if known is not None:
            return known
        entry = conf().queue(name)
        return super().queue(name, shards=shards or entry.shards or _shards_of_tasks(name), kind=kind or entry.kind)

    def existing(self, name: str) -> Queue | None:
        """The queue, if Redis has it."""
        return self._queues.get(name) or next((queue for queue in self.queues() if queue.name == name), None)


def queue(name: str) -> Queue:
    """A queue of the process's broker."""
    return broker().queue(name)


def existing_queue(name: str) -> Queue | None:
    """The queue, if the deployment has it: asking for a job must not bring a queue into being."""
    return broker().existing(name)


def _shards_of_tasks(name: str) -> int:
    named = (task.options.shards for task in registry if task.options.queue == name)
    return next((shards for shards in named if shards is not None), 1)


def close_broker() -> None:
    """Close the process's broker, if there is one; the next use makes a new one."""
    global _broker
    with _lock:
        old, _broker = _broker, None
    if old is not None:
        old.connection.close()


def make_broker(settings: Conf) -> DjangoBroker:
    """A broker of its own for ``settings``; the caller closes its connection."""
    return DjangoBroker(
        make_connection(settings),
        prefix=settings.prefix,
        lease_ms=int(settings.lease * 1000),
        event_cap=settings.events.cap,
    )


def make_connection(settings: Conf) -> Connection:
    """A connection to the Redis that ``settings`` name."""
    redis = settings.redis
    if redis is None:
        return connect(RedisConfig.parse(_embedded_url(settings)))
    if isinstance(redis, str) and "://" not in redis:
        return Connection.wrap(_cache_client(redis))
    return connect(RedisConfig.parse(redis))


def _embedded_url(settings: Conf) -> str:
    try:
        from . import embedded
    except ImportError as error:  # a system without fcntl
        raise Misconfigured(
            f"no Redis is configured and the embedded one does not run here ({error}). Set {SETTING}['REDIS'] to a URL "
            f"like 'redis://localhost:6379/0' or to the alias of a django-redis cache"
        ) from None
    return embedded.ensure(embedded_directory(settings))


def embedded_directory(settings: Conf) -> Path:
    """The folder of the embedded Redis: ``EMBEDDED_DIR``, else ``.delayq`` in the project's ``BASE_DIR``."""
    if settings.embedded_dir is not None:
        return Path(settings.embedded_dir)
    base = getattr(django_settings, "BASE_DIR", None)
    if base is None:
        raise Misconfigured(
            f"no Redis is configured, and the embedded one needs a folder: set {SETTING}['EMBEDDED_DIR'] (there is no "
            f"BASE_DIR in the settings), or set {SETTING}['REDIS'] to a URL like 'redis://localhost:6379/0'"
        )
    return Path(base) / ".delayq"


def _cache_client(alias: str) -> Any:
    known = django_settings.CACHES
    if alias not in known:
        raise Misconfigured(
            f"{SETTING}['REDIS'] is {short(alias)}, which is no alias in CACHES.{suggest(alias, known)} "
            f"Add it there, or give a URL like 'redis://localhost:6379/0'"
        )
    try:
        from django_redis import get_redis_connection
    except ImportError:
        raise Misconfigured(
            f"{SETTING}['REDIS'] names the cache {short(alias)}, but django-redis is not installed: "
            f"pip install django-redis, or give a URL like 'redis://localhost:6379/0'"
        ) from None
    try:
        return get_redis_connection(alias)
    except NotImplementedError:
        backend = known[alias].get("BACKEND")
        raise Misconfigured(
            f"{SETTING}['REDIS'] names the cache {short(alias)}, whose backend {backend} is not django-redis. "
            f"Use 'django_redis.cache.RedisCache' there, or give a URL like 'redis://localhost:6379/0'"
        ) from None
