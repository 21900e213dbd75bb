"""Shared set-up of the tests of bulk operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from django_delayq.core import Broker, Inspector, JobView, NewJob, Payload, Queue, bury, fail
from django_delayq.core.actions import (
    Action,
    Discard,
    Kick,
    cancel as cancel_action,
    cancel_selected,
    reschedule as reschedule_action,
    reschedule_selected,
    retry_failed,
)
from django_delayq.core.bulk import (
    CANCEL,
    DELETE_FAILED,
    DISCARD,
    KILL_FAILED,
    RUN_NOW,
    Progress,
    Verb,
    act_in_shard,
    change,
    kick,
)
from django_delayq.core.job_filter import JobFilter
from django_delayq.core.reading import SEARCHED, Accepts
from django_delayq.core.records.frames import CHUNK as SELECTED_AT_ONCE
from django_delayq.core.snapshot import Part, read_entries, read_jobs
from tests.support.core_values import new_key

from .stage import Stage


def _on_all(verb: Verb) -> Callable[..., dict[str, int]]:
    def act(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
        return dict(change(queue, verb, progress=progress).counts)

    return act


cancel_all, run_all_now = _on_all(CANCEL), _on_all(RUN_NOW)
kill_failed, delete_failed = _on_all(KILL_FAILED), _on_all(DELETE_FAILED)


def discard_all(queue: Queue, *, before_ms: float | None = None, progress: Progress | None = None) -> dict[str, int]:
    return dict(change(queue, DISCARD, JobFilter(buried_before_ms=before_ms), progress=progress).counts)


def kick_all(
    queue: Queue,
    *,
    delay_ms: int = 0,
    per_second: float | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    first_ms = int(Inspector(queue.registry).counts(queue.name).now_ms) + delay_ms
    action = Kick(delay_ms, per_second=per_second, first_ms=first_ms, replace=replace)
    return dict(change(queue, Verb("morgue", action), progress=progress).counts)


def kick_many(
    queue: Queue, selected: Iterable[str | tuple[str, bytes]], *, delay_ms: int = 0, replace: bool = False
) -> dict[str, int]:
    """Kick the youngest record of an id, or the record of an id and a key."""
    return _on_records(queue, selected, Kick(delay_ms, replace=replace))


def discard_many(queue: Queue, selected: Iterable[str | tuple[str, bytes]]) -> dict[str, int]:
    return _on_records(queue, selected, Discard())


def _on_records(queue: Queue, selected: Iterable[str | tuple[str, bytes]], action: Action) -> dict[str, int]:
    outcomes: Counter[str] = Counter()
    named: dict[int, list[tuple[str, bytes]]] = {}
    for one in selected:
        if isinstance(one, str):
            outcomes[action.anywhere(queue, one)] += 1
        else:
            graves = Inspector(queue.registry).graves(queue.name, one[0])
            place = next((view.job.shard for view in graves if view.job.key == one[1]), queue.shard_of(one[0]))
            named.setdefault(place, []).append(one)
    for number, mine in named.items():
        outcomes.update(act_in_shard(queue, number, mine, action))
    return dict(outcomes)


def search(
    broker: Broker, condition: str | Accepts, *, places: Iterable[str] = SEARCHED, queue: str = "q"
) -> Iterator[JobView]:
    """Yield the jobs of some places that have a text, or for which a function returns True, page by page."""
    where, accepts = (JobFilter(text=condition), None) if isinstance(condition, str) else (JobFilter(), condition)
    for place in places:
        page = broker.inspector.page(queue, place, where=where, accepts=accepts)
        yield from page.jobs
        while page.cursor:
            page = broker.inspector.page(queue, place, where=where, accepts=accepts, cursor=page.cursor)
            yield from page.jobs


def merged_jobs(ids: int, payloads: int) -> Iterator[NewJob]:
    for number in range(payloads):
        for ident in range(ids):
            payload = Payload(b"%d of m%d" % (number, ident), str(number), new_key())
            yield NewJob(f"m{ident}", "sync", payload=payload, on_conflict="merge", due_policy="keep")


def fail_all(stage: Stage, **options: object) -> None:
    for number in stage.queue.numbers:
        while jobs := stage.take(250, number=number):
            assert all(stage.settle(*(fail(job, 1, 2, delay_ms=60_000, **options) for job in jobs)))  # type: ignore[arg-type]


def bury_all(queue: Queue) -> None:
    for number in queue.numbers:
        while jobs := queue.reserve(number, 250, worker="w").jobs:
            assert all(queue.settle([bury(job, 1, 2, reason="why") for job in jobs]))


def everything_in_morgue(stage: Stage, n: int) -> None:
    stage.queue.schedule_many(NewJob(f"j{number}", "work") for number in range(n))
    bury_all(stage.queue)


class ProgressLog:
    """Progress callback that records its calls and runs ``act`` at each of them."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.steps: list[tuple[int, int]] = []
        self.act = act

    def __call__(self, seen: int, total: int) -> None:
        self.steps.append((seen, total))
        self.act()
