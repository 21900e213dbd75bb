"""Connection to the Redis that the settings name, and the cases in which it is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.core.cache import caches as django_caches
from django.core.cache.backends.redis import RedisCache
from django.utils.module_loading import import_string

from .core.errors import Misconfigured
from .core.inputs import short, suggest
from .core.redis.connection import Connection, RedisConfig, connect
from .settings.conf import SETTING, Conf, conf


def make_connection(settings: Conf) -> Connection:
    """Return a connection to the Redis that ``settings`` name."""
    redis = settings.redis
    if settings.is_embedded:
        return connect(RedisConfig.parse(_embedded_url(settings)))
    if isinstance(redis, str) and "://" not in redis:
        return Connection.wrap(cache_client(redis))
    return connect(RedisConfig.parse(redis))


def check_embedded(settings: Conf) -> None:
    """Check that the embedded Redis is meant: it is named, or this is development or a test.

    Raises:
        Misconfigured: ``DEBUG`` is off, and ``REDIS`` names nothing.
    """
    if settings.redis is None and not django_settings.DEBUG and not is_test_run():
        raise Misconfigured(
            "no Redis is configured, and DEBUG is False: jobs in the embedded one would be lost with this machine. Set "
            f"{SETTING}['REDIS'] to a URL like 'redis://localhost:6379/0', or to 'embedded' if that is what you want"
        )


def _embedded_url(settings: Conf) -> str:
    check_embedded(settings)
    try:
        from . import embedded
    except ImportError as error:  # a system without fcntl
        raise Misconfigured(
            f"no Redis is configured and the embedded one does not run here ({error}). Set {SETTING}['REDIS'] to a URL "
            f"like 'redis://localhost:6379/0' or to the alias of a Redis cache"
        ) from None
    return embedded.ensure(embedded_directory(settings))


def embedded_directory(settings: Conf) -> Path:
    """Return the folder of the embedded Redis: ``EMBEDDED_DIR``, else ``.delayq`` in the project's ``BASE_DIR``.

    Raises:
        Misconfigured: neither ``EMBEDDED_DIR`` nor ``BASE_DIR`` is set.
    """
    if settings.embedded_dir is not None:
        return Path(settings.embedded_dir)
    base = getattr(django_settings, "BASE_DIR", None)
    if base is None:
        raise Misconfigured(
            f"no Redis is configured, and the embedded one needs a folder: set {SETTING}['EMBEDDED_DIR'] (there is no "
            f"BASE_DIR in the settings), or set {SETTING}['REDIS'] to a URL like 'redis://localhost:6379/0'"
        )
    return Path(base) / ".delayq"


def cache_client(alias: str) -> Any:
    """Return the redis-py client of a cache of django-redis, or of Django's own Redis cache.

    Raises:
        Misconfigured: see :func:`check_cache`.
    """
    check_cache(alias)
    if issubclass(_backend(alias), RedisCache):
        cache: Any = django_caches[alias]
        return cache._cache.get_client(write=True)
    from django_redis import get_redis_connection

    return get_redis_connection(alias)


def check_cache(alias: str) -> None:
    """Check that there is a cache of this name, and that it is on Redis.

    Raises:
        Misconfigured: one of these is not the case.
    """
    caches = django_settings.CACHES
    if alias not in caches:
        raise Misconfigured(
            f"{SETTING}['REDIS'] is {short(alias)}, which is no alias in CACHES.{suggest(alias, caches)} "
            f"Add it there, or give a URL like 'redis://localhost:6379/0'"
        )
    if issubclass(_backend(alias), RedisCache):
        return
    try:
        from django_redis.cache import RedisCache as DjangoRedisCache
    except ImportError:
        fits = False
    else:
        fits = issubclass(_backend(alias), DjangoRedisCache)
    if not fits:
        raise Misconfigured(
            f"{SETTING}['REDIS'] names the cache {short(alias)}, whose backend {caches[alias].get('BACKEND')} is not "
            f"on Redis, or not installed. Use 'django.core.cache.backends.redis.RedisCache' or "
            f"'django_redis.cache.RedisCache' there, or give a URL like 'redis://localhost:6379/0'"
        )


def _backend(alias: str) -> type[Any]:
    """Return the class of a cache; ``object`` if it cannot be imported."""
    try:
        backend = import_string(str(django_settings.CACHES[alias].get("BACKEND")))
    except (ImportError, AttributeError, TypeError):
        return object
    return backend if isinstance(backend, type) else object


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


def refuse_in_tests() -> None:
    """Refuse the Redis of the settings to a test that did not ask for it.

    Raises:
        Misconfigured: this is a test run.
    """
    if is_test_run() and not _permitted and not conf().real_in_tests:
        raise Misconfigured(
            "this test would use the Redis of the settings. Let the test class inherit from "
            "django_delayq.testing.DelayQTestCase, or use `with fake_queue():` or pytest with its plugin; tests that "
            f"need a real Redis set {SETTING}['REAL_IN_TESTS'] = True, or delayq = real in pytest's ini file"
        )
