"""Confirmed writes: ``WAIT_REPLICAS`` and ``WAIT_AOF``, with a real replica that may be paused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_delayq.core import (
    Broker,
    Connection,
    IdTaken,
    Inspector,
    Misconfigured,
    NewJob,
    NotConfirmed,
    Queue,
    QueueUnavailable,
    RedisConfig,
)
from django_delayq.core.redis.config import Confirmation
from tests.support.core_calls import Fault, ScriptCall, classify, watch_calls
from tests.support.core_stored import assert_invariants

from ..support.cluster_box import ClusterBox
from ..support.redis_box import RedisBox
from ..support.sentinel_box import SentinelBox

Opened = Callable[[object], Connection]
KILL = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


class Pair:
    """A master and its replica."""

    def __init__(self, binary: str) -> None:
        settings: dict[str, Any] = {"repl_diskless_sync_delay": 0}
        self.master = RedisBox(tcp=True, binary=binary, **settings)
        self.replica = RedisBox(tcp=True, binary=binary, **settings)

    def start(self) -> None:
        self.master.start()
        self.replica.start()
        self.replica.follow(self.master)

    def setting(self, **wait: Any) -> dict[str, Any]:
        return {"URL": self.master.url, "WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 5, **wait}

    def without_replica(self, seconds: float) -> float:
        """Pause the replica for so long; return the present time (monotonic)."""
        self.replica.pause()
        threading.Timer(seconds, self.replica.resume).start()
        return time.monotonic()

    def calls(self, command: str) -> int:
        """Number of such commands that the master has executed."""
        stats: dict[str, Any] = self.master.client().info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.fixture(scope="module")
def started(redis_box: RedisBox) -> Iterator[Pair]:
    pair = Pair(redis_box.binary)
    try:
        pair.start()
        yield pair
    finally:
        pair.replica.close()
        pair.master.close()


@pytest.fixture
def pair(started: Pair) -> Iterator[Pair]:
    started.master.flush()
    yield started
    started.replica.resume()


def queue_of(opened: Opened, setting: object) -> Queue:
    return Broker(opened(setting)).queue("orders")


def bodies(client: redis.Redis) -> set[str]:
    """Ids of the live jobs that a server has."""
    return {ident.decode() for key in client.keys("*:body") for ident in client.hkeys(key)}


def job(ident: str, **options: Any) -> NewJob:
    return NewJob(ident, "work", delay_ms=60_000, **options)


def test_a_schedule_call_returns_when_the_replica_has_the_job(pair: Pair, opened: Opened) -> None:
    queue = queue_of(opened, pair.setting())
    queue.schedule(job("first"))
    began = pair.without_replica(0.7)
    assert queue.schedule(job("order-5")) == "created"
    assert 0.5 < time.monotonic() - began < 4
    assert bodies(pair.replica.client()) == {"first", "order-5"}
    assert queue.schedule(NewJob("fresh", "work", fresh=True)) == "created"
    assert "fresh" in bodies(pair.replica.client())
    assert_invariants(Broker(queue.deployment.connection))


def test_without_a_confirmation_in_time_the_error_says_that_the_job_is_there_and_what_to_do(
    pair: Pair, opened: Opened
) -> None:
    queue = queue_of(opened, pair.setting(WAIT_TIMEOUT=0.3))
    queue.schedule(job("first"))
    pair.replica.pause()
    expected = r"has the job.*within 0\.3 s 0 of 1 replicas confirmed it.*schedule it again under the same id.*safe"
    with pytest.raises(NotConfirmed, match=expected) as failure:
        queue.schedule(job("order-5"))
    assert classify(failure.value) is Fault.TRANSIENT
    assert failure.value.id == "order-5"
    assert bodies(pair.master.client()) == {"first", "order-5"}
    pair.replica.resume()
    assert queue.schedule(job("order-5")) == "replaced"
    assert len(Inspector(queue.registry).page("orders", "waiting", limit=10).jobs) == 2


def test_an_older_shard_that_refused_the_job_need_not_confirm_it(pair: Pair, opened: Opened) -> None:
    queue = queue_of(opened, pair.setting())
    queue.schedule(job("first"))
    Broker(queue.deployment.connection).reshard("orders", queue.shards + 1)
    queue.reload()
    old, refused = queue.shards_of("second")[0], []

    def leave_unconfirmed(call: ScriptCall) -> None:
        if call.name == "schedule" and call.keys == queue.shard(old).keys:
            refused.append(call.reply)
            error = NotConfirmed.because("no replica confirmed it")
            error.reply = call.reply
            raise error

    with watch_calls(queue.deployment, after=leave_unconfirmed):
        assert queue.schedule(job("second")) == "created"
    assert refused == [b"v"]


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_repeated_call_that_changes_nothing_is_not_confirmed_before_the_first_one_is(
    pair: Pair, opened: Opened, repeatable: bool
) -> None:
    queue = queue_of(opened, pair.setting(WAIT_TIMEOUT=0.3))
    queue.schedule(job("first"))
    again = {"on_conflict": "ignore"} if not repeatable else {"repeatable": True, "key": b"k" * 16}
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(NotConfirmed):
            queue.schedule(job("order-5", **again))
        queue.deployment.connection.close()  # the second call comes over another connection
    pair.replica.resume()
    assert queue.schedule(job("order-5", **again)) == ("created" if repeatable else "ignored")
    assert "order-5" in bodies(pair.replica.client())


def test_a_job_may_do_without_and_a_deployment_may_leave_it_to_the_jobs(pair: Pair, opened: Opened) -> None:
    always, chosen = queue_of(opened, pair.setting()), queue_of(opened, pair.setting(WAIT_DEFAULT=False))
    always.schedule(job("first"))
    before = pair.calls("wait")
    assert always.schedule(job("plain", confirmed=False)) == "created"
    assert chosen.schedule(job("plain-too")) == "created"
    assert chosen.count_many([job("one"), job("two")]) == {"created": 2}
    assert pair.calls("wait") == before
    assert chosen.schedule(job("order-5", confirmed=True)) == "created"
    assert pair.calls("wait") == before + 1
    assert chosen.schedule(job("durable", key=b"\x80" + b"k" * 15, confirmed=False)) == "created"
    assert pair.calls("wait") == before + 2, "a durable job is always confirmed"


def test_many_jobs_wait_once_and_keep_their_order(pair: Pair, opened: Opened) -> None:
    queue = queue_of(opened, pair.setting())
    queue.schedule(job("first"))
    before = pair.calls("wait")
    assert queue.count_many(job(str(number)) for number in range(1000)) == {"created": 1000}
    assert pair.calls("wait") == before + 1
    assert len(bodies(pair.replica.client())) == 1001
    mixed = [job("order-5", args=b"[%d]" % number, confirmed=number % 2 == 0) for number in range(600)]
    queue.count_many(mixed)
    view = Inspector(queue.registry).get("orders", "order-5")
    assert view is not None and view.job.args == b"[599]"


def test_the_chunks_of_many_shards_wait_together(pair: Pair, opened: Opened) -> None:
    queue = Broker(opened(pair.setting())).queue("orders", shards=16)
    queue.schedule(job("first"))
    before = pair.calls("wait")
    began = pair.without_replica(0.7)
    assert queue.schedule_many([job(str(number)) for number in range(400)]) == ["created"] * 400
    assert 0.5 < time.monotonic() - began < 4
    assert pair.calls("wait") == before + 1
    assert len(bodies(pair.replica.client())) == 401
    pair.master.client().script_flush()
    assert queue.count_many([job(f"then-{number}") for number in range(400)]) == {"created": 400}
    assert pair.calls("wait") <= before + 5, "one chunk loads the script"
    mixed = [job(f"mixed-{number}", confirmed=number % 2 == 0) for number in range(100)]
    pair.replica.pause()
    with pytest.raises(NotConfirmed) as some:
        Broker(opened(pair.setting(WAIT_TIMEOUT=0.2))).queue("orders", shards=16).schedule_many(mixed)
    assert some.value.unconfirmed == set(range(0, 100, 2))
    assert some.value.outcomes == ["created"] * 100
    assert_invariants(Broker(queue.deployment.connection))


def test_a_missing_confirmation_keeps_back_none_of_many_jobs(pair: Pair, opened: Opened) -> None:
    queue = Broker(opened(pair.setting(WAIT_TIMEOUT=0.4))).queue("orders", shards=3)
    queue.schedule(job("first"))
    pair.replica.pause()
    began = time.monotonic()
    with pytest.raises(
        NotConfirmed, match=r"\(1000 created\).* 0 of 1 replicas .*: 1000 of them .*ids of your own"
    ) as many:
        queue.count_many(job(str(number)) for number in range(1000))
    assert time.monotonic() - began < 1.5, "a node that does not confirm is not waited for again"
    assert len(bodies(pair.master.client())) == 1001
    assert (many.value.counts, many.value.id) == ({"created": 1000}, "")
    mixed = [job("0", on_conflict="error"), job("plain", confirmed=False), job("order-5"), job("order-6")]
    with pytest.raises(NotConfirmed) as some:
        queue.schedule_many(mixed)
    assert some.value.outcomes == ["exists", "created", "created", "created"]
    assert some.value.unconfirmed == {2, 3}
    assert queue.schedule_many(mixed[:1]) == ["exists"], "nothing that could be lost"
    with pytest.raises(IdTaken):
        queue.schedule(mixed[0])


@pytest.mark.parametrize("jobs", [1, 400], ids=["one job", "many chunks"])
def test_a_connection_lost_during_the_wait_is_replaced_and_the_new_one_waits_too(
    pair: Pair, opened: Opened, jobs: int
) -> None:
    queue = Broker(opened(pair.setting())).queue("orders", shards=16)
    queue.schedule(job("first"))
    began = pair.without_replica(1.2)
    threading.Timer(0.5, pair.master.client().execute_command, KILL).start()
    if jobs == 1:
        assert queue.schedule(job("0")) == "created", "a repeated request gets the first reply"
    else:
        assert queue.count_many([job(str(number)) for number in range(jobs)]) == {"created": jobs}
    assert time.monotonic() - began > 1
    assert bodies(pair.replica.client()) == {"first", *map(str, range(jobs))}


def test_a_connection_lost_in_the_time_of_the_wait_alone_is_not_replaced(pair: Pair, opened: Opened) -> None:
    """The shard remembers a call for as long as a call may last without the wait."""
    queue = queue_of(opened, pair.setting(SOCKET_TIMEOUT=0.1, RETRIES=1))
    queue.schedule(job("first"))
    pair.replica.pause()
    calls = pair.calls("evalsha") + pair.calls("eval")
    timer = threading.Timer(queue.deployment.connection.patience + 0.2, pair.master.client().execute_command, KILL)
    timer.start()
    with pytest.raises(QueueUnavailable):
        queue.schedule(job("order-5"))
    assert pair.calls("evalsha") + pair.calls("eval") == calls + 1


def test_a_caller_in_a_hurry_has_the_time_of_the_wait_beyond_its_own(pair: Pair, opened: Opened) -> None:
    connection = opened(opened(pair.setting()).hurried(0.2))
    queue = Broker(connection).queue("orders")
    queue.schedule(job("first"))
    pair.without_replica(0.7)
    assert queue.schedule(job("order-5")) == "created"
    assert queue.schedule(job("order-6", confirmed=False)) == "created", "the connection has its own limit again"


def test_who_does_not_use_it_sends_no_further_command(pair: Pair, opened: Opened) -> None:
    queue = queue_of(opened, pair.master.url)
    before = pair.calls("wait"), pair.calls("set")
    queue.schedule(job("order-5"))
    queue.schedule(NewJob("fresh", "work", fresh=True))
    queue.count_many([job("a"), job("b")])
    assert (pair.calls("wait"), pair.calls("set")) == before


def test_a_confirmed_job_survives_the_loss_of_its_master(sentinel_box: SentinelBox, opened: Opened) -> None:
    setting = {"SENTINELS": sentinel_box.addresses, "MASTER": sentinel_box.name, "WAIT_REPLICAS": 1}
    queue = queue_of(opened, setting)
    assert queue.count_many(job(str(number)) for number in range(100)) == {"created": 100}
    assert queue.schedule(job("order-5")) == "created"
    sentinel_box.fail_over()
    found = Inspector(queue_of(opened, setting | {"WAIT_DEFAULT": False}).registry).get("orders", "order-5")
    assert found is not None and found.state == "delayed"
    assert_invariants(Broker(queue.deployment.connection))


def test_on_a_cluster_the_node_of_the_shard_confirms(redis_box: RedisBox, opened: Opened) -> None:
    with ClusterBox(replicas=True, binary=redis_box.binary) as cluster:
        setting: dict[str, Any] = {"CLUSTER": cluster.setting["CLUSTER"], "WAIT_REPLICAS": 1}
        queue = Broker(opened(setting)).queue("orders", shards=6)
        assert [queue.schedule(job(str(number))) for number in range(30)] == ["created"] * 30
        assert queue.count_many(job(f"many-{number}") for number in range(300)) == {"created": 300}
        cluster.fail_over(0, crash=False)
        assert [queue.schedule(job(f"then-{number}")) for number in range(30)] == ["created"] * 30
        assert_invariants(Broker(queue.deployment.connection))


# -- disks


def refused_before_anything_is_stored(box: RedisBox, opened: Opened) -> None:
    queue = queue_of(opened, {"URL": box.url, "WAIT_AOF": True})
    reason = "append-only file: set `appendonly yes`" if box.version >= (7, 2) else "needs Redis 7.2 or newer, this is"
    with pytest.raises(Misconfigured, match=reason):
        queue.schedule(job("order-5"))
    assert bodies(box.client()) == set()
    assert len(queue.deployment.scripts.confirmation_obstacles()) == 1


def test_a_server_that_cannot_confirm_is_refused_before_anything_is_stored(
    redis_factory: Callable[..., RedisBox], opened: Opened
) -> None:
    refused_before_anything_is_stored(redis_factory(), opened)


def test_a_newer_server_without_an_append_only_file_is_refused_too(
    waitaof_factory: Callable[..., RedisBox], opened: Opened
) -> None:
    refused_before_anything_is_stored(waitaof_factory(), opened)


def test_the_disk_confirms(waitaof_factory: Callable[..., RedisBox], opened: Opened) -> None:
    box = waitaof_factory(aof="everysec")
    queue = queue_of(opened, {"URL": box.url, "WAIT_AOF": True})
    for number in range(3):
        assert queue.schedule(job(str(number))) == "created"
    box.restart(crash=True)
    assert bodies(box.client()) == {"0", "1", "2"}
    box.configure(appendonly="no")
    with pytest.raises(NotConfirmed, match=r"Redis has the job, but Redis refused to confirm it .*delayq_check"):
        queue.schedule(job("order-5"))
    with pytest.raises(Misconfigured, match="set `appendonly yes`"):
        queue.schedule(job("order-6"))
    assert bodies(box.client()) == {"0", "1", "2", "order-5"}


def test_both_may_be_demanded(waitaof_factory: Callable[..., RedisBox], opened: Opened) -> None:
    box = waitaof_factory(aof="always")
    queue = queue_of(opened, {"URL": box.url, "WAIT_AOF": True, "WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 0.2})
    with pytest.raises(NotConfirmed, match="0 of 1 replicas confirmed it on disk"):
        queue.schedule(job("order-5"))
    replica = waitaof_factory(tcp=True, aof="always", repl_diskless_sync_delay=0)
    master = waitaof_factory(tcp=True, aof="always", repl_diskless_sync_delay=0)
    replica.follow(master)
    both = queue_of(opened, {"URL": master.url, "WAIT_AOF": True, "WAIT_REPLICAS": 1, "WAIT_TIMEOUT": 10})
    assert both.schedule(job("order-5")) == "created"
    for box in (master, replica):
        box.restart(crash=True)
        assert bodies(box.client()) == {"order-5"}


# -- settings


def test_settings_are_checked() -> None:
    config = RedisConfig.parse("redis://h?wait_replicas=2&wait_aof=true&wait_timeout=0.5")
    assert config.confirmation == Confirmation(2, True, 0.5, True)
    assert RedisConfig.parse("redis://h").confirmation is None
    for wrong, text in (
        ({"WAIT_REPLICAS": -1}, "WAIT_REPLICAS must be a whole number from 0 to 100"),
        ({"WAIT_TIMEOUT": 60}, "WAIT_TIMEOUT must be a number of seconds above 0, at most 10"),
        ({"WAIT_AOF": "perhaps"}, "WAIT_AOF must be True or False"),
        ({"WAIT_REPLICA": 1}, "WAIT_REPLICAS"),
    ):
        with pytest.raises(Misconfigured, match=text):
            RedisConfig.parse({"URL": "redis://h", **wrong})


def test_replies_are_read() -> None:
    both, replicas = Confirmation(2, True, 1, True), Confirmation(2, False, 1, True)
    assert both.command == ("WAITAOF", 1, 2, 1000)
    assert replicas.command == ("WAIT", 2, 1000)
    assert Confirmation(1, False, 0.0001, True).command == ("WAIT", 1, 1), "0 would wait for ever"
    assert (both.missing([1, 2]), replicas.missing(3)) == ("", "")
    assert both.missing([0, 1]) == "the disk of Redis did not confirm it and 1 of 2 replicas confirmed it on disk"
    masters = [{"role": "master", "connected_slaves": 1, "redis_version": "7.4.0", "aof_enabled": 1}]
    (absence,) = both.absences(masters)
    assert "1 replicas are connected and WAIT_REPLICAS is 2" in absence
    assert list(both.obstacles(masters)) == []
    assert len(list(both.obstacles([{"redis_version": "7.0.15", "aof_enabled": 1}]))) == 1
