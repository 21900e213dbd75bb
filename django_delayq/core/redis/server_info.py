"""Replies of ``INFO``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

OLDEST_SERVER: Final = (6, 2)


def by_server(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the reply of each server; the client of a cluster returns those of several nodes by name."""
    return [info] if "redis_version" in info else list(info.values())


def version_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ``(major, minor)`` that a server reports as compatible (Valkey reports 7.2); () = it reports none."""
    parts = str(info.get("redis_version", "")).split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def server_version(info: Callable[..., Any]) -> tuple[int, ...]:
    """Return the version of the server, of a cluster's oldest one.

    Args:
        info: the client's method ``info``.
    """
    return min(map(version_of, by_server(info("server"))))
