"""Connection of the pool: the retries of a call over it, and the deadline that all of them share."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import exceptions as redis_errors
from redis.retry import Retry

if TYPE_CHECKING:

    class _Base:
        """Attributes and methods of redis-py's connections."""

        retry: Retry
        socket_timeout: float | None
        socket_connect_timeout: float | None
        _sock: Any

        def __init__(self, **options: Any) -> None: ...
        def connect(self) -> None: ...
        def disconnect(self, *args: Any, **options: Any) -> None: ...
        def send_command(self, *args: Any, **options: Any) -> None: ...
        def send_packed_command(self, command: Any, check_health: bool = True) -> None: ...
        def read_response(self, *args: Any, **options: Any) -> Any: ...
        def can_read(self, timeout: float = 0) -> bool: ...
        def _connect(self) -> Any: ...

else:
    _Base = object

T = TypeVar("T")

#: seconds in which a node of a cluster has to name the slots
SLOTS_SECONDS: Final = 1.0
#: errors after which a retry is useless
_HOPELESS: Final = (
    redis_errors.AuthenticationError,
    redis_errors.AuthorizationError,
    redis_errors.MaxConnectionsError,
)


def end_of(max_age: float | None) -> float:
    """Return when (``time.monotonic()``) a new connection is to be replaced; the moments are spread."""
    return math.inf if max_age is None else time.monotonic() + max_age * random.uniform(0.8, 1.0)


class _Thread(threading.local):
    until: float | None = None
    sent_at = -math.inf


_thread: Final = _Thread()


@contextmanager
def within(until: float | None) -> Iterator[None]:
    """Set the deadline (monotonic) of all commands that this thread sends in the block; an earlier one stays.

    For calls whose connections redis-py takes: a cluster's client queries several nodes, a Sentinel's pool its
    Sentinels.
    """
    outer = _thread.until
    _thread.until = until if outer is None else outer if until is None else min(outer, until)
    try:
        yield
    finally:
        _thread.until = outer


def deadline_of_thread() -> float | None:
    """Return the deadline set by :func:`within` for this thread."""
    return _thread.until


def last_sent(since: float) -> float:
    """Return when (monotonic) this thread last began to send something; ``since`` if it has sent nothing since then.

    Of a call that was just made it is the beginning of the attempt that was answered.
    """
    return max(since, _thread.sent_at)


class CallRetry(Retry):
    """Retry policy of one connection. All attempts of a call share one deadline."""

    def __init__(self, policy: Retry, patience: float) -> None:
        super().__init__(policy._backoff, policy._retries, policy._supported_errors)
        #: time limit of a call in seconds
        self.patience = patience
        #: end (monotonic) of the call in progress; None = its patience counts from its first attempt
        self.until: float | None = None
        #: True while the connection connects, which is part of an attempt and never retried by itself
        self.connecting = False

    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: Callable[[Exception], bool] | None = None,
        with_failure_count: bool = False,
    ) -> T:
        """Return the result of ``do``, after as many attempts as the policy and the deadline allow."""
        if self.connecting:
            return do()
        if self.until is None:
            self.until = time.monotonic() + self.patience
        failures = 0
        try:
            while True:
                try:
                    return do()
                except self._supported_errors as error:
                    failures += 1
                    fail(error, failures) if with_failure_count else fail(error)
                    pause = self.pause(error, failures)
                    if pause is None or (is_retryable is not None and not is_retryable(error)):
                        raise
                time.sleep(pause)
        finally:
            self.until = None

    def retries(self, error: BaseException) -> bool:
        """Return True for an error after which the same command may be sent again."""
        return isinstance(error, self._supported_errors)

    def pause(self, error: BaseException, failures: int) -> float | None:
        """Return the seconds to wait before the next attempt; None = there is none."""
        if failures > self._retries or isinstance(error, _HOPELESS):
            return None
        pause = self._backoff.compute(failures)
        return pause if self.until is None or time.monotonic() + pause < self.until else None


