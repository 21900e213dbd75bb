"""Check that a Redis server is fit for a queue, with a plain sentence about any obstacle."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import redis
from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection
from redis.retry import Retry

from ..errors import Misconfigured, QueueUnavailable
from .faults import REDIS_ERRORS, Fault, classify, without_permission

_SETTING: Final = "DELAYQ['REDIS']"
OLDEST_SERVER: Final = (6, 2)
_PATIENCE: Final = 2.0  # seconds for each step of a second try
#: expressions that find an obstacle in the names of an error's classes and its text -> what to do; the first one counts
_OBSTACLES: Final[dict[type[Misconfigured | QueueUnavailable], dict[str, str]]] = {
    Misconfigured: {
        "without any password configured|no password is set": (
            "{where} has no password, but one is given; take it out of DELAYQ['REDIS']"
        ),
        "NOAUTH|Authentication required|HELLO must be called": (
            "{where} wants a password; put it into the URL: 'redis://user:password@host:6379/0'"
        ),
        "AuthenticationError|username-password": (
            "{where} refuses the user or the password; correct it in DELAYQ['REDIS']"
        ),
        "NoPermissionError": without_permission("{text}"),
        "DB index is out of range": (
            "{where} does not have that database number; use a smaller one, or set PREFIX instead"
        ),
        "Cluster mode is not enabled|cluster support disabled": (
            "{where} is no Redis Cluster; give its URL instead of CLUSTER"
        ),
        "CERTIFICATE_VERIFY_FAILED|certificate verify failed": (
            "the certificate of {where} is not trusted here ({text}); give its authority as SSL_CA_CERTS"
        ),
        "DENIED": "{where} is in protected mode and refuses other machines; set a password or bind it to this network",
        "InvalidResponse": "the program at {where} is no Redis server; correct the host or port in DELAYQ['REDIS']",
        "Permission denied": "this user may not open the socket {where}; join its group, or change unixsocketperm",
    },
    QueueUnavailable: {
        "BusyLoadingError": "Redis at {where} is loading its data; it will serve when that is done",
        "refused|No such file": "nothing listens at {where}; start Redis, or correct the address in DELAYQ['REDIS']",
        "Name or service not known|name resolution|nodename nor servname": (
            "the host name of {where} cannot be resolved; correct it in DELAYQ['REDIS'], or check DNS"
        ),
    },
}


def check(make_pool: Callable[[], ConnectionPool], where: str, *, cluster: bool) -> dict[str, Any]:
    """Return ``INFO`` of the server (on a cluster: of one node), if it is fit for a queue.

    Args:
        make_pool: makes a pool of connections to it; on a cluster this connects already.
        where: the address for messages, without secrets.
        cluster: True if a cluster is expected.

    Raises:
        Misconfigured, QueueUnavailable: see ``Connection.check``.
    """
    pool: ConnectionPool | None = None
    try:
        pool = make_pool()
        client = redis.Redis(connection_pool=pool)
        client.ping()
        info: dict[str, Any] = client.info()
    except REDIS_ERRORS as error:
        raise _explain(error, pool, where) from error
    finally:
        if pool is not None:
            pool.disconnect()
    _check_kind(info, where, cluster)
    check_version(version_of(info), where)
    return info


def _check_kind(info: dict[str, Any], where: str, cluster: bool) -> None:
    mode = info.get("redis_mode")
    if mode == "sentinel":
        raise Misconfigured(
            f"{where} is a Sentinel, not a Redis server; set {_SETTING} = "
            f"{{'SENTINELS': [['host', 26379], …], 'MASTER': 'mymaster'}}"
        )
    if mode == "cluster" and not cluster:
        raise Misconfigured(
            f"{where} is a node of a Redis Cluster; set {_SETTING} = {{'CLUSTER': [['host', 6379], …]}}"
        )
    if not cluster and info.get("role") == "slave" and info.get("slave_read_only", 1):
        raise QueueUnavailable(
            f"{where} is a read-only replica: a failover is under way, or {_SETTING} names the replica instead of the "
            f"master"
        )


def check_version(version: tuple[int, ...], where: str) -> None:
    """Refuse a server that is too old.

    Raises:
        Misconfigured: it is older than :data:`OLDEST_SERVER`.
    """
    if version < OLDEST_SERVER:
        release, minimum = (".".join(map(str, one)) for one in (version, OLDEST_SERVER))
        raise Misconfigured(f"{where} is Redis {release}; django_delayq needs {minimum} or newer (or Valkey); upgrade")


def _explain(error: BaseException, pool: ConnectionPool | None, where: str) -> Misconfigured | QueueUnavailable:
    text = str(error)
    kinds = " ".join(one.__name__ for one in type(error).__mro__)
    for kind, messages in _OBSTACLES.items():
        for pattern, message in messages.items():
            if re.search(pattern, f"{kinds}: {text}"):
                return kind(message.format(where=where, text=text))
    if pool is not None and _speaks_otherwise(pool):
        if issubclass(pool.connection_class, SSLConnection):
            return Misconfigured(f"{where} does not speak TLS; write redis:// instead of rediss://")
        return Misconfigured(f"{where} speaks TLS; write rediss:// instead of redis://")
    if isinstance(error, redis_errors.TimeoutError):
        return QueueUnavailable(f"Redis at {where} does not answer in time; check for a firewall between, and its load")
    if classify(error) is Fault.CONFIG:
        return Misconfigured(f"Redis at {where} refuses this client: {text}")
    return QueueUnavailable(f"Redis at {where} cannot be used now ({type(error).__name__}: {text})")


def _speaks_otherwise(pool: ConnectionPool) -> bool:
    """Return True if the server of a pool answers with TLS in place of plain text, or the other way round.

    No secret is sent, so nothing is verified. A refused handshake is an answer, too.
    """
    address = {name: pool.connection_kwargs[name] for name in ("host", "port") if name in pool.connection_kwargs}
    if not address:  # of a Sentinel's master, or a unix socket
        return False
    client = redis.Redis(
        **address,
        ssl=not issubclass(pool.connection_class, SSLConnection),
        ssl_cert_reqs="none",
        ssl_check_hostname=False,
        socket_timeout=_PATIENCE,
        socket_connect_timeout=_PATIENCE,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    try:
        return bool(client.ping())
    except (redis_errors.ResponseError, redis_errors.AuthenticationError):
        return True
    except REDIS_ERRORS as error:
        return "ALERT" in str(error).upper()
    finally:
        client.close()


# --- replies of INFO


def by_server(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the reply of each server; the client of a cluster returns those of several nodes by name."""
    return [info] if "redis_version" in info else list(info.values())


def version_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ``(major, minor, patch)`` that a server reports as compatible (Valkey reports 7.2.4)."""
    return tuple(map(int, re.findall(r"\d+", str(info["redis_version"]))[:3]))


def server_version(info: Callable[..., Any]) -> tuple[int, ...]:
    """Return the version of the server, of a cluster's oldest one.

    Args:
        info: the client's method ``info``.
    """
    return min(map(version_of, by_server(info("server"))))
