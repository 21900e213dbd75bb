"""Configuration of the Redis deployment: a URL or a dict, parsed and checked before anything connects.

This module never prints a password, and no message repeats a URL as it was given, because it may contain one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import Misconfigured
from ..inputs import suggest
from ..job import RESEND_LIMIT
from .config_values import ALIASES, CHECKS, Address

logger = logging.getLogger("django_delayq.core.redis_config")

#: longest pause between two attempts of a command, seconds
LONGEST_PAUSE: Final = 0.5
EXAMPLE: Final = "'redis://localhost:6379/0'"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """Deployment of Redis: a server (``host`` and ``port``, or ``path``), Sentinels, or a Cluster.

    Times are in seconds. Create one with :meth:`parse`.
    """

    host: str = "localhost"
    port: int = 6379
    path: str = ""  # of a unix socket
    sentinels: tuple[Address, ...] = ()
    sentinel_master: str = ""
    cluster_nodes: tuple[Address, ...] = ()
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    ssl: bool = False
    ssl_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    socket_timeout: float = 5.0
    connect_timeout: float = 2.0
    retries: int = 3
    max_connections: int = 100
    #: connections are replaced at this age; None = never
    max_connection_age: float | None = None
    #: number of replicas that must have a confirmed write
    wait_replicas: int = 0
    #: the disk must have a confirmed write
    wait_aof: bool = False
    #: longest wait for a confirmation, in seconds
    wait_timeout: float = 3.0
    #: jobs are confirmed unless they say otherwise
    wait_default: bool = True

    @classmethod
    def parse(cls, value: object) -> RedisConfig:
        """Return the configuration in ``value``.

        Args:
            value: a URL (``redis://``, ``rediss://`` for TLS, ``unix://``), or a dict with ``URL``, or with
                ``SENTINELS`` and ``MASTER``, or with ``CLUSTER``, and optionally ``DB``, ``USERNAME``, ``PASSWORD``,
                ``SSL…``, ``SOCKET_TIMEOUT``, ``CONNECT_TIMEOUT``, ``RETRIES``, ``MAX_CONNECTIONS``,
                ``MAX_CONNECTION_AGE``, ``WAIT_REPLICAS``, ``WAIT_AOF``, ``WAIT_TIMEOUT``, ``WAIT_DEFAULT``.

        Raises:
            Misconfigured: it is not usable; the message names a valid form.
        """
        if isinstance(value, RedisConfig):
            return value
        if isinstance(value, str):
            return _check_patience(cls(**_check_options(_parse_url(value))))
        if isinstance(value, Mapping):
            return _check_patience(cls(**_check_options(_parse_mapping(value))))
        raise Misconfigured(f"Redis is given as a URL like {EXAMPLE} or as a dict, not as {type(value).__name__}")

    @property
    def patience(self) -> float:
        """Longest time that one command may take, with every retry and the pauses between them."""
        return (self.retries + 1) * self.socket_timeout + self.retries * LONGEST_PAUSE

    @property
    def display_url(self) -> str:
        """Address without any secret, for logs and messages."""
        who = "***@" if self.username or self.password else ""
        database = f"/{self.db}" if self.db else ""
        if self.path:
            return f"unix://{who}{self.path}{f'?db={self.db}' if self.db else ''}"
        if self.sentinels:
            return f"sentinel://{who}{_join(self.sentinels)}/{self.sentinel_master}{database}"
        if self.cluster_nodes:
            return f"cluster://{who}{_join(self.cluster_nodes)}"
        return f"{'rediss' if self.ssl else 'redis'}://{who}{_join([(self.host, self.port)])}{database}"


def _join(addresses: Iterable[Address]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


# --- reading


def _parse_url(url: str) -> dict[str, Any]:
    scheme, separator, _ = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator:
        raise Misconfigured(f"the Redis URL has no scheme; write it like {EXAMPLE}, or 'unix:///run/redis.sock'")
    if scheme not in ("redis", "rediss", "unix"):
        hint = "; give Sentinel and Cluster as a dict" if "sentinel" in scheme or "cluster" in scheme else ""
        raise Misconfigured(f"{scheme[:30]}:// is no Redis URL; use redis://, rediss:// (TLS) or unix://{hint}")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.fragment:
        # The broken part is most often the tail of a password, so it is not repeated.
        raise Misconfigured(
            "the Redis URL cannot be read: the port is no number, or a password holds one of / ? # [ ] unescaped; "
            "percent-encode it with urllib.parse.quote(password, safe='')"
        )
    values = _parse_query(parts.query)
    if parts.username:
        values["username"] = unquote(parts.username)
    if parts.password:
        values["password"] = unquote(parts.password)
    if scheme == "unix":
        values["path"] = unquote(parts.path)
        if parts.hostname or not values["path"].strip("/"):
            raise Misconfigured("a unix:// URL needs the absolute path of the socket: 'unix:///run/redis/redis.sock'")
        return values
    values["host"] = unquote(parts.hostname or "localhost")
    values["port"] = port if port is not None else 6379
    values["ssl"] = scheme == "rediss"
    database = unquote(parts.path).strip("/")
    if database:
        values.setdefault("db", database)
    return values


#: options of URLs written for other programs, which have a fixed value here
_FIXED: Final = frozenset(
    (
        "protocol",
        "decode_responses",
        "encoding",
        "encoding_errors",
        "retry_on_timeout",
        "socket_keepalive",
        "health_check_interval",
        "client_name",
        "timeout",
    )
)


def _parse_query(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        name = ALIASES.get(name.lower(), name.lower())
        if name in _FIXED:
            logger.warning("the option %s of the Redis URL is ignored: django_delayq sets it itself", name)
        elif name in CHECKS and name not in ("host", "port", "path", "sentinels", "sentinel_master", "cluster_nodes"):
            values[name] = value
        else:
            option = repr(name) if re.fullmatch(r"[a-z_]{1,40}", name) else "after the '?'"
            raise Misconfigured(f"the Redis URL has an unknown option {option}.{suggest(name, CHECKS)}")
    return values


def _parse_mapping(options: Mapping[Any, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in options.items():
        name = str(key).lower()
        name = ALIASES.get(name, name)
        if name != "url" and name not in CHECKS:
            names = [option.upper() for option in ("url", "cluster", "master", *CHECKS)]
            raise Misconfigured(f"{str(key)[:40]!r} is no option of Redis.{suggest(str(key).upper(), names)}")
        values[name] = value
    url = values.pop("url", None)
    present = {"URL": url is not None, "SENTINELS": "sentinels" in values, "CLUSTER": "cluster_nodes" in values}
    ways = [name for name, is_given in present.items() if is_given]
    if len(ways) > 1:
        raise Misconfigured(f"{' and '.join(ways)} are different ways to name one Redis; keep one of them")
    if url is not None:
        if not isinstance(url, str):
            raise Misconfigured(f"URL must be a text like {EXAMPLE}, not {type(url).__name__}")
        return {**_parse_url(url), **{name: value for name, value in values.items() if value is not None}}
    if not ways and not values.keys() & {"host", "path"}:
        raise Misconfigured(
            f"no address of Redis is given; give URL (like {EXAMPLE}), SENTINELS with MASTER, or CLUSTER"
        )
    return values


# --- checking


def _check_options(values: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    ssl_options: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        target = ssl_options if name.startswith("ssl_") else config
        target[name] = CHECKS[name](name, value)
    if ssl_options and not config.setdefault("ssl", "path" not in config):
        raise Misconfigured("SSL options need TLS: use a rediss:// URL or SSL: True")
    if config.get("ssl"):
        # redis-py's own default differs between its versions.
        ssl_options.setdefault("ssl_cert_reqs", "required")
        ssl_options.setdefault("ssl_check_hostname", ssl_options["ssl_cert_reqs"] != "none")
        config["ssl_options"] = ssl_options
    if bool(config.get("sentinels")) != bool(config.get("sentinel_master")):
        raise Misconfigured("SENTINELS (a list of addresses) and MASTER (its name) belong together; give both")
    if config.get("cluster_nodes") and config.get("db"):
        raise Misconfigured("a Redis Cluster has only database 0; leave DB out and use PREFIX to tell projects apart")
    return config


def _check_patience(config: RedisConfig) -> RedisConfig:
    """Return ``config`` if all retries of a command end while Redis still remembers its request id."""
    if config.patience > RESEND_LIMIT:
        raise Misconfigured(
            f"SOCKET_TIMEOUT and RETRIES let one command take {config.patience:.0f} s; at most {RESEND_LIMIT:.0f} are "
            f"safe, because Redis remembers a request for two minutes: shorten them"
        )
    return config
