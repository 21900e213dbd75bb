"""The fetch loop: how many jobs it takes, and jobs that it finds without a wake-up token."""

from __future__ import annotations

import threading
from typing import Any

from django_delayq import current_job
from django_delayq.core import Broker
from tests.support.worker_stage import DEADLINE, config, eventually, is_resting, put, put_unheard, registry_of, working


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


def test_a_job_whose_wake_token_was_lost_is_found(broker: Broker) -> None:
    ran = threading.Event()

    def work() -> None:
        ran.set()

    with working(broker, registry_of(work), config(dispatcher=False, safety_check=0.2)) as worker:
        eventually(lambda: is_resting(worker))
        put_unheard(broker, "work")
        assert ran.wait(DEADLINE)


def test_jobs_of_a_reserve_whose_reply_was_lost_run_uncounted_when_their_leases_end(
    connection: Any, prefix: str
) -> None:
    broker = Broker(connection, prefix=prefix, lease_ms=1000)
    attempts: list[int] = []

    def work() -> None:
        attempts.append(current_job().attempt)

    put(broker, "work")
    queue = broker.queue("default")
    assert queue.reserve(queue.numbers[0], 1, worker="me").jobs, "applied, but the worker never gets the reply"
    with working(broker, registry_of(work), config(name="me", heartbeat=0.1)):
        eventually(lambda: attempts)
    assert attempts == [1]
