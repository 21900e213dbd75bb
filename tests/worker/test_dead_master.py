"""A cluster without one of its masters: the worker goes on with the others, and finishes the rest when it is back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, QueueUnavailable, RedisConfig, Task, TaskOptions, connect
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import held_by, watch_calls
from tests.support.duty_stage import Loop, heartbeat_of, make_process, poller_of, reaper_of, sampler_of
from tests.support.redis_box import RedisBox
from tests.support.supervisor_stage import salvage_of
from tests.support.worker_stage import (
    EXIT_NO_REDIS,
    Limits,
    config,
    depths_of,
    encode_args,
    eventually,
    exit_code,
    fails_once,
    put,
    registry_named,
    registry_of,
    working,
)

#: s; well below the time limit of a call
SOON = 10.0
QUEUES = tuple(f"q{number}" for number in range(9))


@pytest.fixture(scope="module")
def own_cluster(redis_box: RedisBox) -> Iterator[ClusterBox]:
    """Provide a cluster whose masters this module kills; what was written is on their disks."""
    # Each write waits for the disk: on a busy machine longer than the second after which other clusters give a node up.
    with ClusterBox(binary=redis_box.binary, aof="always", cluster_node_timeout=3000) as box:
        yield box


@pytest.fixture
def spread(own_cluster: ClusterBox, prefix: str) -> Iterator[Broker]:
    """Provide a broker on the emptied cluster."""
    own_cluster.flush()
    connection = connect(RedisConfig.parse(own_cluster.setting))
    yield Broker(connection, prefix=prefix)
    connection.close()


def queues_by_node(cluster: ClusterBox, broker: Broker) -> dict[RedisBox, list[str]]:
    """Return the queues of each master, which are created; the registry's master is the first."""
    nodes: dict[RedisBox, list[str]] = {cluster.node_of(broker.queues_key): []}
    for name in QUEUES:
        nodes.setdefault(cluster.node_of(broker.queue(name).present[0].keys[0]), []).append(name)
    assert len(nodes) == len(cluster.nodes), "each master has queues"
    return nodes


@pytest.mark.parametrize("how", ["killed", "frozen", "registry killed"])
def test_jobs_of_the_living_masters_start_while_one_is_gone_and_the_others_when_it_is_back(
    own_cluster: ClusterBox, spread: Broker, how: str
) -> None:
    started: Counter[str] = Counter()
    release = threading.Event()

    def work(ident: str) -> None:
        started[ident] += 1
        if ident == "held":
            release.wait(30)

    nodes = queues_by_node(own_cluster, spread)
    dead = list(nodes)[0 if how == "registry killed" else 1]
    dead_queues = nodes[dead]
    living = [name for node, names in nodes.items() if node is not dead for name in names]
    settings = config(queues=QUEUES)
    registry = registry_of(work)
    # Its permits are on the registry's master.
    registry.add(Task(work, name="limited", options=TaskOptions(concurrency=Limits(total=1, local=None))))
    with working(spread, registry, settings):
        put(spread, "work", "held", id="held", queue=dead_queues[0])
        for name in dead_queues:
            put(spread, "work", f"later-{name}", id=f"later-{name}", queue=name, delay_ms=1_500)
        for name in living:
            put(spread, "limited", f"one-{name}", id=f"one-{name}", queue=name, delay_ms=1_500)
            put(spread, "work", f"due-{name}", id=f"due-{name}", queue=name, delay_ms=3_000)
        eventually(lambda: "held" in started)
        (dead.pause if how == "frozen" else dead.kill)()
        try:
            release.set()
            eventually(lambda: all(f"due-{name}" in started for name in living), seconds=3.0 + SOON)
            assert not any(f"later-{name}" in started for name in dead_queues)
        finally:
            (dead.resume if how == "frozen" else dead.start)()
        eventually(lambda: all(f"one-{name}" in started for name in living), seconds=3 * SOON)
        eventually(lambda: all(f"later-{name}" in started for name in dead_queues), seconds=SOON)
        eventually(
            lambda: (
                not any(counts.reserved + counts.ready + counts.delayed for counts in spread.inspector.all_counts())
            ),
            seconds=SOON,
        )
    assert set(started.values()) == {1}, "no job ran twice"


def test_jobs_of_a_reserve_whose_reply_was_lost_run_when_their_master_answers_again(spread: Broker) -> None:
    """At once, not when their leases end."""
    ran: list[str] = []
    queue = spread.queue("q0", shards=1)
    queue.schedule_many(NewJob(ident, "work", encode_args((ident,), {})) for ident in ("a", "b"))
    with watch_calls(spread, after=fails_once("reserve")) as calls:
        with working(spread, registry_named("work", ran.append), config(queues=("q0",), dispatcher=False)):
            eventually(lambda: sorted(ran) == ["a", "b"], seconds=SOON)
        assert "reserve" in [call.name for call in calls]


