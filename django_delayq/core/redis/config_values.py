"""Options of a Redis deployment: their names and the checks of their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..errors import Misconfigured

Address = tuple[str, int]


def _check_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise Misconfigured(f"{name.upper()} must be a text, not {type(value).__name__}")


def _check_flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    flag = flags.get(str(value).lower())
    if flag is None:
        raise Misconfigured(f"{name.upper()} must be True or False, not {value!r:.40}")
    return flag


def _whole_number_check(least: int, most: int) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        number = -1
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
            number = int(value)
        if least <= number <= most:
            return number
        # In a URL the number may be part of a password that was not escaped.
        actual = f", not {value!r:.20}" if isinstance(value, int) else ""
        raise Misconfigured(f"{name.upper()} must be a whole number from {least} to {most}{actual}")

    return check


def _seconds_check(most: int) -> Callable[[str, object], float]:
    def check(name: str, value: object) -> float:
        try:
            seconds = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
        except ValueError:
            seconds = math.nan
        if 0 < seconds <= most:
            return seconds
        raise Misconfigured(f"{name.upper()} must be a number of seconds above 0, at most {most}")

    return check


def _check_verification(name: str, value: object) -> object:
    # URLs for other programs use "CERT_NONE".
    text = value.lower().removeprefix("cert_") if isinstance(value, str) else value
    if isinstance(text, str) and text not in ("none", "optional", "required"):
        raise Misconfigured(f"{name.upper()} must be 'required', 'optional' or 'none'")
    return text


def _check_addresses(name: str, value: object) -> tuple[Address, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise Misconfigured(f"{_SETTING_OF.get(name, name.upper())} must be a list like [['10.0.0.1', 6379], …]")
    addresses = tuple(_check_address(name, item) for item in value)
    if not addresses:
        raise Misconfigured(f"{_SETTING_OF.get(name, name.upper())} is an empty list; name at least one address")
    return addresses


def _check_address(name: str, item: object) -> Address:
    if isinstance(item, str):
        host, _, port = item.strip().rpartition(":")
        item = (host.strip("[]"), port)
    if isinstance(item, Iterable):
        pair = tuple(item)
        if len(pair) == 2 and isinstance(pair[0], str) and pair[0]:
            return pair[0], _PORT("port", pair[1])
    raise Misconfigured(f"an address in {_SETTING_OF.get(name, name.upper())} is ['10.0.0.1', 6379] or '10.0.0.1:6379'")


def _accept_any(_name: str, value: Any) -> Any:
    return value


_PORT: Final = _whole_number_check(1, 65535)
_SETTING_OF: Final = {"cluster_nodes": "CLUSTER", "sentinel_master": "MASTER"}
#: other names of options -> ours
ALIASES: Final = {
    "cluster": "cluster_nodes",
    "master": "sentinel_master",
    "socket_connect_timeout": "connect_timeout",
    "user": "username",
    "ssl_ca_cert": "ssl_ca_certs",
}
#: option -> check of its value, which returns it or raises Misconfigured
CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "host": _check_text,
    "port": _PORT,
    "path": _check_text,
    "sentinels": _check_addresses,
    "sentinel_master": _check_text,
    "cluster_nodes": _check_addresses,
    "db": _whole_number_check(0, 65535),
    "username": _check_text,
    "password": _check_text,
    "sentinel_username": _check_text,
    "sentinel_password": _check_text,
    "ssl": _check_flag,
    "ssl_ca_certs": _check_text,
    "ssl_ca_path": _check_text,
    "ssl_ca_data": _check_text,
    "ssl_certfile": _check_text,
    "ssl_keyfile": _check_text,
    "ssl_password": _check_text,
    "ssl_cert_reqs": _check_verification,
    "ssl_check_hostname": _check_flag,
    "ssl_ciphers": _check_text,
    "ssl_min_version": _accept_any,
    "socket_timeout": _seconds_check(3600),
    "connect_timeout": _seconds_check(3600),
    "retries": _whole_number_check(0, 10),
    "max_connections": _whole_number_check(1, 10_000),
    "max_connection_age": _seconds_check(30 * 86_400),
    "wait_replicas": _whole_number_check(0, 100),
    "wait_aof": _check_flag,
    "wait_timeout": _seconds_check(10),
    "wait_default": _check_flag,
}