class Link(_Base):
    """Mixin for redis-py's connections: connecting is tried once and shares the deadline of the call that needs it.

    It connects at the first send, so that connecting, the handshake and the command make one attempt.

    Args:
        patience: time limit of a call in seconds, including retries.
        max_age: seconds after which it should be replaced; None = never.
    """

    retry: CallRetry

    def __init__(self, *, patience: float = math.inf, max_age: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.retry = CallRetry(self.retry, patience)
        self._max_age = max_age
        #: True while a caller holds it
        self.in_use = False
        #: True if it is to be closed when it is released
        self.closes = False
        #: moment (monotonic) at which it is to be replaced
        self.old_at = math.inf
        #: True if the socket's time limit may differ from ``socket_timeout``
        self._limited = False

    # --- interface of redis-py

    def connect(self) -> None:
        """Connect and shake hands, unless connected."""
        if self._sock is not None:
            return
        call = self.retry
        call.connecting = self._limited = True
        try:
            with within(call.until):
                super().connect()
        finally:
            call.connecting = False
        self.old_at = end_of(self._max_age)

    def _connect(self) -> Any:
        limits = self.socket_timeout, self.socket_connect_timeout
        self.socket_timeout, self.socket_connect_timeout = map(self._bounded, limits)
        try:
            return super()._connect()
        finally:
            self.socket_timeout, self.socket_connect_timeout = limits

    def send_command(self, *args: Any, **options: Any) -> None:
        """Send a command; connect first if necessary.

        redis-py asks one node after another for the slots of a cluster, under a lock for which the calls of all threads
        to another node wait, so a silent one must not take the whole time limit of a call.
        """
        if args[0] == "CLUSTER SLOTS":
            until, end = self.retry.until, time.monotonic() + SLOTS_SECONDS
            self.limit(end if until is None else min(until, end))
        super().send_command(*args, **options)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send a packed command; connect first if necessary."""
        self._make_ready()
        super().send_packed_command(command, check_health)

    def _make_ready(self) -> None:
        """Connect if necessary, and limit the socket to the time that is left."""
        if self._sock is None:
            self.connect()
        if self._limited:
            self._limit_socket()
        _thread.sent_at = time.monotonic()

    # --- for packed calls

    def exchange(self, packed: bytes, read: Callable[[], Any] | None = None) -> Any:
        """Send packed commands and return the reply, with retries.

        Args:
            read: reads the reply, or those of several commands; None = the reply of one command.
        """
        failures = 0
        if self.retry.until is None:
            self.limit(time.monotonic() + self.retry.patience)
        while True:
            try:
                self._make_ready()
                super().send_packed_command([packed])
                return self.read_response() if read is None else read()
            except BaseException as error:
                if not self.retry.retries(error):
                    if not isinstance(error, redis_errors.ResponseError):
                        self.disconnect()  # half a reply may be left on it
                    raise
                self.disconnect()
                failures += 1
                pause = self.retry.pause(error, failures)
                if pause is None:
                    raise
            time.sleep(pause)

    # --- for the pool

    def limit(self, until: float) -> None:
        """Set the deadline of the call in progress."""
        self.retry.until = until
        if self.socket_timeout is None or until - time.monotonic() < self.socket_timeout:
            self._limited = True

    def allow(self, seconds: float) -> None:
        """Give the reply that is read next so much time, beyond the deadline of the call. That of retries stays."""
        self._limited = True
        if self._sock is not None:
            self._sock.settimeout(seconds)

    @property
    def is_open(self) -> bool:
        """True while it is connected, as far as this process can tell."""
        return self._sock is not None

    def is_stale(self) -> bool:
        """Return True if the peer closed the connection, or if unread data is left on it."""
        try:
            return self._sock is not None and bool(self.can_read())
        except (redis_errors.RedisError, OSError):
            return True

    # ---

    def _limit_socket(self) -> None:
        seconds = self._bounded(self.socket_timeout)
        if self._sock is not None:  # None if another thread closed it
            self._sock.settimeout(seconds)
        self._limited = self.retry.connecting or seconds != self.socket_timeout

    def _bounded(self, seconds: float | None) -> float | None:
        """Return the time limit of a step: its own one, or the time left for the call."""
        until = self.retry.until
        if until is None or until == math.inf:
            return seconds
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise redis_errors.TimeoutError("no answer within the time that a call may take")
        return remaining if seconds is None else min(seconds, remaining)
