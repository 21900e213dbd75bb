"""What is done to jobs of a tube, without a handle: Grape's verbs name an id only."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ...conf import SETTING, conf
from ...core.errors import InvalidJob
from ...core.job import Job, NewJob, Settlement
from ...joboptions import due_ms_here
from ...pull import figures
from ...pull.held import RAW, give_back
from ...pull.hub import hub
from ...pull.search import Search, Terms
from ...signals import emit, job_scheduled
from .base import SHORTEST_TTR_MS

if TYPE_CHECKING:
    from ...core.queue import Queue
    from ...core.views import JobView

#: ms that a job is held which was not produced here, so that nobody said how long
_DEFAULT_TTR_MS: Final = 60_000


def put(queue: Queue, ident: str, data: bytes, dtr_ms: int, ttr_ms: int) -> bool:
    """Stores a job; False where its id lives.

    Raises:
        InvalidJob: more bytes than are stored. IdTaken, QueueFull, QueuePaused, QueueUnavailable: Redis's answer.
    """
    if len(data) > (most := conf().max_args_bytes):
        raise InvalidJob(
            f"the data has {len(data)} bytes, at most {most} are stored; raise {SETTING}['MAX_ARGS_BYTES']"
        )
    # What Grape keeps in the job's hash: it comes back with the job, and the other interfaces show it as its context.
    options = json.dumps({"context": {"dtr": dtr_ms, "ttr": ttr_ms}}, separators=(",", ":"), sort_keys=True).encode()
    new = NewJob(ident, RAW, data, delay_ms=dtr_ms, options=options, on_conflict="ignore")
    outcome = queue.schedule(new)
    emit(job_scheduled, None, id=ident, queue=queue.name, outcome=outcome,
         due=datetime.fromtimestamp(due_ms_here(new) / 1000, UTC))  # fmt: skip
    return outcome == "created"


def take(queue: Queue, limit: int, worker: str) -> list[dict[str, Any]]:
    """Takes up to ``limit`` due jobs, each for its own ttr."""
    taken = Search(hub(queue.broker), (queue.name,), Terms(limit, _DEFAULT_TTR_MS, worker)).run(time.monotonic())
    jobs = [one.record for one in taken]
    # They come under one lease; a round trip for each other length of it that they want.
    lengths: dict[int, list[Job]] = {}
    for job in jobs:
        lengths.setdefault(_times(job)[1], []).append(job)
    try:
        for ttr_ms, some in lengths.items():
            if ttr_ms != _DEFAULT_TTR_MS:
                queue.touch(some, ttr_ms=ttr_ms)
    except BaseException:  # the caller gets an error, so nobody has them
        give_back(taken)
        raise
    # Grape counts a delivery after it has read the number.
    return [described(job, job.reserves - 1) for job in jobs]


def held(queue: Queue, ident: str) -> Job | None:
    """The job of this id that somebody holds now, with the token of that lease."""
    views = queue.broker.inspector.views
    while True:
        for number in queue.homes(ident):
            for view in views(queue, number, "reserved", [ident.encode()], most_bytes=0):
                return view.job if view.state == "reserved" else None
        if not queue.reload():  # other shards than were known here may have it
            return None


def settle(queue: Queue, ident: str, settlement: Callable[[Job, int, int], Settlement]) -> bool:
    """Ends the present lease of an id; False if nobody holds it.

    Args:
        settlement: of the job, the start of its lease (Unix ms) and how long it was held (ms).
    """
    job = held(queue, ident)
    if job is None:
        return False
    ttr_ms = _times(job)[1]
    started_ms = job.deadline_ms - ttr_ms
    one = settlement(job, started_ms, min(ttr_ms, max(0, int(time.time() * 1000) - started_ms)))
    (counted,) = queue.settle([one])
    if counted:
        figures.note(queue.broker, [one])
    return counted


def buried(views: Iterable[JobView]) -> list[dict[str, Any]]:
    """Jobs of the morgue as Grape shows them."""
    return [described(view.job, view.job.reserves) for view in views]


def described(job: Job, noe: int) -> dict[str, Any]:
    """A job as Grape's clients read it."""
    dtr_ms, ttr_ms = _times(job)
    data = base64.urlsafe_b64encode(job.args).decode().rstrip("=")
    return {"id": job.id, "dtr": dtr_ms, "ttr": ttr_ms, "noe": noe, "data": data}


def _times(job: Job) -> tuple[int, int]:
    """dtr and ttr as they were asked for, ms."""
    dtr_ms, ttr_ms = (job.context.get(name) for name in ("dtr", "ttr"))
    return (
        dtr_ms if type(dtr_ms) is int and dtr_ms >= 0 else 0,
        ttr_ms if type(ttr_ms) is int and ttr_ms >= SHORTEST_TTR_MS else _DEFAULT_TTR_MS,
    )
