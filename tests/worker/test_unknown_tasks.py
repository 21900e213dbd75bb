"""Jobs whose task a worker does not know: left to workers that know it, and buried when none does for a day."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime

import pytest

from django_delayq import current_job
from django_delayq.core import Broker, Connection, JobView, Registry, Task, release
from tests.support.worker_stage import DEADLINE, assert_invariants, config, eventually, put, run_dry, working

T0 = 1_700_000_000_000
HOUR = 3_600_000


class Site:
    """A deployment on a clock that only the test moves."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.queue = broker.queue("default")
        self.ms = T0
        self.wait(0)

    def wait(self, ms: int) -> None:
        """Move the clock."""
        self.ms += ms
        for number in self.queue.numbers:
            self.broker.client.hset(self.queue.shard(number).names["meta"], "test_clock", self.ms * 1000)

    def view(self, ident: str = "job") -> JobView:
        """Return what is known of a job."""
        return job_of(self.broker, ident)

    def meet(self, registry: Registry | None = None, ident: str = "job") -> float:
        """Let a worker without tasks have the job once; return the delay after which it is due again, in seconds."""
        self.queue.run_now(ident)
        run_dry(self.broker, registry or Registry())
        view = self.view(ident)
        return (view.due_ms - self.ms) / 1000 if view.state == "delayed" else -1.0


@pytest.fixture
def site(connection: Connection, prefix: str) -> Iterator[Site]:
    broker = Broker(connection, prefix=prefix, test_clock=True)
    yield Site(broker)
    assert_invariants(broker)


def give_back(site: Site, times: int) -> None:
    """Reserve the job and release it, as a handler does with ``raise Release()``."""
    for _ in range(times):
        (job,) = site.queue.reserve_id("job", worker="w").jobs
        site.queue.settle([release(job)])


def test_a_job_with_200_releases_is_not_buried_by_the_first_worker_that_does_not_know_its_task(site: Site) -> None:
    put(site.broker, "work", id="job")
    give_back(site, 200)
    assert 0 < site.meet() <= 2, "the first delay is short, however often the job was released before"
    assert site.view().state == "delayed"


def test_a_task_that_no_worker_knows_waits_a_quarter_of_what_it_has_waited_and_is_buried_after_a_day(
    site: Site,
) -> None:
    put(site.broker, "work", id="job")
    waits = (0, 1_000, 9_000, 50_000, HOUR, 20 * HOUR, 3 * HOUR - 65_000)
    delays = []
    for wait in waits:
        site.wait(wait)
        delays.append(site.meet())
    assert all(1 <= delay <= 2 for delay in delays[:2])
    assert delays[2:] == pytest.approx([2.5, 15, 300, 300, 300], rel=0.01)
    site.wait(5_000)
    site.meet()
    view = site.view()
    assert (view.state, view.reason, view.error["class"]) == ("morgue", "unknown task", "UnknownTask")
    assert view.job.failures == 1


class Gate:
    """A task whose first run lasts until the test says so."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.due: dict[str, datetime] = {}
        self.started: dict[str, datetime] = {}

    def work(self) -> None:
        """Note the due time; the job "first" waits."""
        job = current_job()
        assert job is not None
        self.due[job.id] = job.due
        if job.id == "first":
            self.began.set()
            assert self.go.wait(DEADLINE)

    @property
    def registry(self) -> Registry:
        """A registry that knows the task."""
        registry = Registry()
        registry.add(Task(self.work, name="work"))
        return registry


def job_of(broker: Broker, ident: str) -> JobView:
    """Return what is known of a job."""
    view = broker.inspector.get("default", ident)
    assert view is not None
    return view


def when_given_back(broker: Broker, ident: str) -> JobView:
    """Return the job as soon as it was given back."""

    def given_back() -> JobView | None:
        view = broker.inspector.get("default", ident)
        return view if view is not None and view.state == "delayed" else None

    found: JobView = eventually(given_back, "the job is given back")
    return found


def test_a_worker_leaves_a_task_that_it_does_not_know_to_the_one_that_does(broker: Broker) -> None:
    """Deploy skew: the new worker is busy for a moment, so that the old one takes the job."""
    gate = Gate()
    put(broker, "work", id="first")
    with working(broker, gate.registry, config(threads=1, prefetch_ms=0)):
        assert gate.began.wait(DEADLINE)
        eventually(broker.workers, "the new worker is announced")
        put(broker, "work", id="second")
        due_ms = job_of(broker, "second").due_ms
        with working(broker, Registry(), config(threads=1)):
            view = when_given_back(broker, "second")
            assert 500 < view.due_ms - due_ms < 2_500, "a second or two, not half a minute"
            assert view.job.postponed_for == "unknown task"
        gate.go.set()
        eventually(lambda: "second" in gate.due, "the new worker runs the job")
    assert abs(gate.due["second"].timestamp() * 1000 - due_ms) < 1
    eventually(lambda: broker.figures().lateness.get("default"))
    assert broker.figures().lateness["default"].sum_ms > 500, "the wait is a part of the lateness"
