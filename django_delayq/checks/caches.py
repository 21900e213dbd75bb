"""System check for caches in the Redis database of the jobs, where ``cache.clear()`` would delete all jobs.

``clear()`` of django-redis and of Django's own RedisCache is FLUSHDB, regardless of the ``KEY_PREFIX``. Addresses are
compared as written, without a call to a server.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from django.conf import settings
from django.core.checks import CheckMessage, Error
from redis.connection import parse_url

from ..core.errors import Misconfigured
from ..core.redis.config import Address, RedisConfig
from ..settings.conf import SETTING, Conf

#: address of a server and number of a database
Place: TypeAlias = tuple[str, int]

_SCHEMES: Final = ("redis://", "rediss://", "unix://", "valkey://", "valkeys://")
_VALKEY: Final = re.compile(r"\Avalkey")


def check_caches(config: Conf) -> Iterator[CheckMessage]:
    """Find the caches whose ``clear()`` would delete the jobs.

    The alias in ``REDIS`` is dedicated to the jobs, so it is not reported unless it is the default cache.
    """
    jobs = set(_databases_of_jobs(config))
    for alias, cache in settings.CACHES.items():
        shared = sorted(jobs.intersection(_databases_of_cache(cache)))
        if shared and (alias != config.redis or alias == "default"):
            where, number = shared[0]
            yield Error(
                f"The cache {alias!r} is in the Redis database of the jobs ({where}, database {number}): "
                f"cache.clear() would delete all jobs, whatever its KEY_PREFIX is.",
                hint=f"Give the jobs another database number, for example {SETTING} = {{'REDIS': "
                f"'redis://localhost:6379/1'}}; a Redis Cluster has only one database, so take another server there.",
                id="delayq.E017",
            )


def _databases_of_jobs(config: Conf) -> Iterator[Place]:
    redis = config.redis
    if config.is_embedded:
        from ..connections import embedded_directory

        with contextlib.suppress(Misconfigured):  # reported as delayq.E003
            yield _socket(str(embedded_directory(config) / "redis.sock"), 0)
    elif isinstance(redis, str) and "://" not in redis:
        yield from _databases_of_cache(settings.CACHES.get(redis, {}))
    else:
        with contextlib.suppress(Misconfigured):  # reported as delayq.E002
            yield from _databases_of_config(RedisConfig.parse(redis))


def _databases_of_config(redis: RedisConfig) -> Iterator[Place]:
    if redis.path:
        yield _socket(redis.path, redis.db)
    elif redis.sentinels:
        yield from _database_of_master(redis.sentinel_master, redis.sentinels, redis.db)
    else:
        for address in redis.cluster_nodes or ((redis.host, redis.port),):
            yield _normal_address(address), redis.db


def _databases_of_cache(cache: Mapping[str, Any]) -> Iterator[Place]:
    given, options = cache.get("LOCATION") or (), cache.get("OPTIONS") or {}
    for location in re.split("[;,]", given) if isinstance(given, str) else given:
        url = str(location).strip()
        if not url.startswith(_SCHEMES):
            continue
        try:
            parts: Mapping[str, Any] = parse_url(_VALKEY.sub("redis", url))
        except ValueError:
            continue  # the cache itself raises an error for this URL
        number = int(parts.get("db") or _number_in(options))
        host = parts.get("host") or "localhost"
        if parts.get("path"):
            yield _socket(parts["path"], number)
        elif options.get("SENTINELS"):
            yield from _database_of_master(host, options["SENTINELS"], number)
        else:
            yield _normal_address((host, int(parts.get("port") or 6379))), number


def _number_in(options: Mapping[str, Any]) -> int:
    """Return the database number in the options of a cache, which applies if the URL has none."""
    pool = options.get("CONNECTION_POOL_KWARGS") or {}
    with contextlib.suppress(TypeError, ValueError):
        return int(options.get("db") or pool.get("db") or 0)
    return 0


def _database_of_master(master: str, sentinels: Any, number: int) -> Iterator[Place]:
    for host, port in sentinels:
        yield f"{master} of the sentinel {_normal_address((host, int(port)))}", number


def _socket(path: str, number: int) -> Place:
    return f"unix:{os.path.realpath(path)}", number


def _normal_address(address: Address) -> str:
    host, port = address
    name = host.strip("[]").rstrip(".").lower()
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(name)
        if ip.is_loopback or ip.is_unspecified:
            name = "localhost"
    return f"{name or 'localhost'}:{port}"
