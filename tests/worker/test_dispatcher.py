"""The dispatcher takes expired leases away, but not after an outage in which nobody could renew them."""

from __future__ import annotations

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.connection import Connection
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.task import Registry
from django_delayq.worker.dispatcher import Patrol
from django_delayq.worker.weather import Weather

from .support import eventually, put

LEASE = 0.03
HEARTBEAT = 0.01


@pytest.fixture
def broker(connection: Connection, prefix: str) -> Broker:
    return Broker(connection, prefix=prefix, lease_ms=int(LEASE * 1000))


@pytest.fixture
def forgotten(broker: Broker) -> str:
    """A reserved job whose lease ran out."""
    ident = put(broker, "work")
    broker.queue("default").reserve(0, 1, worker="gone")
    (lease,) = broker.queue("default").leases(0)
    eventually(lambda: broker.now_ms() > lease.deadline_ms, "the end of the lease")
    return ident


def state(broker: Broker, ident: str) -> str:
    view = broker.inspector.get("default", ident)
    assert view is not None
    return view.state


def patrol(broker: Broker, weather: Weather) -> Patrol:
    queue = broker.queue("default")
    return Patrol(lambda: [queue], Registry(), LEASE, HEARTBEAT, weather)


def test_an_expired_lease_is_taken_away(broker: Broker, forgotten: str) -> None:
    guard = patrol(broker, Weather())
    # Not by the first look alone: an answer that takes a tenth of so short a lease means a hold for one lease.
    eventually(lambda: guard.run() >= 0 and state(broker, forgotten) == "ready", "the end of the lost lease")


def test_the_first_call_that_comes_through_after_an_outage_takes_nothing_away(broker: Broker, forgotten: str) -> None:
    weather = Weather()
    guard = patrol(broker, weather)
    weather.storm("test", QueueUnavailable("cut"))
    eventually(lambda: weather.lasting() > HEARTBEAT, "an outage that is long enough")
    guard.run()
    assert state(broker, forgotten) == "reserved"
    weather.fine()
    assert weather.lasting() == 0
    eventually(lambda: guard.run() and state(broker, forgotten) == "ready", "the end of the hold")
