"""Redis starts again with an older copy of its data, while workers and producers go on with what they know."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from django_delayq.core.broker import Broker
from tests.support.redis_box import RedisBox

from .conftest import MakeMill
from .world import Mill, until

QUEUES = "default,blend,clock,paused"


class Copier:
    """A Redis that can go back to a copy of its data."""

    def __init__(self, box: RedisBox, folder: Path) -> None:
        self.box = box
        self.copy = folder / "older.rdb"

    def save(self) -> None:
        self.box.client().save()
        shutil.copy(self.box.directory / "dump.rdb", self.copy)

    def go_back(self) -> None:
        """Kill it, and start it with the copy."""
        self.box.kill()
        shutil.copy(self.copy, self.box.directory / "dump.rdb")
        self.box.start()


@pytest.fixture
def copier(redis_factory: Callable[..., RedisBox], tmp_path: Path) -> Copier:
    return Copier(redis_factory(tcp=True), tmp_path)


@pytest.fixture
def mill(copier: Copier, make_mill: MakeMill) -> Mill:
    return make_mill(copier.box.url, lease=1.5, QUEUES={"paused": {}, "clock": {}})


def test_workers_and_producers_go_on_when_redis_forgets_a_change_of_shards(copier: Copier, mill: Mill) -> None:
    """Jobs that are scheduled afterwards are run, in whichever shards the producer believes."""
    node = mill.start("--threads", 3, queues=QUEUES, MILL_CLOCK="1")
    stale = Broker(mill.broker.connection, prefix=mill.prefix, lease_ms=mill.broker.lease_ms)
    first = mill.put_many("grind", 20)
    stale.queue("default").schedule_many([mill.job("grind", id=f"stale-{n}") for n in range(5)])
    mill.wait_ended([*first, *(f"stale-{n}" for n in range(5))])
    copier.save()
    mill.broker.reshard("default", 4)
    middle = mill.put_many("grind", 40)
    mill.wait_ended(middle)
    mill.broker.pause("paused")
    mill.add("blend", "x", 1, queue="blend")
    copier.go_back()
    stale.queue("default").schedule_many([mill.job("grind", id=f"later-{n}") for n in range(20)])
    last = mill.put_many("grind", 40)
    mill.wait_ended([*last, *(f"later-{n}" for n in range(20))])
    mill.add("blend", "y", 1, queue="blend")
    until(lambda: "y" in {line["id"] for line in mill.lines("end")}, "the end of y")
    ticks = len(mill.starts("recurring:mill.strike"))
    until(lambda: len(mill.starts("recurring:mill.strike")) >= ticks + 2, "two more ticks")
    assert node.process.poll() is None
    assert "Traceback" not in node.said
    assert set(node.serving()) == set(node.children())


def test_jobs_of_a_producer_that_outlives_the_data_and_all_workers_are_run(copier: Copier, mill: Mill) -> None:
    """It believes in shards that no new worker knows, until it reads the registry again."""
    node = mill.start("--threads", 2)
    producer = Broker(mill.broker.connection, prefix=mill.prefix, lease_ms=mill.broker.lease_ms)
    producer.queue("default")
    producer.reshard("default", 4)
    node.kill()
    copier.box.restart()
    mill.start("--threads", 2)
    jobs = [mill.job("grind") for _ in range(20)]
    producer.queue("default").schedule_many(jobs)
    producer.layout_seconds = 0.0
    last = mill.job("grind")
    producer.queue("default").schedule(last)
    mill.wait_ended([job.id for job in (*jobs, last)])
