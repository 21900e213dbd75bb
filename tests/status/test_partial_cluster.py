"""Views of a deployment while a master of its Redis Cluster is away: they show the rest, and name what is missing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from django_delayq import connections, limits
from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.job import NewJob
from django_delayq.metrics import definitions
from django_delayq.metrics.definitions import measure
from django_delayq.status import take
from tests.management.stage import run, told
from tests.support.api_caller import ALL, make_caller
from tests.support.cluster_box import ClusterBox
from tests.support.redis_box import RedisBox

pytestmark = [pytest.mark.django_db, pytest.mark.one_server("it kills a master")]
SHARDS = 12
JOBS = 60


@dataclass
class World:
    """Deployment on a cluster, with a queue on all masters."""

    cluster: ClusterBox
    broker: DjangoBroker

    @property
    def registry_node(self) -> RedisBox:
        """Master with the registry."""
        return self.cluster.node_of(self.broker.queues_key)

    @property
    def other_node(self) -> RedisBox:
        """Master without it."""
        return next(node for node in self.cluster.nodes if node is not self.registry_node)

    def shards_on(self, node: RedisBox) -> list[int]:
        """Return the shards of the queue on this master."""
        queue = self.broker.queue("spread")
        return [n for n in queue.numbers if self.cluster.node_of(queue.shard(n).keys[0]) is node]

    def jobs_on(self, node: RedisBox) -> int:
        """Return the number of jobs on this master."""
        queue = self.broker.queue("spread")
        return sum(counts.delayed for counts in self.broker.inspector.count_each_shard(queue, self.shards_on(node)))


@pytest.fixture
def world(cluster_box: ClusterBox, prefix: str, settings: Any) -> Iterator[World]:
    """The world before the outage: 60 delayed jobs in 12 shards, read once by this process."""
    cluster_box.flush()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": cluster_box.setting, "PREFIX": prefix}
    connections.close_broker()
    broker = connections.hurried_broker()
    queue = broker.queue("spread", shards=SHARDS)
    queue.schedule_many([NewJob(f"job-{n}", "none.such", delay_ms=3_600_000) for n in range(JOBS)])
    made = World(cluster_box, broker)
    assert all(made.shards_on(node) for node in cluster_box.nodes)
    yield made
    cluster_box.flush()
    connections.close_broker()


def test_a_snapshot_has_the_living_masters_and_names_the_dead_one(world: World) -> None:
    dead, left = world.other_node, JOBS - world.jobs_on(world.other_node)
    missing = len(world.shards_on(dead))
    dead.kill()
    snapshot = take(world.broker)
    assert snapshot.totals.delayed == left
    (part,) = snapshot.unreachable
    assert (part.shards, part.registry) == ({"spread": missing}, False)
    assert f":{dead.port}" in part.slots and part.slots.startswith("slots ")
    assert snapshot.has_registry


def test_limits_are_those_of_the_living_masters_unless_the_limiter_is_away(world: World) -> None:
    world.broker.queue("spread").schedule_many([NewJob(f"due-{n}", "none.such", group=f"g{n}") for n in range(24)])
    limits.set("spread", concurrency=4)
    (page,) = take(world.broker).limits
    assert (page.due, [(one.name, one.jobs) for one in page.waiting]) == (24, [("queue spread", 20)])
    world.other_node.kill()
    snapshot = take(world.broker)
    (page,) = snapshot.limits
    assert page.unreachable and 0 < page.due == snapshot.queues[0].counts.parked < 24
    assert [(one.name, one.jobs) for one in page.waiting] == [("queue spread", page.due - 4)]
    world.registry_node.kill()
    assert take(world.broker).limits == ()


def test_without_the_registry_a_snapshot_has_the_queues_that_the_process_knows(world: World) -> None:
    dead = world.registry_node
    left = JOBS - world.jobs_on(dead)
    dead.kill()
    snapshot = take(world.broker)
    assert (snapshot.totals.delayed, snapshot.has_registry) == (left, False)
    (part,) = snapshot.unreachable
    assert part.registry and f":{dead.port}" in part.slots


@pytest.mark.parametrize("number", range(3))
def test_a_master_that_hangs_hides_no_other_one(world: World, number: int) -> None:
    broker = connections.broker()
    inspector, queue = broker.inspector, broker.queue("spread")
    inspector.all_counts(queues=[queue], partial=True)
    silent = world.cluster.nodes[number]
    missing = world.shards_on(silent)
    silent.pause()
    try:
        (counts,) = inspector.all_counts(queues=[queue], partial=True)
    finally:
        silent.resume()
    assert sorted(counts.unreachable) == missing


def test_a_process_that_knows_no_queue_reports_the_registry_instead_of_none(world: World) -> None:
    world.registry_node.kill()
    connections.close_broker()  # as in a process that begins now
    text = run("delayq_status")
    assert "ERROR connection: slots " in text and "the registry of queues and workers" in text
    assert "nothing was ever scheduled" not in text and "No worker is running" not in text


def test_every_view_has_the_living_masters_and_names_the_dead_one(world: World, admin_client: Client) -> None:
    dead = world.other_node
    missing, left = len(world.shards_on(dead)), JOBS - world.jobs_on(dead)
    address, api = f":{dead.port}", make_caller(*ALL)
    dead.kill()

    text, data = run("delayq_status"), told("delayq_status")
    assert "ERROR connection: slots " in text and "of spread" in text and address in text
    assert [part["shards"] for part in data["unreachable"]] == [{"spread": data["queues"][0]["unreachable_shards"]}]

    out = io.StringIO()
    with pytest.raises(CommandError, match=f"not checked.*{missing} of {SHARDS} shards of spread.*{address}"):
        call_command("delayq_fsck", stdout=out)
    assert "0 violations" in out.getvalue() and not out.getvalue().startswith("0 entries")

    out = io.StringIO()
    with pytest.raises(CommandError, match="1 error,"):
        call_command("delayq_check", "--json", stdout=out)
    findings = [(one["level"], one["text"]) for one in json.loads(out.getvalue()) if one["what"] == "connection"]
    assert [(level, address in text) for level, text in findings] == [("ERROR", True)]

    _, jobs = api.get("v1/queues/spread/jobs?limit=250")
    _, queues = api.get("v1/queues")
    assert (len(jobs["jobs"]), jobs["unreachable_shards"]) == (left, missing)
    assert [(one["counts"]["delayed"], one["unreachable_shards"]) for one in queues["queues"]] == [(left, missing)]

    for page in ("queueentry/", "livejob/", "dashboard/"):
        answer = admin_client.get(f"/admin/django_delayq/{page}")
        assert answer.status_code == 200
        assert address in answer.content.decode() and "of spread" in answer.content.decode()


def test_metrics_leave_out_a_queue_that_is_counted_in_part(world: World) -> None:
    missing = len(world.shards_on(world.other_node))
    before = measure()
    world.other_node.kill()
    after = measure()
    assert (
        before[definitions.queue_unreachable_shards] == {("spread",): 0}
        and ("spread", "delayed") in before[definitions.jobs]
    )
    assert after[definitions.up] == {(): 1.0} and after[definitions.queue_unreachable_shards] == {("spread",): missing}
    assert definitions.jobs not in after


def test_a_change_of_shards_is_refused_before_it_begins(world: World) -> None:
    dead = world.other_node
    dead.kill()
    with pytest.raises(QueueUnavailable):
        world.broker.reshard("spread", 4)
    world.cluster.revive()
    assert [(one.shards, one.state) for one in world.broker.epochs.progress("spread")] == [(SHARDS, "open")]


def test_a_change_of_shards_that_fails_after_its_beginning_says_who_completes_it(world: World) -> None:
    dead = world.other_node

    def kill_when_published(verb: str, seconds: float, failed: bool) -> None:
        if verb == "swap" and dead.running:
            dead.kill()

    world.broker.observe(kill_when_published)
    with pytest.raises(QueueUnavailable, match=r"has begun and is not finished .* a dispatcher finishes it"):
        world.broker.reshard("spread", 4)
    world.broker.observe(None)
    world.cluster.revive()
    world.broker.epochs.finish("spread")  # as dispatchers do
    assert [(one.shards, one.state) for one in world.broker.epochs.progress("spread")] == [(SHARDS, "old"), (4, "open")]
