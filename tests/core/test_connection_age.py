"""``max_connection_age``: old connections are replaced, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.core import Broker, Connection, Inspector, Misconfigured, NewJob, RedisConfig, connect
from tests.support.worker_stage import config, put, registry_of, working


class Clock:
    """Clock for the ages of connections that only the test moves."""

    def __init__(self) -> None:
        self.passed = 0.0
        self._own = time.monotonic

    def monotonic(self) -> float:
        return self._own() + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


@pytest.fixture
def aged(redis_setting: Any) -> Iterator[Callable[[float | None], Connection]]:
    """Return a function that connects to the test run's Redis with the given ``max_connection_age``."""
    made: list[Connection] = []

    def make(age: float | None) -> Connection:
        setting = redis_setting if isinstance(redis_setting, dict) else {"URL": redis_setting}
        made.append(connect(RedisConfig.parse({**setting, "MAX_CONNECTION_AGE": age})))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> None:
    """Close all other connections to the test run's Redis; threads of earlier tests may hold some."""
    if "redis_client" in request.fixturenames:
        request.getfixturevalue("redis_client").client_kill_filter(_type="normal", skipme=True)


def lines_of(client: redis.Redis) -> set[str]:
    """Return the ids of the connections whose last command was a script."""
    return {line["id"] for line in client.client_list() if line["cmd"].startswith("eval")}


def test_a_line_is_made_anew_when_it_is_old(
    aged: Callable[..., Connection], prefix: str, clock: Clock, redis_client: redis.Redis
) -> None:
    queue = Broker(aged(60), prefix=prefix).queue("q")
    queue.schedule(NewJob("a", "work"))
    before = lines_of(redis_client)
    clock.passed = 40
    queue.schedule(NewJob("b", "work"))
    assert lines_of(redis_client) == before
    clock.passed = 61
    queue.schedule(NewJob("c", "work"))
    (after,) = lines_of(redis_client)
    assert {after}.isdisjoint(before)
    assert Inspector(queue.registry).counts("q").ready == 3
    ageless = Broker(aged(None), prefix=prefix).queue("q")
    ageless.schedule(NewJob("d", "work"))
    stays = lines_of(redis_client) - {after}
    assert queue.schedule_many(NewJob(f"j{n}", "work") for n in range(600)) == ["created"] * 600
    clock.passed = 122
    assert queue.schedule_many(NewJob(f"k{n}", "work") for n in range(600)) == ["created"] * 600
    assert {after}.isdisjoint(lines_of(redis_client))
    ageless.schedule(NewJob("d", "work"))
    assert stays <= lines_of(redis_client), "without the option a line stays"


def test_what_is_idle_and_old_is_closed_with_the_first_old_one_that_is_used(
    aged: Callable[..., Connection], prefix: str, clock: Clock, redis_client: redis.Redis
) -> None:
    connection = aged(60)
    queue = Broker(connection, prefix=prefix).queue("q")
    with connection.client.client() as one, connection.client.client() as two:  # type: ignore[union-attr]
        before = {str(one.client_id()), str(two.client_id())}
    clock.passed = 61
    queue.schedule(NewJob("b", "work"))
    assert before.isdisjoint(line["id"] for line in redis_client.client_list())


def test_a_waker_says_when_another_one_should_take_its_place(
    aged: Callable[..., Connection], prefix: str, clock: Clock
) -> None:
    old, ageless = (Broker(aged(age), prefix=prefix).waker(["q"]) for age in (60, None))
    assert (old.is_old(), ageless.is_old()) == (False, False)
    clock.passed = 61
    assert (old.is_old(), ageless.is_old()) == (True, False)


def test_a_worker_listens_on_another_connection_when_the_first_is_old(
    aged: Callable[..., Connection], prefix: str
) -> None:
    """A tenth of a second old, in fact: every wait gets a new one, and no job is missed."""
    broker = Broker(aged(0.1), prefix=prefix)
    made: list[Any] = []
    make, done = broker.waker, threading.Semaphore(0)

    def counted(queues: Any) -> Any:
        made.append(make(queues))
        return made[-1]

    def work() -> None:
        done.release()

    broker.waker = counted  # type: ignore[method-assign]
    with working(broker, registry_of(work), config(dispatcher=False)):
        for _ in range(10):
            put(broker, "work")
            assert done.acquire(timeout=10)
            threading.Event().wait(0.12)  # what passes here is time: the connections age
    assert len(made) > 3
    assert len(set(map(id, made))) == len(made)


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, 30 * 86_400 + 1])
def test_an_age_is_a_number_of_seconds(wrong: object) -> None:
    with pytest.raises(Misconfigured, match="MAX_CONNECTION_AGE must be a number of seconds"):
        RedisConfig.parse({"URL": "redis://h", "MAX_CONNECTION_AGE": wrong})
