"""One run of one job: the value that travels from the reserve through a slot to the settle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from django_delayq.core.job import Job, Settlement
    from django_delayq.core.queue import Queue
    from django_delayq.core.task import Task

    from .decision import Policy
    from .horizon import Source

NEVER: Final = float("inf")


class Run:
    """Times are of ``time.monotonic()``, in seconds. Slots, because 20,000 of these are made in a second."""

    __slots__ = (
        "args",
        "cancel",
        "deadline",
        "ended",
        "error",
        "job",
        "kwargs",
        "limit_at",
        "limited_by",
        "lost",
        "offset_ms",
        "policy",
        "received",
        "settlement",
        "should_stop",
        "slot",
        "source",
        "started",
        "task",
        "thread_id",
        "view",
    )

    def __init__(self, job: Job, source: Source, received: float, deadline: float, offset_ms: float) -> None:
        self.job = job
        self.source = source
        self.received = received
        #: end of the lease as far as this process knows; the heartbeat moves it
        self.deadline = deadline
        #: Redis's clock in ms = monotonic() * 1000 + offset_ms
        self.offset_ms = offset_ms
        self.task: Task | None = None
        self.policy: Policy | None = None
        self.args: list[Any] = _NO_ARGS
        self.kwargs: dict[str, Any] = _NO_KWARGS
        self.started = 0.0
        self.ended = 0.0
        self.slot = -1
        #: what came out of it, if it did not simply return
        self.error: BaseException | None = None
        self.settlement: Settlement | None = None
        #: cancelled, lost, or the process is about to stop: a long handler may look at it and return early
        self.should_stop = False
        #: the lease belongs to somebody else now: whatever comes out is dropped
        self.lost = False
        #: when the time limit strikes, and the exception it was enforced with (kept by the warden)
        self.limit_at = NEVER
        self.limited_by = 0.0
        self.thread_id = 0
        self.cancel: Callable[[], None] | None = None
        self.view: Any = None

    @property
    def queue(self) -> Queue:
        """The queue that holds the job."""
        return self.source.queue

    @property
    def started_ms(self) -> int:
        """When the handler began, in Unix ms on Redis's clock."""
        return int(self.started * 1000 + self.offset_ms)

    @property
    def run_ms(self) -> int:
        """How long the run took."""
        return int((self.ended - self.started) * 1000)

    def __repr__(self) -> str:
        return f"<Run {self.job.queue}/{self.job.id} task={self.job.task}>"


_NO_ARGS: Final[list[Any]] = []
_NO_KWARGS: Final[dict[str, Any]] = {}
