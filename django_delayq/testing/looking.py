"""Scheduled jobs as tests see them, and calls that wait for a commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import connections as databases

from ..core.codec import decode, decode_args
from ..core.errors import InvalidJob
from ..core.inputs import short, suggest
from ..core.job import Job, Undecodable
from ..core.task import Task, registry
from ..scheduling.verbs import find_task
from .payloads import ordered
from .state import Content, Due, Grave, Item, Live, ms_of
from .times import datetime_of

if TYPE_CHECKING:
    from ..transactions import OnCommitCall
    from .broker import MemoryBroker
    from .shard import Shard

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
        given = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        if self.payloads:
            given = [f"payloads={self.payloads!r}"]
        more = f", {self.failures} failures" if self.failures else ""
        return f"{self.task}({', '.join(given)}) id={self.id} queue={self.queue} delay={self.delay} {self.state}{more}"


def jobs_of(
    broker: MemoryBroker, task: Task | str | None, queue: str | None, id: str | int | None, state: str | None
) -> list[ScheduledJob]:
    """Return the selected jobs by due time; without ``state`` all but those in the morgue.

    Raises:
        InvalidJob: there is no such state.
    """
    names = None if task is None else names_of(task)
    check_state(state)
    with broker.turn:
        found = [entry for shard in broker.stores() for entry in _entries(shard, graves=state == "morgue")]
    return [
        job
        for _, job in sorted(found, key=lambda entry: entry[0])
        if (names is None or job.task in names)
        and queue in (None, job.queue)
        and (id is None or job.id == str(id))
        and state in (None, job.state)
    ]


def check_state(state: object) -> None:
    """Reject an unknown state, for which no job would ever be found; None = any."""
    if state is not None and state not in STATES:
        raise InvalidJob(f"a job's state is {', '.join(STATES)}, not {short(state)}.{suggest(str(state), STATES)}")


def names_of(task: Task | str) -> set[str]:
    """Return the names under which jobs of a task may be stored."""
    if isinstance(task, str) and registry.get(task) is None:
        return {task}
    found = find_task(task)
    return {found.name, *found.options.aliases}


def _entries(shard: Shard, *, graves: bool) -> Iterator[tuple[tuple[int, str], ScheduledJob]]:
    if graves:
        for (ident, _), grave in shard.graves.items():
            yield (grave.buried, ident), _buried(shard, ident, grave)
        return
    for ident, live in shard.lives.items():
        yield (live.due.place, ident), _live(shard, ident, live)
        if live.gate:
            items = ordered(live.waiting.values())
            yield (live.gate.due.place, ident), _job(shard, ident, live.gate.content, live.gate.due, items, "gated")


def _live(shard: Shard, ident: str, live: Live) -> ScheduledJob:
    if live.lease:
        state, items = "reserved", ordered(live.running.values())
    else:
        state, items = "ready" if live.due.ms <= shard.now_ms else "delayed", ordered(live.waiting.values())
    return _job(shard, ident, live.content, live.due, items, state, live.failures, live.error)


def _buried(shard: Shard, ident: str, grave: Grave) -> ScheduledJob:
    due = Due(grave.buried, ms_of(grave.buried))
    return _job(
        shard, ident, grave.content, due, list(grave.items), "morgue", grave.failures, grave.error, grave.reason
    )


def _job(
    shard: Shard,
    ident: str,
    content: Content,
    due: Due,
    items: list[Item],
    state: str,
    failures: int = 0,
    error: bytes = b"",
    reason: str = "",
) -> ScheduledJob:
    from ..core.operations.views import JobView

    job = Job(
        shard.queue,
        shard.number,
        ident,
        content.task,
        content.key,
        content.args,
        content.options,
        content.priority,
        due.ms,
        error=error,
    )
    try:
        args, kwargs = decode_args(content.args) if not content.merged else ([], {})
    except Undecodable:
        args, kwargs = [content.args], {}  # the raw bytes of a pull queue
    return ScheduledJob(
        content.task,
        args,
        kwargs,
        [decode(item.payload.data) for item in items],
        ident,
        shard.queue,
        datetime_of(due.ms),
        timedelta(milliseconds=due.ms - due.asked_ms),
        content.priority,
        dict(job.context),
        state,
        failures,
        JobView(job, state, due.ms).error,
        reason,
    )


# -- calls that wait for a commit ----------------------------------------------------------------------------------


def late_verbs() -> list[OnCommitCall]:
    """Return the calls queued in the transactions of this thread that were not sent yet."""
    from ..transactions import OnCommitCall

    callbacks = [entry[1] for connection in databases.all(initialized_only=True) for entry in connection.run_on_commit]
    return [callback for callback in callbacks if isinstance(callback, OnCommitCall) and not callback.sent]


def hint_of_commit(waiting: Sequence[OnCommitCall]) -> str:
    """Return a hint about these calls for an error message; empty if there are none."""
    if not waiting:
        return ""
    verbs = [late.what for late in waiting]
    names = ", ".join(f"{what.verb} {what.task.name if what.task else ''} {what.id}".strip() for what in verbs[:5])
    more = " …" if len(verbs) > 5 else ""
    count = "1 job waits" if len(verbs) == 1 else f"{len(verbs)} jobs wait"
    return (
        f"{count} for the commit ({names}{more}); wrap the call in captureOnCommitCallbacks(execute=True), or in "
        "pytest-django's django_capture_on_commit_callbacks(execute=True)"
    )
