"""Handle returned by a schedule call."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal

from django.db import DEFAULT_DB_ALIAS

from ..core.job import Generation
from ..core.task import Task
from ..core.times import datetime_of
from ..transactions import OnCommit

#: outcome when Redis is unavailable: the database has stored the change, and the relay will send it to Redis
Left = Literal["outbox"]
Delay = float | timedelta
#: outcome of the handle that a schedule middleware receives for an entry of schedule_many
COLLECTED: Final = "collected"


class JobHandle:
    """Handle of one scheduled job: the job of its call, not a later job with the same id.

    When the job is done, cancelled or replaced, :meth:`cancel`, :meth:`reschedule` and :meth:`run_now` return False and
    :meth:`state` returns None, even if another job has the id by then. To address that job, pass the id to the
    functions of :mod:`django_delayq`. Which job the handle refers to depends on the outcome:

    * created: the new job
    * replaced: the new content; handles of the earlier content are stale
    * gated: the content behind the running attempt, not the attempt; a handle of the running job does not affect the
      gated content
    * merged: the job that the payload was merged into, and the payload wherever it moves after that
    * ignored: the existing job
    * on_commit, outbox: the job of this call; if it is merged or ignored after the commit, from then on as above

    Attributes:
        id: id of the job, unique within its queue.
        queue: name of the queue.
        outcome: "created", "merged", "replaced", "ignored" or "gated" (the job is running, the new content runs after
            that); "on_commit" until an open transaction commits (forever, if it rolls back); "outbox" for a durable job
            that is stored in the database but not yet in Redis, because the transaction is open, or because Redis did
            not answer and the relay will send it; "not_sent" if Redis did not accept it after the commit.
            What Redis has stored and not confirmed after the commit keeps its outcome, with an ``error``.
        due: due time (aware datetime; for a ``delay`` computed with this machine's clock, while Redis's clock decides).
        error: error if the job was not sent, or not confirmed (:class:`django_delayq.NotConfirmed`), else None.
        task: the task; None for raw bytes of a ``pull`` queue.
        durable: True if the job has a row in the database until it is done.
        using_db: database named at the call; the handle's verbs wait for the transaction of the same database.
        generation: distinguishes the job from others with the same id; None if the handle means the current live job.
    """

    __slots__ = ("_due_ms", "durable", "error", "generation", "id", "outcome", "queue", "task", "using_db")

    def __init__(
        self,
        id: str,
        queue: str,
        outcome: str,
        due_ms: int,
        task: Task | None = None,
        *,
        durable: bool = False,
        using_db: str | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.task = task
        self.outcome = outcome
        self.error: Exception | None = None
        self.durable = durable
        self.using_db = using_db
        self.generation: Generation | None = None
        self._due_ms = due_ms

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} queue={self.queue} {self.outcome}>"

    @property
    def alias(self) -> str:
        """Alias of the database whose transaction the verbs wait for."""
        return self.using_db or DEFAULT_DB_ALIAS

    @property
    def due(self) -> datetime:
        """Due time of the job."""
        return datetime_of(self._due_ms)

    @property
    def key(self) -> str | None:
        """Key of the job's generation as 32 hex digits, equal to ``current_job().key`` while the job runs."""
        return None if self.generation is None else self.generation.keys[0].hex()

    def state(self) -> str | None:
        """Return delayed, ready, reserved, gated or morgue; None when Redis does not have the job (any more)."""
        from .verbs import get_job

        view = get_job(self)
        return None if view is None else view.state

    async def astate(self) -> str | None:
        """Call :meth:`state` from a coroutine."""
        from .aio import aget_job

        view = await aget_job(self)
        return None if view is None else view.state

    def cancel(self) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
        """Cancel the job. See :func:`django_delayq.cancel`."""
        from .verbs import cancel

        return cancel(self)

    async def acancel(self) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
        """Cancel the job. See :func:`django_delayq.acancel`."""
        from .aio import acancel

        return await acancel(self)

    def reschedule(self, *, delay: Delay | None = None, at: datetime | float | None = None) -> bool | OnCommit | Left:
        """Reschedule the job. See :func:`django_delayq.reschedule`."""
        from .verbs import reschedule

        return reschedule(self, delay=delay, at=at)

    async def areschedule(
        self, *, delay: Delay | None = None, at: datetime | float | None = None
    ) -> bool | OnCommit | Left:
        """Reschedule the job. See :func:`django_delayq.areschedule`."""
        from .aio import areschedule

        return await areschedule(self, delay=delay, at=at)

    def run_now(self) -> bool | OnCommit | Left:
        """Make the job due now. See :func:`django_delayq.run_now`."""
        from .verbs import run_now

        return run_now(self)

    async def arun_now(self) -> bool | OnCommit | Left:
        """Make the job due now. See :func:`django_delayq.arun_now`."""
        from .aio import arun_now

        return await arun_now(self)
