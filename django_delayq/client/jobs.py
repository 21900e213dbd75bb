"""Jobs as a client sees them: those that it stored, and those that it holds."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from .errors import ApiError
from .http import Asynchronous, Blocking, Steps, verb

if TYPE_CHECKING:
    from .verbs import AsyncClient, Client, Verbs

T = TypeVar("T")
HeldT = TypeVar("HeldT", bound="Held")

logger: Final = logging.getLogger("django_delayq.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """Stored job. ``outcome``: created, merged, replaced, ignored, gated, outbox, or skipped (no id)."""

    id: str | None
    queue: str
    outcome: str
    due: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """Outcomes of many jobs: (id, outcome) of each in the order of the request, and counts by outcome."""

    results: list[tuple[str | None, str]] = field(repr=False)  # there may be thousands
    counts: dict[str, int]


@dataclass(slots=True, weakref_slot=True, kw_only=True, eq=False)
class Held:
    """Job that this program holds until ``lease_ends``. Only :meth:`touch` extends the lease.

    One of :meth:`ack`, :meth:`fail`, :meth:`release` and :meth:`bury` ends it. Each returns True if it counted; after
    the first of them every other returns False. False from the first one means that the lease was lost: the job is held
    by another worker by now, or is back in the queue, and nothing was changed. As a context manager the job is
    acknowledged at the end of the block and fails on an exception.

    Attributes:
        body: raw bytes of a job of a pull queue. Other jobs have ``args`` and ``kwargs``, or ``payloads``.
        attempt: number of this counted attempt; the first is 1.
        noe: how often it was reserved before, counted or not.
        releases: how often it was put back uncounted.
        created: when it was first scheduled, by the caller's clock; None if that call may be repeated.
        lives: attempts that are left, including this one.
        ttr: seconds named with the reserve; None = the job's own ``ttr``, else 60.
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
    due: datetime | None = None
    created: datetime | None = None
    attempt: int = 1
    failures: int = 0
    noe: int = 0
    releases: int = 0
    lives: int = 0
    ttr: float | None = None
    context: dict[str, Any] = field(default_factory=dict)
    lease_ends: datetime | None = None
    should_stop: bool = field(default=False, init=False)
    lost: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    #: end of the lease on this machine's clock (monotonic)
    _ends_at: float = field(default=math.inf, init=False, repr=False)
    _client: Verbs[Any] = field(repr=False)

    @property
    def in_hand(self) -> bool:
        """True if the job was not ended here and its lease is not known to be lost."""
        return not (self.ended or self.lost)

    @property
    def seconds_left(self) -> float:
        """Seconds until the lease ends, less the time of a response; 0 = it may be over, or the job was ended."""
        return max(0.0, self._ends_at - time.monotonic()) if self.in_hand else 0.0

    def _hold(self, ttr: float | None, began: float) -> None:
        """Note the end of a lease that began at ``began`` (monotonic).

        Where its length is not known, the clock of this machine tells when it ends.
        """
        if ttr is None and self.lease_ends is not None:
            began, ttr = time.monotonic(), (self.lease_ends - datetime.now(UTC)).total_seconds()
        self._ends_at = began + (ttr or 0.0)

    def _apply(self, answer: Mapping[str, Any], ttr: float | None, sent_at: float) -> bool:
        """Note what the server answered to an end of the job, or to a touch for so many seconds; return if it counted.

        Args:
            answer: result of the job.
            ttr: seconds that the touch named.
            sent_at: time of the request (monotonic).
        """
        if "counted" in answer:
            self.ended, self.lost = True, not answer["counted"]
        else:
            self.lost, self.should_stop = not answer["held"], answer["stopping"]
            if not self.lost:
                self.lease_ends = moment(answer["lease_ends"])
                self._hold(ttr, sent_at)
        return not self.lost

    @verb
    async def ack(self) -> bool:
        """Acknowledge the job as done; it is deleted."""
        return (await self._client._ack([self]))[0]

    @verb
    async def fail(self, error: BaseException | str = "", delay: float | timedelta | None = None) -> bool:
        """Record a failed attempt, which is counted.

        The job is due again after ``delay``, by default after its task's back-off, or goes to the morgue if this was
        its last attempt.
        """
        return (await self._client._fail([self], error, delay))[0]

    @verb
    async def release(self, delay: float | timedelta | None = None, *, priority: int | None = None) -> bool:
        """Release the job without counting an attempt, due after ``delay`` or (None) at its old place.

        ``priority`` replaces its own from now on: 0 (first) … 7.
        """
        return (await self._client._release([self], delay, priority=priority))[0]

    @verb
    async def bury(self, reason: str = "") -> bool:
        """Move a job that can never succeed to the morgue, with the reason."""
        return (await self._client._bury([self], reason))[0]

    @verb
    async def touch(self, ttr: float | timedelta | None = None) -> bool:
        """Extend the lease: ``ttr`` from now on, by default as long as the job was reserved for.

        Return False if the lease was lost.
        """
        return (await self._client._touch([self], ttr))[0]

    async def _end(self, error: BaseException | None) -> None:
        """Ack, fail, or (for exceptions that end the process) release, unless the block has ended the job itself."""
        if self.ended:
            return
        if error is None:
            if not (await self._client._ack([self]))[0]:
                logger.warning("%s is done, but its lease was lost, so it may run again", self.id)
            return
        try:
            if isinstance(error, Exception):
                await self._client._fail([self], error)
            else:
                await self._client._release([self])
        except ApiError as trouble:  # the caller has to receive the block's own error
            logger.warning(
                "%s: %s was not sent to the server; its lease will end: %s", self.id, type(error).__name__, trouble
            )


@dataclass(slots=True, kw_only=True, eq=False)
class HeldJob(Held, Blocking):
    """Job held by a :class:`Client`; see :class:`Held`."""

    _client: Client = field(repr=False)
    #: one thread at a time ends or touches it
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def _run(self, steps: Steps[T]) -> T:
        with self._guard:
            return self._client._run(steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._run(self._end(error))


@dataclass(slots=True, kw_only=True, eq=False)
class AsyncHeldJob(Held, Asynchronous):
    """Job held by an :class:`AsyncClient`: a :class:`HeldJob` with awaitable methods, for ``async with``."""

    _client: AsyncClient = field(repr=False)
    #: one task at a time ends or touches it
    _guard: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)

    async def _run(self, steps: Steps[T]) -> T:
        async with self._guard:
            return await self._client._run(steps)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._run(self._end(error))


def held_of(kind: type[HeldT], data: Mapping[str, Any], client: Verbs[HeldT], ttr: float | None, began: float) -> HeldT:
    """Return a held job from JSON; its lease began at ``began`` (monotonic)."""
    body = None
    if "body_base64" in data:
        body = base64.b64decode(data["body_base64"])
    elif "body" in data:
        body = data["body"].encode()
    # A server may leave out new members, or have others.
    members = {one.name: data[one.name] for one in fields(kind) if one.init and one.name in data}
    members |= {name: moment(data.get(name)) for name in ("due", "created", "lease_ends")}
    members |= {"body": body, "ttr": ttr, "_client": client}
    job = kind(**members)
    job._hold(ttr, began)
    return job


def moment(text: str | None) -> datetime | None:
    """Return a JSON time as an aware datetime; None stays None."""
    return None if text is None else datetime.fromisoformat(text)
