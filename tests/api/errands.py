"""Tasks for the tests of the HTTP API, and what looks at the jobs."""

from __future__ import annotations

from typing import Any

from django_delayq import task
from django_delayq.core import outcomes as settlements
from django_delayq.core.broker import Broker
from django_delayq.core.job import Job
from django_delayq.core.job_view import JobView
from django_delayq.core.task import Task
from django_delayq.scheduling.build import plan_of
from tests.support.moments import in_days

#: due time of the first job of the fixture ``stock``, and half an hour later
FIRST = in_days(30)
HALF_PAST = f"{FIRST:%Y-%m-%dT}00:30:00Z"
_ERROR = b'{"class":"OSError","message":"token=abc","traceback":""}'


@task(name="errands.carry", queue="errands", api=True)
def carry(*args: Any, **kwargs: Any) -> None:
    return None


@task(name="errands.greet", queue="errands", api=True, max_attempts=3, priority=2)
def greet(name: str, password: str = "") -> None:
    return None


@task(name="errands.collect", queue="errands", api=True, merge=True)
def collect(payloads_by_id: dict[str, list[Any]]) -> None:
    return None


@task(name="errands.keep", queue="errands", api=True, durable=True)
def keep(number: int = 0) -> None:
    return None


@task(name="errands.secret", queue="errands")
def secret(*args: Any) -> None:
    """Not for the API."""


def put(broker: Broker, one: Task, *args: Any, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
    """A job as schedule() stores it, but at once: a test stands inside a transaction."""
    builder = plan_of(one, {"queue": "errands"}).builder
    broker.queue("errands").schedule(builder.build(args, kwargs or {}, options))


def reserve(broker: Broker, ident: str) -> Job:
    """A worker takes it."""
    (job,) = broker.queue("errands").reserve_id(ident, worker="w1", early=True).jobs
    return job


def fail(broker: Broker, ident: str, times: int = 1, delay_ms: int = 100_000, **how: Any) -> None:
    """It has failed so often, and waits for its next try."""
    for _ in range(times):
        held = reserve(broker, ident)
        settlement = settlements.fail(held, 1, 1, delay_ms=delay_ms, error_class="OSError", error=_ERROR, **how)
        assert broker.queue("errands").settle([settlement]) == [True]


def bury(broker: Broker, ident: str, reason: str = "exhausted") -> None:
    """It is in the morgue, before everything that is buried later."""
    settlement = settlements.bury(reserve(broker, ident), 1, 1, reason=reason, error_class="OSError", error=_ERROR)
    assert broker.queue("errands").settle([settlement]) == [True]
    buried_ms = max(view.buried_ms or 0 for view in broker.inspector.graves("errands", ident))
    while int(broker.now_ms()) <= buried_ms:
        pass


def live(broker: Broker, ident: str, queue: str = "errands") -> JobView:
    """A job that there is."""
    found = broker.inspector.get(queue, ident)
    assert found is not None, f"no job {ident!r} in queue {queue!r}"
    return found


def waiting(broker: Broker, queue: str = "errands") -> list[str]:
    """Ids of what waits, in the order of their due times."""
    return [view.id for view in broker.inspector.page(queue, "waiting", limit=250).jobs]


def buried(broker: Broker) -> list[str]:
    """Ids in the morgue, in the order of their burials."""
    return [view.id for view in broker.inspector.page("errands", "morgue", limit=250).jobs]


def contents(broker: Broker) -> dict[bytes, bytes | None]:
    """Return all keys of this prefix, without metrics and expiring keys; two calls show if anything was stored.

    A timer of an earlier test may still tell Redis the figures of that one.
    """
    client = broker.client
    mine = set(keys_of(broker)) - {broker.key("figures").encode(), broker.key("noted").encode()}
    return {key: client.dump(key) for key in sorted(mine) if client.ttl(key) < 0}


def keys_of(broker: Broker) -> list[bytes]:
    """The keys of this prefix."""
    beginnings = f"{broker.prefix}:".encode(), f"{{{broker.prefix}}}:".encode()
    return [key for key in broker.client.scan_iter(count=1000) if key.startswith(beginnings)]


def ids(answer: tuple[int, Any]) -> list[str]:
    """Return the ids of the jobs in a response."""
    assert answer[0] == 200, answer
    return [job["id"] for job in answer[1]["jobs"]]
