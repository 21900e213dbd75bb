"""Queues with trouble in them, and the tables as pictures, for the tests of the mirrors and of the repair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.core.job import Job, NewJob, new_key
from django_delayq.core.outcomes import bury, fail
from django_delayq.core.queue import Queue
from django_delayq.mirror import Mirror
from django_delayq.models import FailedJob, MorgueJob
from django_delayq.worker.loop import Changes

from . import deeds  # noqa: F401  # registers its tasks, so that their arguments are copied

ERROR = json.dumps({"class": "shop.GatewayDown", "message": "no answer", "traceback": "line 1"}).encode()


class Trouble:
    """A queue in which jobs fail and are buried, and mirrors of it."""

    def __init__(self, broker: Broker, *, shards: int = 1, name: str = "q") -> None:
        self.broker = broker
        self.queue: Queue = broker.queue(name, shards=shards)
        self.changes = Changes()

    # -- acts --------------------------------------------------------------------------------------------------------

    def put(self, *idents: str, task: str = "deeds.note", **options: Any) -> None:
        args = options.pop("args", encode_args(("x",), {}))
        self.queue.schedule_many([NewJob(ident, task, args, key=new_key(), **options) for ident in idents])

    def take(self, *idents: str) -> list[Job]:
        if len(idents) > 50:  # so many were put in a moment ago, and nothing else waits
            jobs: list[Job] = []
            for number in self.queue.numbers:
                while some := self.queue.reserve(number, 250, worker="w").jobs:
                    jobs += some
            assert {job.id for job in jobs} == set(idents)
            return jobs
        found = [self.queue.reserve_id(ident, worker="w", early=True).jobs for ident in idents]
        return [job for jobs in found for job in jobs]

    def _put_missing(self, idents: Sequence[str], **options: Any) -> None:
        self.put(*idents if len(idents) > 50 else [ident for ident in idents if not self.lives(ident)], **options)

    def fail(self, *idents: str, error: bytes = ERROR, delay_ms: int = 600_000, **options: Any) -> None:
        """They are put in and fail, or fail once more."""
        self._put_missing(idents, **options)
        jobs = self.take(*idents)
        assert all(self.queue.settle([fail(job, 1, 2, delay_ms=delay_ms, error=error) for job in jobs]))

    def bury(self, *idents: str, error: bytes = ERROR, reason: str = "exhausted", **options: Any) -> None:
        self._put_missing(idents, **options)
        jobs = self.take(*idents)
        made = [
            bury(job, 1, 2, reason=reason, outcome=reason, error=error, error_class="shop.GatewayDown") for job in jobs
        ]
        assert all(self.queue.settle(made))

    def lives(self, ident: str) -> bool:
        view = self.broker.inspector.get(self.queue.name, ident)
        return view is not None and view.state != "morgue"

    def state(self, ident: str) -> str | None:
        """Return the state of a job in Redis, or None."""
        view = self.broker.inspector.get(self.queue.name, ident)
        return None if view is None else view.state

    def note(self) -> None:
        """A dispatcher saw that something is other than before."""
        for number in self.queue.numbers:
            self.changes.note(self.queue.name, number, "failed")
            self.changes.note(self.queue.name, number, "morgue")

    def mirror(self, *, changes: Changes | None = None, queues: Sequence[Queue] | None = None) -> Mirror:
        served = [self.queue] if queues is None else queues
        return Mirror(self.broker, changes or self.changes, lambda: [q for q in served if not q.deleted])

    def copied(self, mirror: Mirror | None = None) -> dict[str, list[str]]:
        """The tables after a mirror (a new one, which looks at everything) did all that it had to do."""
        finish(mirror or self.mirror())
        return tables()


def finish(mirror: Mirror) -> None:
    """Turn after turn until nothing is left to do, without the pauses that spare the database."""
    while True:
        mirror._next_turn = 0.0
        for shadow in mirror._mirrors.values():
            shadow.review_at = 0.0
        mirror.run()
        if all(shadow.due_at == float("inf") for shadow in mirror._mirrors.values()):
            return


def tables() -> dict[str, list[str]]:
    """Ids of the rows, in order."""
    return {
        "failed": sorted(f"{row.job_id} x{row.failures}" for row in FailedJob.objects.all()),
        "morgue": sorted(f"{row.job_id} {row.reason}" for row in MorgueJob.objects.all()),
    }
