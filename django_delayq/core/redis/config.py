"""Configuration of the Redis deployment: a URL or a dict, parsed and checked before anything connects.

This module never prints a password, and no message repeats a URL as it was given, because it may contain one.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from inspect import signature
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import Redis

from ..errors import Misconfigured
from ..inputs import suggest
from ..job import RESEND_LIMIT
from .probe import version_of

logger: Final = logging.getLogger("django_delayq.core.redis_config")

Address: TypeAlias = tuple[str, int]
#: check of an option's value, which gets the name of the setting, too; it returns the value or raises Misconfigured
Check: TypeAlias = Callable[[str, Any], Any]

#: longest pause between two attempts of a command, seconds
LONGEST_PAUSE: Final = 0.5
#: first version with WAITAOF
_AOF_SINCE: Final = (7, 2)
EXAMPLE: Final = "'redis://localhost:6379/0'"


# --- checks


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise Misconfigured(f"{name} must be a text, not {type(value).__name__}")


def _flag(name: str, value: object) -> bool:
    flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    flag = flags.get(str(value).lower())
    if flag is None:
        raise Misconfigured(f"{name} must be True or False, not {value!r:.40}")
    return flag


def _number(kind: type[float], least: float, most: float, what: str, name: str, value: Any) -> float:
    number = math.nan
    if type(value) in (kind, int, str):
        with suppress(ValueError):
            number = kind(value)
    if least <= number <= most:
        return number
    # In a URL the number may be part of a password that was not escaped.
    actual = "" if isinstance(value, str) else f", not {value!r:.20}"
    raise Misconfigured(f"{name} must be {what}{actual}")


def _whole_number(least: int, most: int) -> Check:
    return partial(_number, int, least, most, f"a whole number from {least} to {most}")


def _seconds(most: int) -> Check:
    return partial(_number, float, 1e-9, most, f"a number of seconds above 0, at most {most}")


def _verification(name: str, value: object) -> object:
    # URLs for other programs use "CERT_NONE".
    text = value.lower().removeprefix("cert_") if isinstance(value, str) else value
    if isinstance(text, str) and text not in ("none", "optional", "required"):
        raise Misconfigured(f"{name} must be 'required', 'optional' or 'none'")
    return text


def _addresses(name: str, value: Any) -> tuple[Address, ...]:
    addresses: list[Address] = []
    with suppress(TypeError, ValueError):
        addresses += map(_address, value.split(",") if isinstance(value, str) else value)
    if addresses:
        return tuple(addresses)
    raise Misconfigured(f"{name} must be a list like [['10.0.0.1', 6379], …] or ['10.0.0.1:6379', …]")


def _address(item: Any) -> Address:
    host, port = item.strip().rpartition(":")[::2] if isinstance(item, str) else item
    if not isinstance(host, str) or not host:
        raise ValueError
    return host.strip("[]"), _PORT("PORT", port)


_PORT: Final = _whole_number(1, 65535)


# --- options


def _option(default: Any, check: Check, *, show: bool = True) -> Any:
    return field(default=default, repr=show, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """Deployment of Redis: a server (``host`` and ``port``, or ``path``), Sentinels, or a Cluster.

    Times are in seconds. Create one with :meth:`parse`.
    """

    host: str = _option("localhost", _text)
    port: int = _option(6379, _PORT)
    path: str = _option("", _text)  # of a unix socket
    sentinels: tuple[Address, ...] = _option((), _addresses)
    sentinel_master: str = _option("", _text)
    cluster_nodes: tuple[Address, ...] = _option((), _addresses)
    db: int = _option(0, _whole_number(0, 65535))
    username: str | None = _option(None, _text)
    password: str | None = _option(None, _text, show=False)
    sentinel_username: str | None = _option(None, _text)
    sentinel_password: str | None = _option(None, _text, show=False)
    ssl: bool = _option(False, _flag)
    #: as redis-py takes them
    ssl_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    socket_timeout: float = _option(5.0, _seconds(3600))
    connect_timeout: float = _option(2.0, _seconds(3600))
    retries: int = _option(3, _whole_number(0, 10))
    max_connections: int = _option(100, _whole_number(1, 10_000))
    #: connections are replaced at this age; None = never
    max_connection_age: float | None = _option(None, _seconds(30 * 86_400))
    #: number of replicas that must have a confirmed write
    wait_replicas: int = _option(0, _whole_number(0, 100))
    #: the disk must have a confirmed write
    wait_aof: bool = _option(False, _flag)
    #: longest wait for a confirmation, in seconds
    wait_timeout: float = _option(3.0, _seconds(10))
    #: jobs are confirmed unless they say otherwise
    wait_default: bool = _option(True, _flag)

    @classmethod
    def parse(cls, value: object) -> RedisConfig:
        """Return the configuration in ``value``.

        Args:
            value: a URL (``redis://``, ``rediss://`` for TLS, ``unix://``), or a dict with ``URL``, or with
                ``SENTINELS`` and ``MASTER``, or with ``CLUSTER``, and other options (docs/reference/settings.md).

        Raises:
            Misconfigured: it is not usable; the message names a valid form.
        """
        if isinstance(value, RedisConfig):
            return value
        if not isinstance(value, (str, Mapping)):
            raise Misconfigured(f"Redis is given as a URL like {EXAMPLE} or as a dict, not as {type(value).__name__}")
        config = cls(**_checked(_of_url(value) if isinstance(value, str) else _of_mapping(value)))
        if config.patience > RESEND_LIMIT:
            raise Misconfigured(
                f"SOCKET_TIMEOUT and RETRIES let one command take {config.patience:.0f} s; at most {RESEND_LIMIT:.0f} "
                "are safe, because Redis remembers a request for two minutes: shorten them"
            )
        return config

    @property
    def patience(self) -> float:
        """Longest time that one command may take, with every retry and the pauses between them."""
        return (self.retries + 1) * self.socket_timeout + self.retries * LONGEST_PAUSE

    @property
    def confirmation(self) -> Confirmation | None:
        """Rule for what confirms a write; None = nothing has to."""
        if not (self.wait_replicas or self.wait_aof):
            return None
        return Confirmation(self.wait_replicas, self.wait_aof, self.wait_timeout, self.wait_default)

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


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Rule for what confirms a write.

    Attributes:
        replicas: number of replicas that have received it; with ``aof``, that have it on disk.
        aof: the server itself has it on disk.
        timeout: longest wait, in seconds.
        by_default: all jobs are confirmed, except those with ``wait_for_confirmation=False``; otherwise only
            those with ``wait_for_confirmation=True``, and durable ones.
    """

    replicas: int
    aof: bool
    timeout: float
    by_default: bool

    @property
    def command(self) -> tuple[object, ...]:
        """Words of the Redis command ``WAIT`` or ``WAITAOF`` for this rule."""
        ms = max(1, round(self.timeout * 1000))  # 0 would wait for ever
        return ("WAITAOF", 1, self.replicas, ms) if self.aof else ("WAIT", self.replicas, ms)

    def missing(self, reply: Any) -> str:
        """Return what a reply to the command lacks; "" = nothing."""
        disks, replicas = reply if self.aof else (1, reply)
        lacks = [] if disks else ["the disk of Redis did not confirm it"]
        if replicas < self.replicas:
            where = " on disk" if self.aof else ""
            lacks.append(f"{replicas} of {self.replicas} replicas confirmed it{where}")
        return " and ".join(lacks)

    def obstacles(self, servers: list[dict[str, Any]]) -> Iterator[str]:
        """Yield why servers with these ``INFO`` cannot confirm writes, and what to do."""
        for info in servers if self.aof else ():
            if version_of(info) < _AOF_SINCE:
                release = info.get("redis_version", "")
                yield f"WAIT_AOF needs Redis 7.2 or newer, this is {release}: upgrade it, or use WAIT_REPLICAS alone"
            elif not info.get("aof_enabled", 1):
                yield "WAIT_AOF needs an append-only file: set `appendonly yes` in Redis, or use WAIT_REPLICAS alone"

    def absences(self, servers: list[dict[str, Any]]) -> Iterator[str]:
        """Yield which masters have fewer replicas now than must confirm."""
        for info in servers:
            connected = info.get("connected_slaves", self.replicas)
            if info.get("role") == "master" and connected < self.replicas:
                yield (
                    f"{connected} replicas are connected and WAIT_REPLICAS is {self.replicas}, so every confirmed call "
                    "ends in NotConfirmed: start the others, or lower it"
                )


def _join(addresses: Iterable[Address]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)


#: options -> checks; those of TLS are passed on to redis-py
CHECKS: Final[dict[str, Check]] = {
    **{one.name: one.metadata["check"] for one in fields(RedisConfig) if one.metadata},
    **{
        f"ssl_{name}": _text
        for name in ("ca_certs", "ca_path", "ca_data", "certfile", "keyfile", "password", "ciphers")
    },
    "ssl_cert_reqs": _verification,
    "ssl_check_hostname": _flag,
    "ssl_min_version": lambda _name, value: value,
}
#: other names of options -> ours
_ALIASES: Final = {
    "cluster": "cluster_nodes",
    "master": "sentinel_master",
    "socket_connect_timeout": "connect_timeout",
    "user": "username",
    "ssl_ca_cert": "ssl_ca_certs",
}
_SETTINGS: Final = {"cluster_nodes": "CLUSTER", "sentinel_master": "MASTER"}
#: options that no query of a URL has
_NAMED_BY_URL: Final = ("host", "port", "path", "sentinels", "sentinel_master", "cluster_nodes")

# --- reading


def _of_url(url: str) -> dict[str, Any]:
    # redis-py's own parser would ignore a database that is no number.
    scheme, separator, _ = url.strip().partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in ("redis", "rediss", "unix"):
        given = f"{scheme[:30]}://" if separator else "a text without a scheme"
        raise Misconfigured(
            f"{given} is no Redis URL; use redis://, rediss:// (TLS) or unix://, for example {EXAMPLE}; give Sentinel "
            "and Cluster as a dict"
        )
    parts, port = None, None
    with suppress(ValueError):
        split = urlsplit(url.strip())
        parts, port = split, split.port
    if parts is None or parts.fragment:
        # The broken part is most often the tail of a password, so it is not repeated.
        raise Misconfigured(
            "the Redis URL cannot be read: the port is no number, or a password holds one of / ? # [ ] unescaped; "
            "percent-encode it with urllib.parse.quote(password, safe='')"
        )
    texts = {"username": parts.username, "password": parts.password}
    if scheme == "unix":
        if parts.hostname or not parts.path.strip("/"):
            raise Misconfigured("a unix:// URL needs the absolute path of the socket: 'unix:///run/redis/redis.sock'")
        texts["path"] = parts.path
    else:
        texts |= {"host": parts.hostname or "localhost", "db": parts.path.strip("/")}
    values: dict[str, Any] = {name: unquote(text) for name, text in texts.items() if text}
    return {**values, **_of_query(parts.query), "port": port, "ssl": scheme == "rediss"}


def _of_query(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        name = _ALIASES.get(name.lower(), name.lower())
        if name in CHECKS and name not in _NAMED_BY_URL:
            values[name] = value
        elif name in signature(Redis).parameters:
            logger.warning("the option %s of the Redis URL is ignored: django_delayq sets it itself", name)
        else:
            option = repr(name) if re.fullmatch(r"[a-z_]{1,40}", name) else "after the '?'"
            raise Misconfigured(f"the Redis URL has an unknown option {option}.{suggest(name, CHECKS)}")
    return values


def _of_mapping(options: Mapping[Any, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in options.items():
        name = _ALIASES.get(str(key).lower(), str(key).lower())
        if name != "url" and name not in CHECKS:
            names = [option.upper() for option in ("url", "cluster", "master", *CHECKS)]
            raise Misconfigured(f"{str(key)[:40]!r} is no option of Redis.{suggest(str(key).upper(), names)}")
        if value is not None:
            values[name] = value
    ways = [name for name in ("url", "sentinels", "cluster_nodes") if name in values]
    if len(ways) > 1:
        named = " and ".join(_SETTINGS.get(name, name.upper()) for name in ways)
        raise Misconfigured(f"{named} are different ways to name one Redis; keep one of them")
    if not ways and not values.keys() & {"host", "path"}:
        raise Misconfigured(
            f"no address of Redis is given; give URL (like {EXAMPLE}), SENTINELS with MASTER, or CLUSTER"
        )
    url = values.pop("url", None)
    return values if url is None else _of_url(_text("URL", url)) | values


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration with these options."""
    checked = {
        name: CHECKS[name](_SETTINGS.get(name, name.upper()), value)
        for name, value in values.items()
        if value is not None
    }
    config = {name: value for name, value in checked.items() if not name.startswith("ssl_")}
    ssl_options = {name: value for name, value in checked.items() if name.startswith("ssl_")}
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
