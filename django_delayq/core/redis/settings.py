"""Settings of connections, the same for the three kinds of deployment.

redis-py's defaults differ between its versions, between ``Redis()`` and ``from_url()``, and some of them are harmful to
a queue (ten silent retries, no time limit at all). Therefore every setting is given here, for every kind.
"""

from __future__ import annotations

import math
import socket
from dataclasses import replace
from typing import Any, Final

from redis import exceptions as redis_errors
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from .config import LONGEST_PAUSE, RedisConfig
from .pool import PoolLimits

# Errors after which the same command is sent again. READONLY is among them, because it ends with a new connection,
# which finds the new master; the script was not run. Every script recognises a repeated command.
_RETRIED: Final = (redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.ReadOnlyError)


def _keepalive_options() -> dict[int, int]:
    """Return options by which TCP detects a silently lost peer after 45 s, also in a read without a time limit."""
    options = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)}


def common_settings(config: RedisConfig, *, tcp: bool = True) -> dict[str, Any]:
    """Return the arguments common to all connections."""
    backoff = ExponentialWithJitterBackoff(base=0.02, cap=LONGEST_PAUSE)
    settings: dict[str, Any] = {
        "socket_timeout": config.socket_timeout,
        "socket_connect_timeout": config.connect_timeout,
        "retry": Retry(backoff, config.retries, supported_errors=_RETRIED),
        "retry_on_error": list(_RETRIED),  # redis-py before 6 checks this list, too
        "health_check_interval": 0,  # an extra step in each call; the command itself detects the same problems
        "protocol": 2,
        "decode_responses": False,
        "encoding": "utf-8",
    }
    if tcp:
        settings |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive_options()}
    return settings


def _no_retries() -> dict[str, Any]:
    return {"retry": Retry(NoBackoff(), 0, supported_errors=_RETRIED), "retry_on_error": []}


def blocking_settings(socket_timeout: float | None) -> dict[str, Any]:
    """Return the differing settings of a blocking connection: its own time limit, and no retries."""
    return {"socket_timeout": socket_timeout, **_no_retries()}


def hurried_settings(seconds: float) -> dict[str, Any]:
    """Return the differing settings for callers with a short time limit: a lost connection is replaced once."""
    lost = (redis_errors.ConnectionError, redis_errors.ReadOnlyError)
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 1, supported_errors=lost),
        "retry_on_error": list(lost),
    }


def limits_of(config: RedisConfig) -> PoolLimits:
    return PoolLimits(config.max_connections, config.patience, config.max_connection_age)


def waiting_limits(limits: PoolLimits) -> PoolLimits:
    """Return the limits for a client that blocks without a deadline, on connections that its holder replaces."""
    return replace(limits, patience=math.inf, max_age=None)


def credentials_of(config: RedisConfig) -> dict[str, Any]:
    return {"username": config.username, "password": config.password}


def sentinel_settings(config: RedisConfig) -> dict[str, Any]:
    """Return the settings for the Sentinels themselves: no retries, because the next Sentinel is the retry."""
    return {**common_settings(config), "socket_timeout": config.connect_timeout, **_no_retries()}
