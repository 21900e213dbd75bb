"""The way to Redis for what runs on Spark: from the options of a data source to a broker, without Django.

Every task opens a door of its own and closes it, because a process of an executor may be used again by anybody.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ..core.broker import Broker
from ..core.errors import Misconfigured
from ..core.redis.config import RedisConfig
from ..core.redis.connection import connect
from ..core.task import suggest

#: what every data source takes
OPTIONS: Final = ("redis", "redisEnv", "prefix")
DEFAULT_PREFIX: Final = "delayq"
_EXAMPLE: Final = ".option('redis', 'redis://localhost:6379/0')"


def check_names(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuses options that nobody reads.

    Args:
        options: as Spark hands them over; their names are compared without regard to case.
        known: the names beside :data:`OPTIONS`.

    Raises:
        Misconfigured: there is another one; the text says which was probably meant.
    """
    names = {name.lower(): name for name in (*OPTIONS, *known)}
    for given in options:
        if given.lower() not in names:
            meant = suggest(given.lower(), names)
            for lower, name in names.items():
                meant = meant.replace(repr(lower), repr(name))
            raise Misconfigured(f"{given[:60]!r} is no option here.{meant} Known are: {', '.join(names.values())}")


def config_of(options: Mapping[str, str]) -> RedisConfig:
    """Where Redis is, from the option ``redis`` or the environment variable that ``redisEnv`` names.

    Either holds a URL, or the JSON of what :meth:`RedisConfig.parse` takes.

    Raises:
        Misconfigured: none of the two is given, or it is not usable. No text repeats what may hold a password.
    """
    given, variable = options.get("redis"), options.get("redisEnv")
    if given and variable:
        raise Misconfigured("the options redis and redisEnv are different ways to say where Redis is; keep one of them")
    if variable:
        given = os.environ.get(variable)
        if not given:
            raise Misconfigured(
                f"option redisEnv names the environment variable {variable[:80]!r}, which is not set in this process; "
                "set it on the driver and on every executor (spark.executorEnv.…)"
            )
    if not given:
        raise Misconfigured(
            f"where is Redis? Give the option redis, like {_EXAMPLE}, or redisEnv, the name of an "
            "environment variable that holds it"
        )
    return RedisConfig.parse(_value_of(given.strip()))


def _value_of(given: str) -> object:
    if given[:1] not in ("{", "["):
        return given
    try:
        return json.loads(given)
    except ValueError:
        # Not repeated, and not kept as the cause: it may hold a password.
        raise Misconfigured(
            "the option redis begins like JSON but is none; give a URL, or an object such as "
            '{"URL": "redis://localhost:6379/0"}'
        ) from None


@contextmanager
def open_broker(options: Mapping[str, str]) -> Iterator[Broker]:
    """A broker on the Redis of the options, for one task; its connections are closed in the end.

    Raises:
        Misconfigured: see :func:`config_of`.
    """
    connection = connect(config_of(options))
    try:
        yield Broker(connection, prefix=options.get("prefix") or DEFAULT_PREFIX)
    finally:
        connection.close()
