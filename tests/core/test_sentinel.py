"""Verbs over Sentinel: they follow the master and load missing scripts."""

from __future__ import annotations

from contextlib import suppress

from django_delayq.core import Broker, NewJob, QueueUnavailable, RedisConfig, ack, connect
from tests.support.core_stored import assert_invariants

from ..support.processes import wait_until
from ..support.sentinel_box import SentinelBox


def test_after_a_failover_the_verbs_go_on_at_the_new_master(sentinel_box: SentinelBox) -> None:
    connection = connect(RedisConfig.parse({"SENTINELS": sentinel_box.addresses, "MASTER": sentinel_box.name}))
    try:
        queue = Broker(connection).queue("orders")
        assert queue.schedule(NewJob("before", "work")) == "created"
        assert queue.schedule(NewJob("far", "work", delay_ms=3_600_000)) == "created"
        (held,) = queue.reserve(0, 10, worker="w").jobs
        master = sentinel_box.first.client()
        master.set("mark", 1)  # WAIT waits for what its own connection wrote last
        assert master.wait(1, 5000) == 1, "the replica has it all"

        sentinel_box.fail_over()

        def follows() -> bool:
            with suppress(QueueUnavailable):
                return queue.schedule(NewJob("after", "work", on_conflict="ignore")) in ("created", "ignored")
            return False

        wait_until(follows, timeout=20)
        assert queue.settle([ack(held, 0, 0)]) == [True]
        assert [job.id for job in queue.reserve(0, 10, worker="w").jobs] == ["after"]
        assert_invariants(Broker(queue.deployment.connection))
    finally:
        connection.close()
