"""Address of Redis for Spark's workers, which have no settings and no Django."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from redis.cluster import RedisCluster
from redis.connection import SSLConnection
from redis.sentinel import SentinelConnectionPool

from ... import connections
from ...core.errors import Misconfigured
from ...pipeline.options import config_of
from ...settings.conf import SETTING, Conf

#: environment variable that passes the address to Spark's workers
ENV: Final = "DELAYQ_PIPELINE_REDIS"
_SSL: Final = (
    "ca_certs",
    "ca_path",
    "ca_data",
    "certfile",
    "keyfile",
    "password",
    "cert_reqs",
    "check_hostname",
    "ciphers",
    "min_version",
)


def redis_address(settings: Conf) -> str:
    """Return the value of ``DELAYQ["REDIS"]`` as text for the option ``redis`` of the formats.

    The embedded Redis is started if the settings use it.

    Raises:
        Misconfigured: the settings name no usable Redis, or one that cannot be passed to another process.
    """
    redis = settings.redis
    if isinstance(redis, Mapping):
        return json.dumps(dict(redis), default=str)
    if isinstance(redis, str) and "://" in redis:
        return redis
    connection = connections.make_connection(settings)
    try:
        return json.dumps(address_of_client(connection.client))
    finally:
        connection.close()


def check_reach(text: str, master: str) -> None:
    """Check that executors on other machines can reach Redis.

    Raises:
        Misconfigured: Redis listens only on a socket of this machine.
    """
    if master.startswith("local"):
        return
    config = config_of({"redis": text})
    if config.path:
        raise Misconfigured(
            f"the executors of {master} cannot reach Redis at {config.display_url}, a socket of this machine: set "
            f"{SETTING}['REDIS'] to a URL that every machine can use, like 'redis://redis.example.com:6379/0'"
        )


def address_of_client(client: Any) -> dict[str, Any]:
    """Return a value for ``DELAYQ["REDIS"]`` that connects to the same Redis as a redis-py client.

    Raises:
        Misconfigured: its password comes from a credential provider, which exists in this process only.
    """
    if isinstance(client, RedisCluster):
        nodes = [[str(node.host), int(node.port)] for node in client.get_nodes()]
        return {"cluster": nodes, **_access(client.nodes_manager.connection_kwargs, tls=None)}
    pool = client.connection_pool
    arguments = pool.connection_kwargs
    if isinstance(pool, SentinelConnectionPool):
        manager: Any = pool.sentinel_manager
        sentinels = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
        address = {
            "sentinels": [[str(sentinel["host"]), int(sentinel["port"])] for sentinel in sentinels],
            "master": pool.service_name,
            "sentinel_username": manager.sentinel_kwargs.get("username"),
            "sentinel_password": manager.sentinel_kwargs.get("password"),
            "db": arguments.get("db") or 0,
            **_access(arguments, tls=None),
        }
    elif "path" in arguments:
        address = {"path": arguments["path"], "db": arguments.get("db") or 0, **_access(arguments, tls=False)}
    else:
        tls = issubclass(pool.connection_class, SSLConnection)
        address = {
            "host": arguments.get("host", "localhost"),
            "port": int(arguments.get("port", 6379)),
            "db": arguments.get("db") or 0,
            **_access(arguments, tls=tls),
        }
    return {name: value for name, value in address.items() if value is not None}


def _access(arguments: Mapping[str, Any], *, tls: bool | None) -> dict[str, Any]:
    """Return user, password and TLS from connection arguments; ``tls`` None = take TLS from the arguments."""
    if arguments.get("credential_provider") is not None:
        raise Misconfigured(
            f"the cache that {SETTING}['REDIS'] names gets its password from a credential_provider, which Spark's "
            f"workers do not have: give {SETTING}['REDIS'] as a URL or a dict with a password"
        )
    tls = bool(arguments.get("ssl")) if tls is None else tls
    access = {name: arguments[name] for name in ("username", "password") if arguments.get(name) is not None}
    if tls:
        access["ssl"] = True
        access.update(
            {f"ssl_{name}": arguments[f"ssl_{name}"] for name in _SSL if arguments.get(f"ssl_{name}") is not None}
        )
    return access
