"""Campaign of durable jobs: PostgreSQL dies and stands still, Redis dies and forgets, workers die, under load.

Buyers commit an order and its job in one transaction; the job's handler commits one charge (``@exactly_once``). In the
end the rows of the database alone are compared: each order was charged once, or regretted in time and never charged,
and nothing was charged without an order.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from django_delayq.core import fsck
from tests.acceptance.world import Mill, Node, until
from tests.support import processes
from tests.support.postgres_box import PostgresBox, PostgresDatabase
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from . import faults

BUYERS = 2
WORKERS = 2
#: s; shorter than the standstills among the faults
LEASE_SECONDS = 1.5
DRAIN_SECONDS = 120.0
#: a commit that was acknowledged must survive a kill of the server
SYNCED = ("synchronous_commit=on",)


@dataclass
class Scene(faults.Scene):
    """The deployment that the faults strike, with its database."""

    postgres: PostgresBox | None = None
    database: PostgresDatabase | None = None


def crash_database(scene: Scene) -> None:
    """Kill PostgreSQL and start it on the same data."""
    assert scene.postgres is not None
    scene.postgres.crash()


def end_sessions(scene: Scene) -> None:
    """End every session of the database, in the middle of whatever it does."""
    assert scene.database is not None
    with scene.database.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def freeze_sessions(scene: Scene) -> None:
    """Let the sessions of the database stand still for longer than the leases."""
    assert scene.database is not None
    pids = [pid for pid, _, _ in scene.database.sessions()]
    faults.signal_all(pids, signal.SIGSTOP)
    time.sleep(faults.STANDSTILL_SECONDS)
    faults.signal_all(pids, signal.SIGCONT)


def empty_redis(scene: Scene) -> None:
    """Let Redis lose everything."""
    scene.box.client().flushall()


FAULTS: tuple[Callable[[Scene], None], ...] = (
    crash_database,
    crash_database,
    end_sessions,
    freeze_sessions,
    empty_redis,
    faults.restart_redis,
    faults.refuse_connections,
    faults.lose_replies,
    faults.kill_host,
    faults.kill_process,
    faults.freeze_host,
)


def run(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run the campaign; print what happened and return the broken promises."""
    dice = random.Random(seed)
    with contextlib.ExitStack() as stack:
        scene = _scene(folder, dice, stack)
        with _buying(scene):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(dice.uniform(0.5, 2.0))
                scene.strike(FAULTS)
        return _broken(scene)


def _scene(folder: Path, dice: random.Random, stack: contextlib.ExitStack) -> Scene:
    """Start the servers and the workers."""
    postgres = stack.enter_context(PostgresBox("system", options=SYNCED))
    database = postgres.create()
    with database.connect() as connection:
        connection.execute("CREATE TABLE mill_sack (id bigserial PRIMARY KEY, name text NOT NULL)")
    box = stack.enter_context(RedisBox(tcp=True, aof="always"))
    proxy = stack.enter_context(TcpProxy(box.address))
    mill = stack.enter_context(Mill(proxy.url, folder, lease=LEASE_SECONDS, database=database.url, OUTBOX={}))
    _run_program(mill, "migrate", ["django", "migrate", "--verbosity", "0"])
    nodes = [mill.start("--processes", 2, "--threads", 3) for _ in range(WORKERS)]

    def start_node() -> Node:
        return mill.begin("--processes", 2, "--threads", 3, "--queues", "default")

    return Scene(mill, box, proxy, nodes, start_node, dice, postgres=postgres, database=database)


def _run_program(mill: Mill, name: str, arguments: list[str]) -> None:
    log = mill.folder / f"{name}.log"
    with log.open("w") as output:
        process = processes.spawn(
            [sys.executable, "-m", *arguments], env=mill.env(), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        assert process.wait(120) == 0, log.read_text()
    finally:
        processes.end(process)


@contextlib.contextmanager
def _buying(scene: Scene) -> Iterator[None]:
    """Orders come as long as the block lasts."""
    mill, enough = scene.mill, scene.mill.gate("enough")
    with contextlib.ExitStack() as stack:
        buyers = []
        for number in range(BUYERS):
            log = stack.enter_context((mill.folder / f"buyer{number}.log").open("w"))
            command: list[str | Path] = [sys.executable, "-m", "tests.acceptance.mill.buyer", f"buyer{number}", enough]
            buyers.append(processes.spawn(command, env=mill.env(), stdout=log, stderr=subprocess.STDOUT))
            stack.callback(processes.end, buyers[-1])
        yield
        enough.touch()
        codes = [buyer.wait(60) for buyer in buyers]
        assert codes == [0] * BUYERS, [log.read_text() for log in mill.folder.glob("buyer*.log")]


def _broken(scene: Scene) -> list[str]:
    """Wait until the outbox and the queue are empty; return all broken promises."""
    assert scene.database is not None
    with contextlib.suppress(AssertionError):  # what is left is listed below
        until(lambda: _rows(scene.database) == 0, "an empty outbox", DRAIN_SECONDS)
        scene.mill.wait_empty(timeout=DRAIN_SECONDS)
    left = _rows(scene.database)
    found = [f"{left} rows are left in the outbox"] if left else []
    orders, regrets, charges = (_names(scene.database, kind) for kind in ("order", "regret", "charge"))
    print(
        f"{len(orders)} orders committed, {len(regrets)} of them regretted; faults:",
        ", ".join(f"{count} {name}" for name, count in sorted(scene.struck.items())),
    )
    return [*found, *violations(orders, regrets, charges), *fsck.check(scene.mill.broker).violations]


def violations(orders: Counter[str], regrets: Counter[str], charges: Counter[str]) -> list[str]:
    """Return a sentence for every broken promise, given how often each id was ordered, regretted and charged."""
    found = []
    for ident in sorted(orders.keys() | charges.keys()):
        wanted = 1 if ident in orders and ident not in regrets else 0
        if charges[ident] != wanted:
            state = "regretted" if ident in regrets else "ordered" if ident in orders else "never committed"
            found.append(f"{ident}: {state}, and charged {charges[ident]} times")
    return found


def _rows(database: PostgresDatabase | None) -> int:
    return len(_query(database, "SELECT 1 FROM django_delayq_outboxjob"))


def _names(database: PostgresDatabase | None, kind: str) -> Counter[str]:
    found = _query(database, f"SELECT substr(name, {len(kind) + 2}) FROM mill_sack WHERE name LIKE '{kind} %'")
    return Counter(name for (name,) in found)


def _query(database: PostgresDatabase | None, sql: str) -> list[tuple[str]]:
    """Return the rows of a query; the server may be starting."""
    assert database is not None
    for _ in range(100):
        try:
            with database.connect() as connection:
                return connection.execute(sql.encode()).fetchall()
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("PostgreSQL does not answer")
