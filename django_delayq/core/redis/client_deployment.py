"""Deployments that existing redis-py clients are connected to."""

from __future__ import annotations

from typing import Any, Final

import redis
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool, SSLConnection
from redis.sentinel import SentinelConnectionPool

from ..errors import Misconfigured
from .config import RedisConfig, logger
from .deployments import Cluster, Deployment, Sentinels, Server
from .settings import common_settings, limits_of, sentinel_settings

# Options that identify the server; everything else of a foreign client is replaced by our settings.
_ADOPTED: Final = ("host", "port", "path", "db", "username", "password", "credential_provider")


def deployment_of_client(client: Any) -> Deployment:
    """Return the deployment of a redis-py client (django-redis's, for instance), with our settings.

    Raises:
        Misconfigured: it is not a synchronous redis-py client, or connects to replicas.
    """
    if isinstance(client, RedisCluster):
        return _cluster_of_client(client)
    pool = getattr(client, "connection_pool", None)
    if not isinstance(client, redis.Redis) or not isinstance(pool, ConnectionPool):
        raise Misconfigured(
            f"{type(client).__module__}.{type(client).__qualname__} is no synchronous redis-py client; "
            "use a URL, or a django-redis cache with the default client class"
        )
    settings = pool.connection_kwargs
    options, config = _adopt(settings, tcp="path" not in settings)
    if isinstance(pool, SentinelConnectionPool):
        return _sentinels_of_pool(pool, options, config)
    options["connection_class"] = pool.connection_class
    where = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
    scheme = "unix" if "path" in settings else "rediss" if issubclass(pool.connection_class, SSLConnection) else "redis"
    return Server(
        options,
        limits_of(config),
        f"{scheme}://{_user_of(settings)}{where}?db={settings.get('db') or 0}",
    )


def _adopt(settings: dict[str, Any], *, tcp: bool = True) -> tuple[dict[str, Any], RedisConfig]:
    """Return the options that identify the server, with our settings, and the configuration that these come from."""
    if settings.get("decode_responses"):
        logger.warning(
            "the given Redis client decodes responses; django_delayq needs bytes, so it makes connections of its own"
        )
    config = RedisConfig()
    options = {name: value for name, value in settings.items() if name in _ADOPTED or name.startswith("ssl")}
    return {**options, **common_settings(config, tcp=tcp)}, config


def _sentinels_of_pool(pool: SentinelConnectionPool, options: dict[str, Any], config: RedisConfig) -> Sentinels:
    if not pool.is_master:
        raise Misconfigured("the Redis client connects to replicas; a queue needs the master: set is_master=True")
    settings = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    addresses = [(str(kwargs["host"]), int(kwargs["port"])) for kwargs in settings]
    own = {**pool.sentinel_manager.sentinel_kwargs, **sentinel_settings(config)}
    options["connection_class"] = pool.connection_class
    for name in ("host", "port"):
        options.pop(name, None)
    where = ",".join(f"{host}:{port}" for host, port in addresses)
    display_url = f"sentinel://{_user_of(options)}{where}/{pool.service_name}"
    return Sentinels(options, limits_of(config), display_url, pool.service_name, addresses, own)


def _cluster_of_client(client: RedisCluster) -> Cluster:
    options, config = _adopt(client.nodes_manager.connection_kwargs)
    for name in ("host", "port", "db"):
        options.pop(name, None)
    nodes = tuple((str(node.host), int(node.port)) for node in client.get_nodes())
    display_url = f"cluster://{_user_of(options)}{','.join(f'{host}:{port}' for host, port in nodes)}"
    return Cluster(options, limits_of(config), display_url, nodes)


def _user_of(options: dict[str, Any]) -> str:
    return "***@" if options.get("username") or options.get("password") or options.get("credential_provider") else ""
