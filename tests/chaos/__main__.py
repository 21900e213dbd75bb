"""Run the campaigns: ``python -m tests.chaos [--seconds 60] [--seed N] [--only server|cluster|durable]``."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from django_delayq.core import fsck
from tests.acceptance.world import Mill
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from . import durable, masters
from .client import LIMITS, QUEUE_LIMITS, Client
from .faults import Scene
from .history import exceeded, violations

WORKERS = 2
CLIENTS = 2
#: s; shorter than the standstills among the faults
LEASE_SECONDS = 1.5
QUEUES = ("default", *QUEUE_LIMITS)
#: s; beside the length of the campaign, in which more jobs come than their limits let start
DRAIN_SECONDS = 90.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _options(arguments)
    print(f"seed {options.seed}, {options.seconds:g} s of faults")
    code = 0
    for name, campaign in CAMPAIGNS.items():
        if options.only in ("", name):
            with tempfile.TemporaryDirectory() as folder:
                broken = campaign(Path(folder), options.seconds, options.seed)
            for sentence in broken[:50]:
                print("BROKEN", sentence, file=sys.stderr)
            print(f"{name}: {len(broken)} broken promises", flush=True)
            code = max(code, int(bool(broken)))
    return code


def run(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run the campaign on one server; print what happened and return the broken promises."""
    with contextlib.ExitStack() as stack:
        scene = _scene(folder, random.Random(seed), stack)
        clients = [Client(scene.mill.broker, f"client{number}", seed + number) for number in range(CLIENTS)]
        with contextlib.ExitStack() as running:
            for client in clients:
                running.enter_context(client)
            _strike_for(scene, seconds)
        broken = _broken(scene, clients, DRAIN_SECONDS + seconds)
        _print_history(scene, clients)
    return broken


#: one server; a cluster whose masters die; durable jobs beside a PostgreSQL that dies
CAMPAIGNS: Mapping[str, Callable[[Path, float, int], list[str]]] = {
    "server": run,
    "cluster": masters.run,
    "durable": durable.run,
}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults strike (default: 60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the faults and the jobs")
    parser.add_argument("--only", choices=CAMPAIGNS, default="", help="run this campaign alone")
    return parser.parse_args(arguments)


def _scene(folder: Path, dice: random.Random, stack: contextlib.ExitStack) -> Scene:
    """Start Redis, the proxy and the workers."""
    # What was acknowledged must survive a kill of Redis, so every write is synced.
    box = stack.enter_context(RedisBox(tcp=True, aof="always"))
    proxy = stack.enter_context(TcpProxy(box.address))
    mill = stack.enter_context(Mill(proxy.url, folder, lease=LEASE_SECONDS, QUEUES=QUEUE_LIMITS))
    options, queues = ("--processes", 2, "--threads", 3), ",".join(QUEUES)
    nodes = [mill.start(*options, queues=queues) for _ in range(WORKERS)]
    return Scene(mill, box, proxy, nodes, lambda: mill.begin(*options, "--queues", queues), dice)


def _strike_for(scene: Scene, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(scene.dice.uniform(0.2, 1.5))
        scene.strike()


def _broken(scene: Scene, clients: list[Client], patience: float) -> list[str]:
    """Wait until the queues are empty, for so many seconds, and return all broken promises."""
    found = [f"{error!r} in a client" for client in clients for error in client.errors]
    with contextlib.suppress(AssertionError):  # the jobs that are left are listed below
        for name in QUEUES:
            scene.mill.wait_empty(name, timeout=patience)
    inspector = scene.mill.broker.inspector
    promises = [promise for client in clients for promise in client.promises]
    live = [
        promise.id
        for promise in promises
        if (view := inspector.get(promise.queue, promise.id)) and view.state != "morgue"
    ]
    morgue = [promise.id for promise in promises if inspector.graves(promise.queue, promise.id)]
    found += violations(promises, scene.mill.lines(), morgue, live)
    found += exceeded(promises, scene.mill.lines(), LIMITS, LEASE_SECONDS)
    return found + fsck.check(scene.mill.broker).violations


def _print_history(scene: Scene, clients: list[Client]) -> None:
    jobs = sum(len(client.promises) for client in clients)
    starts = scene.mill.starts_by_id()
    repeated = sum(count - 1 for ident, count in starts.items() if "failing" not in ident)
    print(f"{jobs} jobs acknowledged, {sum(client.outages for client in clients)} calls that met an outage")
    print("faults:", ", ".join(f"{count} {name}" for name, count in sorted(scene.struck.items())))
    print(f"{repeated} attempts were repeated after a fault (delivery is at least once)")


if __name__ == "__main__":
    sys.exit(main())
