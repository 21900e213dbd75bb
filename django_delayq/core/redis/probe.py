"""Checks of what a Redis server says about itself, in its reply to ``INFO``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..errors import Misconfigured, QueueUnavailable

OLDEST_SERVER: Final = (6, 2)


def check_server(info: Mapping[str, Any], where: str, *, cluster: bool) -> None:
    """Check that a server is fit for a queue.

    Args:
        info: its ``INFO``.
        where: its address for messages, without secrets.
        cluster: True if a cluster is expected.

    Raises:
        Misconfigured: it is too old, or of another kind.
        QueueUnavailable: it is a replica.
    """
    if version_of(info) < OLDEST_SERVER:
        release, minimum = info["redis_version"], ".".join(map(str, OLDEST_SERVER))
        raise Misconfigured(f"{where} is Redis {release}; django_delayq needs {minimum} or newer (or Valkey); upgrade")
    mode = info.get("redis_mode")
    if mode == "sentinel":
        raise Misconfigured(
            f"{where} is a Sentinel, not a Redis server; set DELAYQ['REDIS'] = "
            "{'SENTINELS': [['host', 26379], …], 'MASTER': 'mymaster'}"
        )
    if mode == "cluster" and not cluster:
        raise Misconfigured(
            f"{where} is a node of a Redis Cluster; set DELAYQ['REDIS'] = {{'CLUSTER': [['host', 6379], …]}}"
        )
    if not cluster and info.get("role") == "slave" and info.get("slave_read_only", 1):
        raise QueueUnavailable(
            f"{where} is a read-only replica: a failover is under way, or DELAYQ['REDIS'] names the replica instead of "
            "the master"
        )


def by_server(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the reply of each server; the client of a cluster returns those of several nodes by name."""
    return [info] if "redis_version" in info else list(info.values())


def version_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ``(major, minor, patch)`` that a server reports as compatible (Valkey reports 7.2.4)."""
    return tuple(map(int, re.findall(r"\d+", str(info["redis_version"]))[:3]))
