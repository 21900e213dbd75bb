"""Access to Redis for code that runs on Spark: from the options of a data source to a broker, without Django.

Every task opens and closes a connection of its own, because the executor's process may be reused for other work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ..core.broker import Broker
from ..core.errors import Misconfigured
from ..core.redis.config import RedisConfig
from ..core.redis.connection import connect

#: options that every data source accepts
OPTIONS: Final = ("redis", "redisEnv", "prefix")
DEFAULT_PREFIX: Final = "delayq"
_EXAMPLE: Final = ".option('redis', 'redis://localhost:6379/0')"


def address_of(redis: str | None, redis_env: str | None, prefix: str) -> dict[str, str]:
    """Return the options that address Redis: a URL or JSON, or the environment variable that holds it."""
    options = {"redis": redis, "redisEnv": redis_env, "prefix": prefix}
    return {name: value for name, value in options.items() if value}


def config_of(options: Mapping[str, str]) -> RedisConfig:
    """Return the Redis configuration from the option ``redis`` or the environment variable that ``redisEnv`` names.

    Either holds a URL, or the JSON of what :meth:`RedisConfig.parse` takes.

    Raises:
        Misconfigured: neither is given, or the value is invalid. No message repeats a value that may hold a password.
    """
    given, variable = options.get("redis"), options.get("redisEnv")
    if given and variable:
        raise Misconfigured("the options redis and redisEnv both name the Redis; keep one of them")
    if variable:
        given = os.environ.get(variable)
        if not given:
            raise Misconfigured(
                f"option redisEnv names the environment variable {variable[:80]!r}, which is not set in this process; "
                "set it on the driver and on every executor (spark.executorEnv.…)"
            )
    if not given:
        raise Misconfigured(
            f"which Redis? Give the option redis, like {_EXAMPLE}, or redisEnv, the name of an "
            "environment variable that holds it"
        )
    return RedisConfig.parse(_value_of(given.strip()))


def _value_of(given: str) -> object:
    if given[:1] not in ("{", "["):
        return given
    try:
        return json.loads(given)
    except ValueError:
        # The value is neither repeated nor kept as the cause, because it may hold a password.
        raise Misconfigured(
            "the option redis begins like JSON but cannot be parsed; give a URL, or an object such as "
            '{"URL": "redis://localhost:6379/0"}'
        ) from None


@contextmanager
def open_broker(options: Mapping[str, str]) -> Iterator[Broker]:
    """Yield a broker for the Redis of the options, for one task; its connections are closed at the end.

    Raises:
        Misconfigured: see :func:`config_of`.
    """
    connection = connect(config_of(options))
    try:
        yield Broker(connection, prefix=options.get("prefix") or DEFAULT_PREFIX)
    finally:
        connection.close()
