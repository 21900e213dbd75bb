"""Scheduled jobs as tests see them, and assertions about them, with messages that list jobs and the nearest match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

from django.db import connections as databases

from ..core.codec import decode, encode
from ..core.errors import InvalidJob
from ..core.inputs import short, suggest
from ..core.job import Payload, Undecodable
from ..core.job_view import JobView
from ..core.records.frames import digest, held_digests, unpack_state
from ..core.task import Task, registry
from ..core.times import datetime_of
from ..scheduling.build import explicit, find_task
from .clock import ms_of_delta, ms_of_moment

if TYPE_CHECKING:
    from ..transactions import OnCommitCall
    from .redis import MemoryBroker

#: possible states of a job
STATES: Final = ("delayed", "ready", "reserved", "gated", "morgue")
#: default tolerance for a due time
TOLERANCE: Final = timedelta(seconds=1)
#: scheduled jobs that an error message lists
_LISTED: Final = 20


class ScheduledJob:
    """Job in the queue, as it was when it was read.

    Attributes:
        task, id, queue, priority, group, context, failures: of the job; ``group`` is "" if it has none.
        args, kwargs: as the task will receive them.
        payloads: of a merged job, which has no arguments.
        state: delayed, ready, reserved, gated (it waits behind a running attempt of its id) or morgue.
        due: due time; of a job in the morgue, when it was buried.
        delay: time until then by the clock of the queue; zero if it has passed.
        error: the last error: class, message, traceback.
        reason: why it is in the morgue.
    """

    def __init__(self, view: JobView, payloads: Sequence[Payload], now_ms: int) -> None:
        job = view.job
        self.task, self.id, self.queue, self.priority = job.task, job.id, job.queue, job.priority
        self.group, self.context, self.failures = job.group, dict(job.context), job.failures
        self.state, self.error, self.reason = view.state, view.error, view.reason
        due_ms = view.due_ms if view.buried_ms is None else view.buried_ms
        self.due, self.delay = datetime_of(due_ms), timedelta(milliseconds=max(0, due_ms - now_ms))
        self.args: list[Any] = []
        self.kwargs: dict[str, Any] = {}
        self.payloads = [decode(payload.data) for payload in payloads]
        try:
            if not job.merged:
                self.args, self.kwargs = view.arguments
        except Undecodable:
            self.args = [job.args]  # the raw bytes of a pull queue

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScheduledJob) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"<ScheduledJob {self}>"

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
    _check_state(state)
    places = ("morgue",) if state == "morgue" else ("waiting", "reserved")
    with broker.reachable():
        jobs = [
            job
            for name in broker.queue_names()
            if queue in (None, name)
            for place in places
            for job in _read(broker, name, place)
        ]
    return [
        job
        for job in sorted(jobs, key=lambda job: job.due)
        if (names is None or job.task in names) and (id is None or job.id == str(id)) and state in (None, job.state)
    ]


def names_of(task: Task | str) -> set[str]:
    """Return the names under which jobs of a task may be stored."""
    if isinstance(task, str) and registry.get(task) is None:
        return {task}
    registered = find_task(task)
    return {registered.name, *registered.options.aliases}


def _check_state(state: object) -> None:
    if state is not None and state not in STATES:
        raise InvalidJob(f"a job's state is {', '.join(STATES)}, not {short(state)}.{suggest(str(state), STATES)}")


def _read(broker: MemoryBroker, queue: str, place: str) -> Iterator[ScheduledJob]:
    cursor = None
    while cursor != "":
        page = broker.inspector.page(queue, place, cursor=cursor or "", limit=250)
        cursor = page.cursor
        for view in page.jobs:
            yield from _jobs(broker, view)


def _jobs(broker: MemoryBroker, view: JobView) -> Iterator[ScheduledJob]:
    """Yield the job of a view and the content gated behind it, each with its own payloads."""
    job, now_ms = view.job, broker.clock.now_ms
    held, payloads = [], list(view.payloads)
    if job.merged and view.state != "morgue":
        payloads = list(broker.inspector.payloads(job.queue, job.id))
    if payloads and view.state == "reserved":
        state = unpack_state(broker.client.hget(broker.shard(job.queue, job.shard).names["state"], job.id))
        for name in held_digests(state):  # a second payload with equal bytes waits
            held.append(next(payload for payload in payloads if digest(payload.data) == name))
            payloads.remove(held[-1])
    yield ScheduledJob(view, held or payloads, now_ms)
    if view.gated is not None:
        yield ScheduledJob(view.behind(), payloads, now_ms)


# -- assertions --------------------------------------------------------------------------------------------------------


class Expected(TypedDict, total=False):
    """Attributes by which a job is asserted; None = any value."""

    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    id: str | int | None
    queue: str | None
    delay: timedelta | float | None
    at: datetime | float | None
    within: timedelta | float | None
    payloads: Sequence[Any] | None
    context: Mapping[str, Any] | None
    priority: int | None
    group: str | None
    state: str | None
    failures: int | None


class Expectation:
    """Expected attributes of a job of a task. Each one that is not None is one condition."""

    def __init__(self, task: str, expected: Expected) -> None:
        if unknown := expected.keys() - Expected.__annotations__.keys():
            names = ", ".join(Expected.__annotations__)
            raise TypeError(f"a scheduled job is not asserted by {min(unknown)}=; use one of {names}")
        self.task = task
        given = {name: value for name, value in expected.items() if value is not None}
        self._expected = {name: _CHECKED[name](value) if name in _CHECKED else value for name, value in given.items()}
        _check_state(expected.get("state"))
        self._within = self._expected.pop("within", TOLERANCE)

    def misses(self, job: ScheduledJob) -> list[str]:
        """Return descriptions of the attributes of a job that differ from the expected ones."""
        values = {**vars(job), "at": job.due}
        return [
            f"{name} is {_text(values[name])}, not {_text(wanted)}"
            for name, wanted in self._expected.items()
            if not self._is_met(name, values[name], wanted)
        ]

    def _is_met(self, name: str, value: Any, wanted: Any) -> bool:
        if name in ("delay", "at"):
            return bool(abs(value - wanted) <= self._within)
        try:  # also as it is after it was stored and read: tuples become lists
            return bool(value == wanted or value == decode(encode(wanted)))
        except InvalidJob:  # an object like mock.ANY, which was compared before
            return False

    def __str__(self) -> str:
        conditions = ", ".join(f"{name}={_text(wanted)}" for name, wanted in self._expected.items())
        return f"{self.task} with {conditions}" if conditions else self.task


def _delta(value: timedelta | float) -> timedelta:
    return timedelta(milliseconds=ms_of_delta(value))


#: how expected values are compared
_CHECKED: Final[dict[str, Callable[[Any], Any]]] = {
    "args": lambda value: list(explicit(value, None)[0]),
    "kwargs": lambda value: explicit(None, value)[1],
    "id": str,
    "delay": _delta,
    "within": _delta,
    "at": lambda value: datetime_of(ms_of_moment(value)),
}


def check_scheduled(
    expected: Expectation, of_task: Sequence[ScheduledJob], others: Sequence[ScheduledJob], count: int | None, hint: str
) -> list[ScheduledJob]:
    """Return the jobs that match; ``hint`` is appended to the error message.

    Raises:
        AssertionError: no job matches, or their number differs from ``count``.
    """
    matches = [job for job in of_task if not expected.misses(job)]
    if (matches and count is None) or len(matches) == count:
        return matches
    number = "no job" if not matches else "1 job" if len(matches) == 1 else f"{len(matches)} jobs"
    required = "" if count is None else f", expected {count}"
    lines = [f"{number} of {expected} {'are' if len(matches) > 1 else 'is'} scheduled{required}"]
    if not matches and of_task:
        misses, nearest = min(((expected.misses(job), job) for job in of_task), key=lambda entry: len(entry[0]))
        lines.append(f"nearest: {nearest}\n    {'; '.join(misses)}")
    lines += _listed([*of_task, *(job for job in others if job not in of_task)])
    raise AssertionError("\n".join(filter(None, [*lines, hint])))


def _listed(jobs: Sequence[ScheduledJob]) -> list[str]:
    if not jobs:
        return ["no jobs are scheduled"]
    more = [f"    … and {len(jobs) - _LISTED} more"] if len(jobs) > _LISTED else []
    return ["scheduled jobs:", *(f"    {job}" for job in jobs[:_LISTED]), *more]


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (timedelta, datetime)) else repr(value)


# -- calls that wait for a commit --------------------------------------------------------------------------------------


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