def test_a_burst_gives_up_when_a_master_does_not_return(
    own_cluster: ClusterBox, spread: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = queues_by_node(own_cluster, spread)
    *_, (dead, dead_queues) = nodes.items()
    done: list[str] = []
    for name in QUEUES:
        put(spread, "work", name, id=name, queue=name)
    dead.kill()
    try:
        settings = config(queues=QUEUES, burst=True, redis_patience=3.0, grace=1.0)
        with working(spread, registry_named("work", done.append), settings) as worker:
            assert worker.done.wait(3 * SOON)
            assert exit_code(worker) == EXIT_NO_REDIS
    finally:
        dead.start()
    assert set(done) == set(QUEUES) - set(dead_queues)
    assert "fetch loop: no work with the node of" in caplog.text
    assert "works again" not in caplog.text


def test_the_jobs_of_a_killed_process_on_living_masters_go_back_at_once(
    own_cluster: ClusterBox, spread: Broker
) -> None:
    *_, (node, names) = queues_by_node(own_cluster, spread).items()
    spread.queue("wide", shards=6)
    queues = [spread.queue(name) for name in ("wide", *QUEUES)]
    for queue in queues:
        for number in range(60 if queue.name == "wide" else 1):
            put(spread, "work", id=f"{queue.name}-{number}", queue=queue.name)
        held = [job for number in queue.numbers for job in queue.reserve(number, 60, worker="child").jobs]
        assert len(held) == (60 if queue.name == "wide" else 1)
    salvage = salvage_of([], registry_of(), at=time.monotonic())
    node.kill()
    try:
        began = time.monotonic()
        with pytest.raises(QueueUnavailable):
            salvage(spread, queues)
        assert time.monotonic() - began < 3.5
        still = {queue.name for queue in queues[1:] if queue.name not in names and list(held_by(queue, "child"))}
        assert still == set()
        wide = [
            number for number in queues[0].numbers if own_cluster.node_of(queues[0].shard(number).keys[0]) is not node
        ]
        assert wide
        assert list(held_by(queues[0], "child", *wide)) == []
    finally:
        node.start()

    def is_done() -> bool:
        with contextlib.suppress(QueueUnavailable):
            salvage(spread, queues)
            return True
        return False

    eventually(is_done, seconds=SOON)
    assert [job for queue in queues for job in held_by(queue, "child")] == []


def test_a_heartbeat_that_reaches_no_registry_ends_no_outage(own_cluster: ClusterBox, spread: Broker) -> None:
    process, announced = make_process(spread, settings=config(heartbeat=0.2)), list[float]()

    def describe() -> dict[str, Any]:
        announced.append(process.health.lasting())
        return {}

    loop = Loop("heartbeat", heartbeat_of(process, describe=describe), process.health)
    dead = own_cluster.node_of(spread.queues_key)
    dead.kill()
    try:
        process.health.failed("fetch loop", QueueUnavailable("away"))
        loop.start()
        eventually(lambda: len(announced) == 3, seconds=3 * SOON)
        assert 0 < announced[0] < announced[1] < announced[2]
    finally:
        dead.start()
    eventually(lambda: not process.health.lasting(), seconds=3 * SOON)
    loop.close()


def test_the_sample_of_the_depths_has_the_living_masters_and_waits_once_for_a_silent_one(
    own_cluster: ClusterBox, spread: Broker
) -> None:
    (silent, names), *_ = list(queues_by_node(own_cluster, spread).items())[1:]
    for name in QUEUES:
        put(spread, "work", queue=name)
    sampler = sampler_of(spread)
    sampler.run()
    silent.pause()
    try:
        began = time.monotonic()
        sampler.run()
        assert time.monotonic() - began < 4.0
    finally:
        silent.resume()
    points = depths_of(spread, QUEUES)
    assert {name for name in QUEUES if points.get(name)} == set(QUEUES) - set(names)


def test_when_a_silent_master_answers_again_no_lease_is_taken_from_its_holder_at_once(
    own_cluster: ClusterBox, spread: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(spread.connection, prefix=spread.prefix, lease_ms=1000)
    (silent, names), (_, (living_name, *_)), *_ = list(queues_by_node(own_cluster, broker).items())[1:]
    queues, living = [broker.queue(name) for name in names], broker.queue(living_name)
    for queue in [*queues, living]:
        put(broker, "work", queue=queue.name)
        assert queue.reserve(queue.numbers[0], 1, worker="w", started=True).jobs

    def held() -> int:
        return sum(len(queue.leases(number)) for queue in queues for number in queue.numbers)

    reaper = reaper_of(registry_of(work), broker=broker, runs_at_once=True)
    poller = poller_of([*queues, living], lease=1.0, heartbeat=0.3, reaper=reaper, broker=broker)
    poller.run()
    silent.pause()
    try:
        until = time.monotonic() + 2.5  # the leases end meanwhile
        eventually(lambda: poller.run() >= 0 and time.monotonic() > until, seconds=SOON)
        assert not living.leases(living.numbers[0]), "a living master has its leases taken meanwhile"
    finally:
        silent.resume()
    eventually(lambda: poller.run() >= 0 and "works again" in caplog.text, seconds=SOON)
    poller.run()
    assert held() == len(queues)
    eventually(lambda: poller.run() >= 0 and not held(), "the end of the leases", seconds=SOON)


def work() -> None: ...
