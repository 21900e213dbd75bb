"""Scheduled jobs as tests see them, and calls that wait for a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import connections as databases

from ..core.codec import decode
from ..core.errors import InvalidJob
from ..core.inputs import short, suggest
from ..core.job import Payload, Undecodable
from ..core.job_view import JobView
from ..core.records.frames import digest, held_digests, unpack_state
from ..core.task import Task, registry
from ..core.times import datetime_of
from ..scheduling.build import find_task
from .faults import reachable

if TYPE_CHECKING:
    from ..transactions import OnCommitCall
    from .broker import MemoryBroker

#: possible states of a job
STATES: Final = ("delayed", "ready", "reserved", "gated", "morgue")


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """Job in the queue.

    ``state``: delayed, ready, reserved, gated (it waits behind a running attempt of its id) or morgue. ``delay`` counts
    from the moment at which the due time was set. ``args`` and ``kwargs`` are as the task will receive them; merged
    jobs have ``payloads`` instead.
    """

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    payloads: list[Any]
    id: str
    queue: str
    due: datetime
    delay: timedelta
    priority: int
    context: dict[str, Any]
    state: str
    failures: int
    #: the last error: class, message, traceback
    error: dict[str, Any] = field(default_factory=dict)
    #: why it is in the morgue
    reason: str = ""

    def __str__(self) -> str:
        values = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        if self.payloads:
            values = [f"payloads={self.payloads!r}"]
        more = f", {self.failures} failures" if self.failures else ""
        return f"{self.task}({', '.join(values)}) id={self.id} queue={self.queue} delay={self.delay} {self.state}{more}"


def jobs_of(
    broker: MemoryBroker, task: Task | str | None, queue: str | None, id: str | int | None, state: str | None
) -> list[ScheduledJob]:
    """Return the selected jobs by due time; without ``state`` all but those in the morgue.

    Raises:
        InvalidJob: there is no such state.
    """
    names = None if task is None else names_of(task)
    check_state(state)
    places = ("morgue",) if state == "morgue" else ("waiting", "reserved")
    with reachable(broker):
        entries = [
            entry
            for name in broker.queue_names()
            if queue in (None, name)
            for place in places
            for view in _pages(broker, name, place)
            for entry in _jobs(broker, view)
        ]
    return [
        job
        for _, job in sorted(entries, key=lambda entry: entry[0])
        if (names is None or job.task in names) and (id is None or job.id == str(id)) and state in (None, job.state)
    ]


def check_state(state: object) -> None:
    """Reject an unknown state, which no job can have; None = any."""
    if state is not None and state not in STATES:
        raise InvalidJob(f"a job's state is {', '.join(STATES)}, not {short(state)}.{suggest(str(state), STATES)}")


def names_of(task: Task | str) -> set[str]:
    """Return the names under which jobs of a task may be stored."""
    if isinstance(task, str) and registry.get(task) is None:
        return {task}
    registered = find_task(task)
    return {registered.name, *registered.options.aliases}


def _pages(broker: MemoryBroker, queue: str, place: str) -> Iterator[JobView]:
    cursor = ""
    while True:
        page = broker.inspector.page(queue, place, cursor=cursor, limit=250)
        yield from page.jobs
        cursor = page.cursor
        if not cursor:
            return


def _jobs(broker: MemoryBroker, view: JobView) -> Iterator[tuple[tuple[int, int], ScheduledJob]]:
    """Yield the job of a view and the content gated behind it, each with its place among the other jobs."""
    job = view.job
    if view.state == "morgue":
        buried_ms = view.buried_ms or 0
        yield (buried_ms, 0), _job(view, view.payloads, buried_ms, buried_ms)
        return
    running, waiting = _payloads(broker, view) if job.merged else ([], [])
    yield _placed(broker, view, running if view.state == "reserved" else waiting)
    if view.gated is not None:
        yield _placed(broker, view.behind(), waiting)


def _payloads(broker: MemoryBroker, view: JobView) -> tuple[list[Payload], list[Payload]]:
    """Return the payloads that the running attempt of a merged job holds, and all others."""
    job = view.job
    held: set[bytes] = set()
    if view.state == "reserved":
        stored = broker.client.hget(broker.shard(job.queue, job.shard).names["state"], job.id)
        held.update(held_digests(unpack_state(stored)))
    running: list[Payload] = []
    waiting: list[Payload] = []
    for payload in broker.inspector.payloads(job.queue, job.id):
        name = digest(payload.data)
        (running if name in held else waiting).append(payload)
        held.discard(name)  # a second payload with equal bytes waits
    return running, waiting


def _placed(broker: MemoryBroker, view: JobView, payloads: Sequence[Payload]) -> tuple[tuple[int, int], ScheduledJob]:
    job = view.job
    entry = broker.server.agenda.entry_of(job.queue, job.shard, job.id, gated=view.state == "gated")
    set_ms, arrival = (entry.set_ms, entry.arrival) if entry is not None else (view.due_ms, 0)
    return (view.due_ms, arrival), _job(view, payloads, view.due_ms, set_ms)


def _job(view: JobView, payloads: Sequence[Payload], due_ms: int, set_ms: int) -> ScheduledJob:
    job = view.job
    try:
        args, kwargs = view.arguments if not job.merged else ([], {})
    except Undecodable:
        args, kwargs = [job.args], {}  # the raw bytes of a pull queue
    return ScheduledJob(
        job.task,
        args,
        kwargs,
        [decode(payload.data) for payload in payloads],
        job.id,
        job.queue,
        datetime_of(due_ms),
        timedelta(milliseconds=due_ms - set_ms),
        job.priority,
        dict(job.context),
        view.state,
        job.failures,
        view.error,
        view.reason,
    )


# -- calls that wait for a commit ----------------------------------------------------------------------------------


def waiting_calls() -> list[OnCommitCall]:
    """Return the calls queued in the transactions of this thread that were not sent yet."""
    from ..transactions import OnCommitCall

    callbacks = [entry[1] for connection in databases.all(initialized_only=True) for entry in connection.run_on_commit]
    return [callback for callback in callbacks if isinstance(callback, OnCommitCall) and not callback.sent]


def hint_of_commit(waiting: Sequence[OnCommitCall]) -> str:
    """Return a hint about these calls for an error message; empty if there are none."""
    if not waiting:
        return ""
    calls = [call.what for call in waiting]
    names = ", ".join(f"{call.verb} {call.task.name if call.task else ''} {call.id}".strip() for call in calls[:5])
    more = " …" if len(calls) > 5 else ""
    count = "1 job waits" if len(calls) == 1 else f"{len(calls)} jobs wait"
    return (
        f"{count} for the commit ({names}{more}); wrap the call in captureOnCommitCallbacks(execute=True), or in "
        "pytest-django's django_capture_on_commit_callbacks(execute=True)"
    )
