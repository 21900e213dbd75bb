"""Durable jobs outlive Redis: whatever it forgets, each of them is run, and what was over stays over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes
from tests.support.postgres_box import PostgresDatabase
from tests.support.redis_box import RedisBox

from .conftest import MakeMill
from .world import Mill, until

#: s; what had ended so long before Redis lost its memory is over for good
SETTLED = 2.0


class Farm:
    """A mill with a database, and a program that feeds it with durable jobs."""

    def __init__(self, mill: Mill, box: RedisBox, database: PostgresDatabase) -> None:
        self.mill = mill
        self.box = box
        self.database = database
        self.losses: list[float] = []

    def migrate(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "django", "migrate", "--verbosity", "0"],
            env={**os.environ, **self.mill.env()},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @contextmanager
    def fed(self) -> Iterator[None]:
        """Jobs come as long as this lasts."""
        enough = self.mill.gate("enough")
        said = self.mill.folder / "feeder.log"
        with said.open("w") as log:
            process = processes.spawn(
                [sys.executable, "-m", "tests.acceptance.mill.feeder", str(enough)],
                env=self.mill.env(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield
            enough.touch()
            assert process.wait(30) == 0, said.read_text()
        finally:
            processes.end(process)

    def committed(self, *kinds: str) -> set[str]:
        return {line["id"] for line in self.mill.lines("committed") if not kinds or line["kind"] in kinds}

    def wait_committed(self, count: int) -> None:
        wanted = len(self.committed()) + count
        until(lambda: len(self.committed()) >= wanted, f"{wanted} committed jobs")

    def lose_everything(self) -> None:
        self.losses.append(time.time())
        self.box.client().flushall()
        self.losses.append(time.time())

    def save(self) -> None:
        self.box.client().save()
        shutil.copy(self.box.directory / "dump.rdb", self.mill.folder / "older.rdb")

    def go_back(self) -> None:
        """Redis dies, and starts again with what was saved."""
        self.losses.append(time.time())
        self.box.kill()
        shutil.copy(self.mill.folder / "older.rdb", self.box.directory / "dump.rdb")
        self.box.start()
        self.losses.append(time.time())

    def states(self) -> dict[str, int]:
        with self.database.connect() as connection:
            return dict(connection.execute("SELECT state, count(*) FROM django_delayq_outboxjob GROUP BY 1").fetchall())

    def wait_over(self, timeout: float = 60.0) -> None:
        """Until each job has been run, and the outbox remembers those that were buried."""
        wanted = self.committed("now", "soon")
        dead = self.committed("dead")
        self.mill.wait_ended(wanted, timeout)
        until(lambda: {line["id"] for line in self.mill.starts()} >= dead, "the start of all that fail", timeout)
        until(lambda: self.states() == {"buried": len(dead)}, f"an outbox with {len(dead)} buried jobs", timeout)

    def revived(self) -> list[str]:
        """Jobs that ran again although Redis had lost nothing while they were in hand, or just behind their end."""
        ends = {(line["id"], line["token"]): line["at"] for line in self.mill.lines("end")}
        runs: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for line in self.mill.starts():
            taken = line["token"] / 1_000_000  # a token is the moment of its reserve, which may lie before the start
            runs[line["id"]].append((taken, ends.get((line["id"], line["token"]), line["at"])))
        return [
            f"{ident}: {sorted(mine)}, losses {self.losses}"
            for ident, mine in runs.items()
            for (taken, over), _ in pairwise(sorted(mine))
            if not any(taken <= loss <= over + SETTLED for loss in self.losses)
        ]

    def check(self) -> None:
        cancelled = {line["id"] for line in self.mill.lines("cancelled")}
        assert cancelled == self.committed("doomed")
        assert not cancelled & {line["id"] for line in self.mill.starts()}, "what was cancelled never runs"
        assert self.revived() == []


@pytest.fixture
def farm(
    make_mill: MakeMill, redis_factory: Callable[..., RedisBox], postgres_database: PostgresDatabase, tmp_path: Path
) -> Farm:
    return make_farm(make_mill, redis_factory(tcp=True), postgres_database, OUTBOX={})  # only calls say "durable"


def make_farm(make_mill: MakeMill, box: RedisBox, database: PostgresDatabase, **settings: Any) -> Farm:
    made = Farm(make_mill(box.url, lease=1.5, database=database.url, **settings), box, database)
    made.migrate()
    return made


def stay_away(farm: Farm) -> int:
    """Redis is away, and has nothing when it comes back; return how many durable jobs piled up meanwhile."""
    farm.losses.append(time.time())
    farm.box.kill()
    before = farm.committed()
    farm.wait_committed(150)
    piled = farm.states()["unsent"]
    farm.box.start()
    farm.losses.append(time.time())
    farm.wait_committed(40)
    took = sorted(line["took"] for line in farm.mill.lines("committed") if line["id"] not in before)
    assert took[int(len(took) * 0.99)] < 0.25 + 0.1, "nobody waits for a Redis that is away"
    return piled


@pytest.mark.parametrize("losses", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_redis_forgets_everything_under_load_and_is_away_and_no_durable_job_is_lost_or_revived(
    farm: Farm, losses: int
) -> None:
    farm.mill.start("--processes", 2, "--threads", 3)
    with farm.fed():
        for _ in range(losses):
            farm.wait_committed(60)
            farm.lose_everything()
        farm.wait_committed(60)
        assert stay_away(farm) > 50
    farm.wait_over()
    farm.check()


@pytest.mark.slow
def test_redis_goes_back_to_an_older_copy_under_load_and_each_durable_job_is_run(farm: Farm) -> None:
    farm.mill.start("--processes", 2, "--threads", 3)
    with farm.fed():
        for _ in range(2):
            farm.wait_committed(40)
            farm.save()
            farm.wait_committed(60)
            farm.go_back()
        farm.wait_committed(40)
    farm.wait_over()
    assert not farm.committed("doomed") & {line["id"] for line in farm.mill.starts()}, "what was cancelled never runs"


def test_without_durable_jobs_an_idle_worker_asks_the_database_once_in_a_while_and_holds_no_session(
    make_mill: MakeMill, redis_factory: Callable[..., RedisBox], postgres_database: PostgresDatabase
) -> None:
    farm = make_farm(make_mill, redis_factory(tcp=True), postgres_database)
    farm.mill.start("--threads", 2)
    farm.mill.put("grind", id="plain")
    farm.mill.wait_ended(["plain"])
    said: dict[str, Any] = farm.box.client().info("commandstats")
    assert "cmdstat_flushall" not in said
    until(lambda: farm.database.sessions() == [], "no session")
    assert farm.states() == {}
