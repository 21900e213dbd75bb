"""Where Redis is: a URL or a dict, read and checked before anything connects.

Nothing here prints a password, and no message repeats a URL as it was given: it may hold one.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import Misconfigured
from ..task import suggest

logger = logging.getLogger("django_delayq.core.redis_config")

Address = tuple[str, int]

#: The longest that one command with all its re-sends may take (seconds).
RESEND_LIMIT: Final = 100.0
#: between two attempts of a command (seconds)
LONGEST_PAUSE: Final = 0.5
EXAMPLE: Final = "'redis://localhost:6379/0'"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisConfig:
    """One deployment of Redis: a server (``host`` and ``port``, or ``path``), Sentinels, or a Cluster.

    Times are in seconds. Make one with :meth:`parse`.
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
    #: connections are made anew when they are so old; None = never
    max_connection_age: float | None = None

    @classmethod
    def parse(cls, value: object) -> RedisConfig:
        """The configuration in ``value``.

        Args:
            value: a URL (``redis://``, ``rediss://`` for TLS, ``unix://``), or a dict with ``URL``, or with
                ``SENTINELS`` and ``MASTER``, or with ``CLUSTER``, and optionally ``DB``, ``USERNAME``, ``PASSWORD``,
                ``SSL…``, ``SOCKET_TIMEOUT``, ``CONNECT_TIMEOUT``, ``RETRIES``, ``MAX_CONNECTIONS``,
                ``MAX_CONNECTION_AGE``.

        Raises:
            Misconfigured: it is not usable; the message says what to write.
        """
        if isinstance(value, RedisConfig):
            return value
        if isinstance(value, str):
            return _check_patience(cls(**_checked(_of_url(value))))
        if isinstance(value, Mapping):
            return _check_patience(cls(**_checked(_of_mapping(value))))
        raise Misconfigured(f"Redis is given as a URL like {EXAMPLE} or as a dict, not as {type(value).__name__}")

    @property
    def patience(self) -> float:
        """The longest that one command may take, with every retry and the pauses between them."""
        return (self.retries + 1) * self.socket_timeout + self.retries * LONGEST_PAUSE

    @property
    def display_url(self) -> str:
        """The address without any secret, for logs and messages."""
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


def _of_url(url: str) -> dict[str, Any]:
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
        # The part that broke is most often the tail of a password, so it is not repeated.
        raise Misconfigured(
            "the Redis URL cannot be read: the port is no number, or a password holds one of / ? # [ ] unescaped; "
            "percent-encode it with urllib.parse.quote(password, safe='')"
        )
    values = _of_query(parts.query)
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


#: Options of URLs written for other programs, which have a fixed value here.
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


