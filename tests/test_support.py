"""The tests' own servers do what they say."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .support import processes
from .support.cluster_box import ClusterBox
from .support.postgres_box import PostgresBox, PostgresDatabase
from .support.preemption import each_line
from .support.redis_box import RedisBox
from .support.sentinel_box import SentinelBox
from .support.tcp_proxy import TcpProxy

Factory = Callable[..., RedisBox]
ProxyFactory = Callable[[tuple[str, int] | str], TcpProxy]


def test_a_test_begins_with_an_empty_redis(redis_box: RedisBox, redis_client: redis.Redis) -> None:
    redis_client.set("left", "behind")
    redis_box.configure(maxmemory="10mb")
    redis_box.flush()
    assert redis_client.dbsize() == 0
    assert redis_client.config_get("maxmemory") == {"maxmemory": "0"}


def test_a_box_keeps_its_data_over_kill_minus_nine_when_it_should(redis_factory: Factory) -> None:
    box = redis_factory(aof="always", tcp=True)
    url = box.url
    box.client().set("order", 41)
    box.restart()
    assert (box.url, box.client().get("order")) == (url, b"41")


def test_a_paused_box_does_not_answer_and_then_does(redis_factory: Factory) -> None:
    box = redis_factory()
    client = box.client(socket_timeout=0.1, retry=Retry(NoBackoff(), 0))
    client.ping()
    box.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    box.resume()
    assert client.ping()
    client.close()


def test_a_dead_test_run_leaves_no_server(redis_factory: Factory) -> None:
    box = redis_factory()
    folder, binary = box.directory, box.binary
    box.stop()
    program = f"""
import os, signal
from tests.support.redis_box import RedisBox
print(RedisBox({str(folder)!r}, binary={binary!r}).start().pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=Path.cwd(), check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr
    processes.wait_until(lambda: not processes.alive(int(run.stdout)), what="the server's end")


def test_a_cluster_shares_the_slots_among_three_masters(cluster_box: ClusterBox) -> None:
    client = cluster_box.client()
    for number in range(50):
        client.set(f"key{number}", number)
    assert {cluster_box.node_of(f"key{number}").port for number in range(50)} == {n.port for n in cluster_box.nodes}
    client.close()


def test_a_sentinel_makes_the_replica_master(sentinel_box: SentinelBox) -> None:
    old = sentinel_box.master
    old.client().set("order", 41)
    old.client().wait(1, 1000)
    new = sentinel_box.fail_over()
    assert new is not old
    assert new.client().get("order") == b"41"


class TestProxy:
    @pytest.fixture
    def proxied(self, redis_factory: Factory, proxy_factory: ProxyFactory) -> Any:
        box = redis_factory()
        proxy = proxy_factory(str(box.socket_path))
        client = redis.Redis(port=proxy.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
        yield box, proxy, client
        client.close()

    def test_it_can_lose_the_answer_to_an_applied_request(self, proxied: Any) -> None:
        box, proxy, client = proxied
        proxy.cut_after_request(when=lambda request: b"INCR" in request)
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert (box.client().get("n"), client.incr("n"), proxy.cuts_done) == (b"1", 2, 1)

    def test_it_can_lose_a_request(self, proxied: Any) -> None:
        box, proxy, client = proxied
        proxy.cut_before_request(when=lambda request: b"INCR" in request)
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert (box.client().get("n"), client.incr("n")) == (None, 1)

    def test_it_can_swallow_refuse_delay_and_recover(self, proxied: Any) -> None:
        _, proxy, client = proxied
        client.ping()
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        proxy.delay(0.4)
        with pytest.raises(redis.TimeoutError):
            client.ping()
        proxy.passing()
        assert client.ping()


def test_postgres_gives_every_test_a_database(postgres_database: PostgresDatabase) -> None:
    assert PostgresDatabase.from_url(postgres_database.url) == postgres_database
    with postgres_database.connect() as connection:
        connection.execute("CREATE TABLE orders (id int)")
        assert [state for _, state, _ in postgres_database.sessions()] == ["idle"]


def test_postgres_runs_from_its_wheel_too() -> None:
    pytest.importorskip("psycopg")
    with PostgresBox("bundled") as box:
        assert box.version >= 150000


@pytest.mark.django_db(databases=["default", "postgres"], transaction=True)
def test_django_has_postgres_as_a_second_alias(postgres_alias: str) -> None:
    from django.contrib.auth.models import User

    User.objects.using(postgres_alias).create(username="ada")
    assert not User.objects.filter(username="ada").exists()
    assert User.objects.using(postgres_alias).get().username == "ada"


@pytest.mark.django_db(databases=["default", "postgres"], transaction=True)
def test_the_second_alias_is_emptied_between_tests(postgres_alias: str) -> None:
    from django.contrib.auth.models import User

    assert not User.objects.using(postgres_alias).exists()


def twice(numbers: list[int]) -> list[int]:
    found = []
    for number in numbers:
        found.append(2 * number)
    return found


def test_a_thread_is_preempted_before_every_line_and_then_not_at_all() -> None:
    found = []
    for line in each_line(twice):
        numbers = [1]
        with line.preempted(functools.partial(numbers.append, 9)):
            found.append((twice(numbers), line.reached))
    # its lines: found = [], for, append, for, return
    assert found == [([2, 18], True)] * 4 + [([2], True), ([2], False)]


def test_a_test_that_preempts_no_thread_fails() -> None:
    with pytest.raises(AssertionError, match="no line of twice was executed"):
        for line in each_line(twice):
            with line.preempted(lambda: None):
                pass


def test_a_test_that_preempts_a_thread_for_ever_fails() -> None:
    numbers: list[int] = []
    with pytest.raises(AssertionError, match="a world of its own"):
        for line in each_line(twice):
            with line.preempted(lambda: numbers.append(1)):
                twice(numbers)
