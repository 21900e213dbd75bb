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
_CODES: Final = {
    Fault.TRANSIENT: "BUSY|UNKILLABLE|LOADING|MISCONF|NOREPLICAS|READONLY|MASTERDOWN|UNBLOCKED|CLUSTERDOWN|TRYAGAIN"
    "|MOVED|ASK|NOSCRIPT",
    Fault.OVERLOAD: "OOM",
    Fault.CONFIG: "NOAUTH|WRONGPASS|NOPERM|DENIED",
}
#: classes of errors, by kind
_CLASSES: Final[dict[Fault, tuple[type[BaseException], ...]]] = {
    Fault.SATURATION: (redis_errors.MaxConnectionsError,),
    Fault.OVERLOAD: (QueueFull, redis_errors.OutOfMemoryError),
    Fault.CONFIG: (
        Misconfigured,
        redis_errors.AuthenticationError,
        redis_errors.AuthenticationWrongNumberOfArgsError,
        redis_errors.AuthorizationError,
        redis_errors.NoPermissionError,
        ssl.SSLCertVerificationError,
    ),
    Fault.BUG: (redis_errors.ClusterCrossSlotError,),
    Fault.TRANSIENT: (
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
}
_NEEDS_A_PERSON: Final = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|record layer failure|Cluster mode is not enabled"
    r"|invalid username-password|Authentication required|HELLO must be called with the client already authenticated"
    r"|cluster support disabled|DB index is out of range|SELECT is not allowed in cluster mode"
    r"|user executing the script can't (?:run this command|access at least one of the keys)",
    re.IGNORECASE,
)
#: longest pause in seconds while an operator has to act
_LONGEST_OF_CONFIG: Final = 30.0
_CODE: Final = re.compile(r"([A-Z]{3,})(?: |$)")
_CODE_IN_SCRIPT: Final = re.compile(r"@user_script: ?\d+: -([A-Z]{3,}) ")


def classify(error: BaseException) -> Fault:
    """Return the kind of ``error``; :attr:`Fault.BUG` if it does not come from Redis."""
    if isinstance(error, QueueUnavailable) and isinstance(error.__cause__, REDIS_ERRORS):
        return classify(error.__cause__)
    for fault, kinds in _CLASSES.items():
        if isinstance(error, kinds):
            return fault
    text = str(error)
    if isinstance(error, redis_errors.ResponseError):
        code = _CODE_IN_SCRIPT.search(text) or _CODE.match(text)
        for fault, codes in _CODES.items():
            if code and re.fullmatch(codes, code[1]):
                return fault
        return Fault.CONFIG if _NEEDS_A_PERSON.search(text) else Fault.BUG
    if isinstance(error, (redis_errors.ConnectionError, redis_errors.RedisClusterException, OSError)):
        return Fault.CONFIG if _NEEDS_A_PERSON.search(text) else Fault.TRANSIENT
    return Fault.BUG


class Backoff:
    """Back-off with jitter for a loop that must not end: 50 ms … 5 s; up to 30 s when an operator has to act.

    Args:
        base: the shortest pause in seconds.
        cap: the longest pause in seconds.

    Not thread-safe: each loop has its own.
    """

    __slots__ = ("_base", "_cap", "failures")

    def __init__(self, base: float = 0.05, cap: float = 5.0) -> None:
        self._base = base
        self._cap = cap
        #: number of pauses since the last :meth:`reset`
        self.failures = 0

    def next(self, fault: Fault = Fault.TRANSIENT) -> float:
        """Return the seconds to wait now; the range doubles with every call until :meth:`reset`."""
        self.failures += 1
        longest = min(self._cap, self._base * 2.0 ** min(self.failures, 64))
        if fault is Fault.CONFIG and longest >= self._cap:
            return random.uniform(_LONGEST_OF_CONFIG / 2, _LONGEST_OF_CONFIG)
        return random.uniform(min(self._base, self._cap), longest)

    def reset(self) -> None:
        """Reset the back-off after a success: the next pause is short again."""
        self.failures = 0
