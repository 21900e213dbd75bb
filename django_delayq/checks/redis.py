"""System checks of the address of Redis."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning

from ..core.errors import Misconfigured
from ..core.redis.config import RedisConfig
from ..settings.conf import SETTING, Conf

_LOCAL = ("", "localhost", "127.0.0.1", "::1")


def check_redis(config: Conf) -> Iterator[CheckMessage]:
    """Check the setting ``REDIS``: a URL, a dict, the alias of a cache, or None for the embedded Redis."""
    redis = config.redis
    if config.is_embedded:
        yield from _check_embedded(config)
    elif isinstance(redis, str) and "://" not in redis:
        yield from _check_alias(redis)
    else:
        try:
            RedisConfig.parse(redis)
        except Misconfigured as error:
            yield Error(
                f"{SETTING}['REDIS']: {error}",
                hint="Give a URL like 'redis://localhost:6379/0', or a dict with SENTINELS or CLUSTER.",
                id="delayq.E002",
            )


def _check_embedded(config: Conf) -> Iterator[CheckMessage]:
    from ..connections import check_embedded, may_use_redis

    if not may_use_redis():
        return  # `manage.py test` needs no server
    try:
        check_embedded(config)
        from ..embedded import find_binary

        find_binary()
    except ImportError:
        yield Error(
            "No Redis is configured, and the embedded one does not run on this system.",
            hint=f"Set {SETTING}['REDIS'] to a URL or to the alias of a Redis cache.",
            id="delayq.E003",
        )
    except Misconfigured as error:
        yield Error(
            str(error),
            hint=f"{SETTING}['REDIS'] takes a URL, or the alias of a Redis cache.",
            id="delayq.E003",
        )


def _check_alias(alias: str) -> Iterator[CheckMessage]:
    from ..connections import check_cache

    try:
        check_cache(alias)
    except Misconfigured as error:
        yield Error(str(error), hint="Name a cache on Redis, or the URL of its server.", id="delayq.E004")


def check_password(config: Conf) -> Iterator[CheckMessage]:
    """Check that a password crosses the network only by TLS."""
    if config.is_embedded or (isinstance(config.redis, str) and "://" not in config.redis):
        return
    try:
        redis = RedisConfig.parse(config.redis)
    except Misconfigured:
        return  # reported as delayq.E002
    hosts = [host for host, _ in redis.sentinels or redis.cluster_nodes or ((redis.host, redis.port),)]
    remote = [] if redis.path else [host for host in hosts if host not in _LOCAL]
    if remote and not redis.ssl and (redis.password or redis.sentinel_password):
        yield Warning(
            f"The password of Redis at {remote[0]} crosses the network unencrypted.",
            hint="Use TLS: a rediss:// URL, or SSL: True in the dict.",
            id="delayq.W102",
        )
