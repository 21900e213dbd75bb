"""Classification of errors, and the back-off between retries.

Redis reports the same error in several ways: as a class of redis-py's, as a plain ``ResponseError`` that begins with a
code, or (Redis before 7, inside a script) as ``ERR Error running script ...: -CODE ...``. :func:`classify` is the only
place that interprets them, so that no loop needs a list of its own.
"""

from __future__ import annotations

import random
import re
import ssl
from enum import StrEnum
from typing import Final

from redis import exceptions as redis_errors

from ..errors import Misconfigured, QueueFull, QueueUnavailable


class Fault(StrEnum):
    """Kind of an error of Redis or of the connection, which determines how to handle it."""

    TRANSIENT = "transient"  # goes away by itself: retry with a growing back-off
    OVERLOAD = "overload"  # Redis is full: refuse new work, continue the present work
    SATURATION = "saturation"  # this process has all its connections in use: wait for one
    CONFIG = "config"  # an operator has to act (password, permissions, address): retry seldom, do not report ready
    BUG = "bug"  # an error of ours: log with traceback; a retry will not help


#: errors that a call to Redis may raise; not all are a ``RedisError``, because the cluster client has a family of its
#: own
REDIS_ERRORS: Final = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)

#: codes of replies, by kind
_CODES: Final[dict[str, Fault]] = {
    code: fault
    for fault, codes in {
        Fault.TRANSIENT: "BUSY UNKILLABLE LOADING MISCONF NOREPLICAS READONLY MASTERDOWN UNBLOCKED INPROG NOGOODSLAVE "
        "CLUSTERDOWN TRYAGAIN MOVED ASK NOSCRIPT",
        Fault.OVERLOAD: "OOM",
        Fault.CONFIG: "NOAUTH WRONGPASS NOPERM DENIED",
    }.items()
    for code in codes.split()
}

# Order matters: AuthenticationError and MaxConnectionsError are ConnectionErrors, CrossSlot is a ResponseError.
_CLASSES: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Fault], ...]] = (
    (Misconfigured, Fault.CONFIG),
    (QueueFull, Fault.OVERLOAD),
    (redis_errors.MaxConnectionsError, Fault.SATURATION),
    (
        (
            redis_errors.AuthenticationError,
            redis_errors.AuthenticationWrongNumberOfArgsError,
            redis_errors.AuthorizationError,
            redis_errors.NoPermissionError,
            ssl.SSLCertVerificationError,
        ),
        Fault.CONFIG,
    ),
    (redis_errors.OutOfMemoryError, Fault.OVERLOAD),
    (redis_errors.ClusterCrossSlotError, Fault.BUG),
    (
        (
            QueueUnavailable,
            redis_errors.TimeoutError,
            redis_errors.InvalidResponse,  # a garbled stream; redis-py drops the connection
            redis_errors.ClusterError,
            redis_errors.AskError,
            redis_errors.TryAgainError,
            redis_errors.ReadOnlyError,
            redis_errors.NoScriptError,
            redis_errors.SlotNotCoveredError,
        ),
        Fault.TRANSIENT,
    ),
)

_MISUSES: Final = ("CrossSlotTransactionError", "InvalidPipelineStack")  # of a cluster; by name, redis-py 5 lacks them
_POOL_EMPTY: Final = re.compile(r"Too many connections|No connection available", re.IGNORECASE)
_NEEDS_A_PERSON: Final = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|record layer failure|Cluster mode is not enabled"
    r"|invalid username-password|Authentication required|HELLO must be called with the client already authenticated"
    r"|cluster support disabled|DB index is out of range|SELECT is not allowed in cluster mode"
    r"|user executing the script can't (?:run this command|access at least one of the keys)",
    re.IGNORECASE,
)
_CODE: Final = re.compile(r"([A-Z]{3,})(?: |$)")
_CODE_IN_SCRIPT: Final = re.compile(r"@user_script: ?\d+: -([A-Z]{3,}) ")
_IN_SCRIPT: Final = re.compile(r"(?:ERR )?Error running script")


def without_permission(error: object) -> str:
    """Return what to do about an error of a user who may not run a command, or use a key; the error names it."""
    return f"the Redis user may not do what a queue does ({error}); extend its ACL"


def classify(error: BaseException) -> Fault:
    """Return the kind of ``error``; :attr:`Fault.BUG` if it does not come from Redis."""
    if isinstance(error, QueueUnavailable) and isinstance(error.__cause__, REDIS_ERRORS):
        return classify(error.__cause__)
    for kind, fault in _CLASSES:
        if isinstance(error, kind):
            return fault
    if isinstance(error, redis_errors.ResponseError):
        return _classify_text(str(error))
    if isinstance(error, (redis_errors.ConnectionError, redis_errors.RedisClusterException, OSError)):
        return _classify_connection_error(error)
    return Fault.BUG


def _classify_text(text: str) -> Fault:
    match = _CODE_IN_SCRIPT.search(text) if _IN_SCRIPT.match(text) else _CODE.match(text)
    if match and match[1] in _CODES:
        return _CODES[match[1]]
    return Fault.CONFIG if _NEEDS_A_PERSON.search(text) else Fault.BUG


def _classify_connection_error(error: BaseException) -> Fault:
    if type(error).__name__ in _MISUSES:
        return Fault.BUG
    text = str(error)
    if _POOL_EMPTY.search(text):
        return Fault.SATURATION
    return Fault.CONFIG if _NEEDS_A_PERSON.search(text) else Fault.TRANSIENT


class Backoff:
    """Back-off with jitter for a loop that must not end: 50 ms … 5 s; up to 30 s when an operator has to act.

    Args:
        base: the shortest pause in seconds.
        cap: the longest pause in seconds.
        config_cap: the longest pause while :attr:`Fault.CONFIG` lasts.

    Not thread-safe: each loop has its own.
    """

    __slots__ = ("_base", "_cap", "_config_cap", "_failures")

    def __init__(self, base: float = 0.05, cap: float = 5.0, *, config_cap: float = 30.0) -> None:
        self._base = base
        self._cap = cap
        self._config_cap = config_cap
        self._failures = 0

    @property
    def failures(self) -> int:
        """Number of pauses since the last :meth:`reset`."""
        return self._failures

    def next(self, fault: Fault = Fault.TRANSIENT) -> float:
        """Return the seconds to wait now; the range doubles with every call until :meth:`reset`."""
        self._failures += 1
        longest = min(self._cap, self._base * 2.0 ** min(self._failures, 64))
        if fault is Fault.CONFIG and longest >= self._cap:
            return random.uniform(self._config_cap / 2, self._config_cap)
        return random.uniform(min(self._base, self._cap), longest)

    def reset(self) -> None:
        """Reset the back-off after a success: the next pause is short again."""
        self._failures = 0
