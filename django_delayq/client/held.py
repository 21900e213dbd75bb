"""Job that the client has reserved."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from .answers import body_of, made, moment
from .errors import ApiError

if TYPE_CHECKING:
    from .consuming import Consuming

logger: Final = logging.getLogger("django_delayq.client")


@dataclass(slots=True, kw_only=True, eq=False)
class HeldJob:
    """Job that this program holds until ``lease_ends``. Only :meth:`touch` extends the lease.

    One of :meth:`ack`, :meth:`fail`, :meth:`release` and :meth:`bury` ends it. Each returns True if it counted; after
    the first of them every other returns False. False from the first one means that the lease was lost: the job is held
    by another worker by now, or is back in the queue, and nothing was changed. As a context manager the job is
    acknowledged at the end of the block and fails on an exception.

    Attributes:
        body: raw bytes of a job of a pull queue. Other jobs have ``args`` and ``kwargs``, or ``payloads``.
        attempt: number of this counted attempt; the first is 1.
        noe: how often it was handed out before, counted or not.
        lives: attempts that are left, including this one.
        ttr: seconds that it was reserved for.
        should_stop: True if it was cancelled; updated by :meth:`touch`.
        lost: True if the lease is known to be lost.
        ended: True if it was ended here.
    """

    queue: str
    id: str
    lease: str
    key: str
    task: str
    body: bytes | None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payloads: list[Any] | None = None
    due: datetime | None = field(default=None, metadata={"read": moment})
    attempt: int = 1
    failures: int = 0
    noe: int = 0
    lives: int = 0
    ttr: float = 60.0
    context: dict[str, Any] = field(default_factory=dict)
    lease_ends: datetime | None = field(default=None, metadata={"read": moment})
    should_stop: bool = field(default=False, init=False)
    lost: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    _client: Consuming = field(repr=False)
    #: one thread at a time ends or touches it
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def ack(self) -> bool:
        """Acknowledge the job as done; it is deleted."""
        with self._guard:
            return self._client.ack([self])[0]

    def fail(self, error: BaseException | str = "", delay: float | timedelta | None = None) -> bool:
        """Record a failed attempt, which is counted.

        The job is due again after ``delay``, by default after its task's back-off, or goes to the morgue if this was
        its last attempt.
        """
        with self._guard:
            return self._client.fail([self], error, delay)[0]

    def release(self, delay: float | timedelta | None = None) -> bool:
        """Release the job without counting an attempt, due after ``delay`` or (None) at its old place."""
        with self._guard:
            return self._client.release([self], delay)[0]

    def bury(self, reason: str = "") -> bool:
        """Move a job that can never succeed to the morgue, with the reason."""
        with self._guard:
            return self._client.bury([self], reason)[0]

    def touch(self, ttr: float | timedelta | None = None) -> bool:
        """Extend the lease: ``ttr`` from now on, by default as long as the job was reserved for.

        Return False if the lease was lost.
        """
        with self._guard:
            return self._client.touch([self], ttr)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ack, fail, or (for exceptions that end the process) release, unless the block has ended the job itself."""
        if self.ended:
            return
        if error is None:
            if not self.ack():
                logger.warning("%s: done, but its lease was lost, so it may be run again", self.id)
            return
        try:
            if isinstance(error, Exception):
                self.fail(error)
            else:
                self.release()
        except ApiError as trouble:  # the caller has to receive the block's own error
            logger.warning("%s: %s was not told to the server; its lease will end: %s", self.id, kind, trouble)


def held_of(data: Mapping[str, Any], client: Consuming, ttr: float) -> HeldJob:
    """Return a held job from JSON."""
    return made(HeldJob, data, body=body_of(data), ttr=ttr, _client=client)
