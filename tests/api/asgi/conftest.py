"""Fixtures for tests of the API under ASGI.

asgi         a running uvicorn (:class:`.stage.Server`) with a Redis and a PostgreSQL database of its own, whose queues
             "feed" and "wide" are empty
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_delayq.core import fsck
from django_delayq.core.outcomes import ack
from tests.support.postgres_box import PostgresBox, PostgresDatabase
from tests.support.redis_box import RedisBox

from .stage import Server, environment, prepared, running


@pytest.fixture(scope="session")
def asgi_redis() -> Iterator[RedisBox]:
    """The server's Redis."""
    with RedisBox() as box:
        yield box


@pytest.fixture(scope="session")
def asgi_database(postgres_box: PostgresBox) -> Iterator[PostgresDatabase]:
    """The server's database."""
    with postgres_box.database() as database:
        yield database


@pytest.fixture(scope="session")
def asgi_tokens(asgi_redis: RedisBox, asgi_database: PostgresDatabase) -> tuple[str, str]:
    """Of two users who may consume, produce and view; the database has its tables then."""
    return prepared(environment(asgi_redis.url, asgi_database.url))


@pytest.fixture(scope="session")
def asgi_token(asgi_tokens: tuple[str, str]) -> str:
    """Of the first of them."""
    return asgi_tokens[0]


@pytest.fixture(scope="session")
def _asgi(asgi_redis: RedisBox, asgi_database: PostgresDatabase, asgi_token: str) -> Iterator[Server]:
    with running(environment(asgi_redis.url, asgi_database.url), asgi_token) as server:
        yield server


@pytest.fixture
def asgi(_asgi: Server) -> Iterator[Server]:
    """The server, with empty queues; nobody may wait any more when the test ends."""
    yield _asgi
    _asgi.wait_until(sleeping=0)
    fsck.assert_invariants(_asgi.broker)
    for name in ("feed", "wide"):
        queue = _asgi.broker.queue(name)
        for number in queue.numbers:
            queue.settle([ack(job, 0, 0) for job in queue.leases(number)])
        while found := _asgi.broker.inspector.page(name, "waiting", limit=250).jobs:
            assert {queue.cancel(view.id) for view in found} == {"cancelled"}
        assert _asgi.places(name) in ({}, {"morgue": _asgi.broker.inspector.counts(name).morgue})