def _of_query(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        name = _ALIASES.get(name.lower(), name.lower())
        if name in _FIXED:
            logger.warning("the option %s of the Redis URL is ignored: django_delayq sets it itself", name)
        elif name in _CHECKS and name not in ("host", "port", "path", "sentinels", "sentinel_master", "cluster_nodes"):
            values[name] = value
        else:
            shown = repr(name) if re.fullmatch(r"[a-z_]{1,40}", name) else "after the '?'"
            raise Misconfigured(f"the option {shown} of the Redis URL is not known.{suggest(name, _CHECKS)}")
    return values


def _of_mapping(given: Mapping[Any, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = str(key).lower()
        name = _ALIASES.get(name, name)
        if name != "url" and name not in _CHECKS:
            known = [known.upper() for known in ("url", "cluster", "master", *_CHECKS)]
            raise Misconfigured(f"{str(key)[:40]!r} is no option of Redis.{suggest(str(key).upper(), known)}")
        values[name] = value
    url = values.pop("url", None)
    ways = [
        name
        for name, there in (
            ("URL", url is not None),
            ("SENTINELS", "sentinels" in values),
            ("CLUSTER", "cluster_nodes" in values),
        )
        if there
    ]
    if len(ways) > 1:
        raise Misconfigured(f"{' and '.join(ways)} are different ways to name one Redis; keep one of them")
    if url is not None:
        if not isinstance(url, str):
            raise Misconfigured(f"URL must be a text like {EXAMPLE}, not {type(url).__name__}")
        return {**_of_url(url), **{name: value for name, value in values.items() if value is not None}}
    if not ways and not values.keys() & {"host", "path"}:
        raise Misconfigured(f"where is Redis? Give URL (like {EXAMPLE}), SENTINELS with MASTER, or CLUSTER")
    return values


# --- checking


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    ssl_options: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            continue
        target = ssl_options if name.startswith("ssl_") else config
        target[name] = _CHECKS[name](name, value)
    if (
        ssl_options
        and not config.get("ssl")
        and not config.setdefault("ssl", "ssl" not in config and "path" not in config)
    ):
        raise Misconfigured("SSL options need TLS: use a rediss:// URL or SSL: True")
    if config.get("ssl"):
        # redis-py's own default differs between its versions.
        ssl_options.setdefault("ssl_cert_reqs", "required")
        ssl_options.setdefault("ssl_check_hostname", ssl_options["ssl_cert_reqs"] != "none")
        config["ssl_options"] = ssl_options
    if bool(config.get("sentinels")) != bool(config.get("sentinel_master")):
        raise Misconfigured("SENTINELS (a list of addresses) and MASTER (the name they know it by) belong together")
    if config.get("cluster_nodes") and config.get("db"):
        raise Misconfigured("a Redis Cluster has only database 0; leave DB out and use PREFIX to tell projects apart")
    return config


def _check_patience(config: RedisConfig) -> RedisConfig:
    """Return ``config`` if no command can be sent again after Redis forgot it (two minutes): it would count twice."""
    if config.patience > RESEND_LIMIT:
        raise Misconfigured(
            f"SOCKET_TIMEOUT and RETRIES let one command take {config.patience:.0f} s; at most {RESEND_LIMIT:.0f} are "
            f"safe, because a repeated request is recognised for two minutes: shorten them"
        )
    return config


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise Misconfigured(f"{name.upper()} must be a text, not {type(value).__name__}")


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = known.get(str(value).lower())
    if found is None:
        raise Misconfigured(f"{name.upper()} must be True or False, not {value!r:.40}")
    return found


def _whole(least: int, most: int) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        number = -1
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
            number = int(value)
        if least <= number <= most:
            return number
        # In a URL the number may be part of a password that was not escaped.
        shown = f", not {value!r:.20}" if isinstance(value, int) else ""
        raise Misconfigured(f"{name.upper()} must be a whole number from {least} to {most}{shown}")

    return check


def _seconds(most: int) -> Callable[[str, object], float]:
    def check(name: str, value: object) -> float:
        try:
            seconds = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
        except ValueError:
            seconds = math.nan
        if 0 < seconds <= most:
            return seconds
        raise Misconfigured(f"{name.upper()} must be a number of seconds above 0, at most {most}")

    return check


def _verification(name: str, value: object) -> object:
    # "CERT_NONE" is what URLs for other programs say.
    text = value.lower().removeprefix("cert_") if isinstance(value, str) else value
    if isinstance(text, str) and text not in ("none", "optional", "required"):
        raise Misconfigured(f"{name.upper()} must be 'required', 'optional' or 'none'")
    return text


def _addresses(name: str, value: object) -> tuple[Address, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise Misconfigured(f"{_SHOWN.get(name, name.upper())} must be a list like [['10.0.0.1', 6379], …]")
    addresses = tuple(_address(name, item) for item in value)
    if not addresses:
        raise Misconfigured(f"{_SHOWN.get(name, name.upper())} is an empty list; name at least one address")
    return addresses


def _address(name: str, item: object) -> Address:
    if isinstance(item, str):
        host, _, port = item.strip().rpartition(":")
        item = (host.strip("[]"), port)
    if isinstance(item, Iterable):
        pair = tuple(item)
        if len(pair) == 2 and isinstance(pair[0], str) and pair[0]:
            return pair[0], _PORT("port", pair[1])
    raise Misconfigured(f"an address in {_SHOWN.get(name, name.upper())} is ['10.0.0.1', 6379] or '10.0.0.1:6379'")


def _any(_name: str, value: Any) -> Any:
    return value


_PORT: Final = _whole(1, 65535)
_SHOWN: Final = {"cluster_nodes": "CLUSTER", "sentinel_master": "MASTER"}
_ALIASES: Final = {
    "cluster": "cluster_nodes",
    "master": "sentinel_master",
    "socket_connect_timeout": "connect_timeout",
    "user": "username",
    "ssl_ca_cert": "ssl_ca_certs",
}
_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "host": _text,
    "port": _PORT,
    "path": _text,
    "sentinels": _addresses,
    "sentinel_master": _text,
    "cluster_nodes": _addresses,
    "db": _whole(0, 65535),
    "username": _text,
    "password": _text,
    "sentinel_username": _text,
    "sentinel_password": _text,
    "ssl": _flag,
    "ssl_ca_certs": _text,
    "ssl_ca_path": _text,
    "ssl_ca_data": _text,
    "ssl_certfile": _text,
    "ssl_keyfile": _text,
    "ssl_password": _text,
    "ssl_cert_reqs": _verification,
    "ssl_check_hostname": _flag,
    "ssl_ciphers": _text,
    "ssl_min_version": _any,
    "socket_timeout": _seconds(3600),
    "connect_timeout": _seconds(3600),
    "retries": _whole(0, 10),
    "max_connections": _whole(1, 10_000),
    "max_connection_age": _seconds(30 * 86_400),
}
