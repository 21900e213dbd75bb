"""The fetch loop: how many jobs it takes, and jobs that it finds without a wake-up token."""

from __future__ import annotations

import threading

import pytest

from django_delayq.core import Broker
from django_delayq.core.records import keys
from django_delayq.worker import rest

from .support import DEADLINE, config, eventually, put, registry_of, working


def test_a_worker_takes_no_more_jobs_than_it_is_allowed_to(broker: Broker) -> None:
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)

    put(broker, "work", 0)
    with working(broker, registry_of(work), config(max_jobs=3)) as worker:
        eventually(lambda: ran)
        queue = broker.queue("default")
        of_one_shard = [ident for ident in map(str, range(100)) if queue.shard_of(ident) == 0][:5]
        for number, ident in enumerate(of_one_shard):
            put(broker, "work", number, id=ident, delay_ms=200)
        assert worker.done.wait(DEADLINE)
    assert len(ran) == 3


def test_a_job_whose_wake_token_was_lost_is_found(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = threading.Event()

    def work() -> None:
        ran.set()

    monkeypatch.setattr(rest, "SAFETY_CHECK", 0.2)
    with working(broker, registry_of(work), config(dispatcher=False)) as worker:
        eventually(lambda: worker._selector is not None and worker._selector.resting)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(keys, "wake_key", lambda prefix, queue: f"{prefix}:{queue}:where nobody listens")
            put(Broker(broker.connection, prefix=broker.prefix), "work")
        assert ran.wait(DEADLINE)
