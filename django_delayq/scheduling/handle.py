"""What a schedule call gives back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS

from ..core.job import Generation
from ..core.task import Task
from ..transactions import OnCommit

#: Redis is away; the database has it, and the relay will tell Redis
Left = Literal["outbox"]
Delay = float | timedelta


class JobHandle:
    """One scheduled job: that of its call, not whatever lives under its id later.

    When the job is done, cancelled or replaced, :meth:`cancel`, :meth:`reschedule` and :meth:`run_now` return False and
    :meth:`state` returns None, although another job may have the id by then; give the id to the functions of
    :mod:`django_delayq` to mean that. Which job it is depends on the outcome:

    ========== =====================================================================================================
    created    the new job
    replaced   the new content; handles of the content before are stale
    gated      the content behind the run, not the run; a handle of the run does not touch what is gated
    merged     the job that the payload was merged into, and the payload wherever it goes after that
    ignored    the job that was there
    on_commit, the job of this call; if it is merged or ignored after the commit, from then on as above
    outbox
    ========== =====================================================================================================

    Attributes:
        id: its id, unique within its queue.
        queue: the queue's name.
        outcome: "created", "merged", "replaced", "ignored" or "gated" (it runs now, and the new content after that);
            "on_commit" until an open transaction commits (for ever, if it rolls back); "outbox" for a durable job that
            is in the database and of which Redis has not heard yet, because the transaction is open, or because Redis
            did not answer and the relay will tell it; "not_sent" if Redis did not take it after the commit.
        due: when it is due (aware datetime; for a ``delay`` by this machine's clock, Redis's clock decides).
        error: why it was not sent, else None.
        task: the task, None for raw bytes of a ``pull`` queue.
        durable: whether it has a row in the database until it is done.
        using_db: the database that was named at the call; its verbs wait for the transaction of the same one.
        generation: what tells the job from others of its id; None: the handle means whatever lives.
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
        """The database whose transaction is waited for."""
        return self.using_db or DEFAULT_DB_ALIAS

    @property
    def due(self) -> datetime:
        """When the job is due."""
        return datetime.fromtimestamp(self._due_ms / 1000, UTC)

    @property
    def key(self) -> bytes | None:
        """The key of the job's generation, as ``current_job().key`` has it while the job runs."""
        return None if self.generation is None else self.generation.keys[0]

    def state(self) -> str | None:
        """Return delayed, ready, reserved, gated or morgue; None when Redis does not have the job (any more)."""
        from .verbs import get_job

        view = get_job(self)
        return None if view is None else view.state

    async def astate(self) -> str | None:
        """:meth:`state` for coroutines."""
        return await sync_to_async(self.state)()

    def cancel(self) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
        """See :func:`django_delayq.cancel`."""
        from .verbs import cancel

        return cancel(self)

    async def acancel(self) -> Literal["cancelled", "stopping", False] | OnCommit | Left:
        """See :func:`django_delayq.acancel`."""
        return await sync_to_async(self.cancel)()

    def reschedule(self, *, delay: Delay | None = None, at: datetime | float | None = None) -> bool | OnCommit | Left:
        """See :func:`django_delayq.reschedule`."""
        from .verbs import reschedule

        return reschedule(self, delay=delay, at=at)

    async def areschedule(
        self, *, delay: Delay | None = None, at: datetime | float | None = None
    ) -> bool | OnCommit | Left:
        """See :func:`django_delayq.areschedule`."""
        return await sync_to_async(self.reschedule)(delay=delay, at=at)

    def run_now(self) -> bool | OnCommit | Left:
        """See :func:`django_delayq.run_now`."""
        from .verbs import run_now

        return run_now(self)

    async def arun_now(self) -> bool | OnCommit | Left:
        """See :func:`django_delayq.arun_now`."""
        return await sync_to_async(self.run_now)()
