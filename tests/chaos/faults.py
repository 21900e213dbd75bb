"""Faults of a campaign: each strikes once and is over when its function returns."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.world import Mill, Node
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

#: s; longer than the lease of the campaign's jobs
STANDSTILL_SECONDS = 2.5


@dataclass
class Scene:
    """The deployment that the faults strike."""

    mill: Mill
    box: RedisBox
    proxy: TcpProxy
    nodes: list[Node]
    start_node: Callable[[], Node]
    dice: random.Random
    struck: dict[str, int] = field(default_factory=dict)

    def strike(self, faults: Sequence[Callable[[Any], None]] = ()) -> None:
        """Let one of the faults happen, drawn by the seed."""
        fault = self.dice.choice(faults or FAULTS)
        fault(self)
        self.struck[fault.__name__] = self.struck.get(fault.__name__, 0) + 1


def kill_host(scene: Scene) -> None:
    """Kill a worker with all its processes; another one takes its place."""
    place = scene.dice.randrange(len(scene.nodes))
    scene.nodes[place].kill()
    scene.nodes[place] = scene.start_node()


def kill_process(scene: Scene) -> None:
    """Kill one process of a worker; its supervisor starts another one."""
    _signal_one(scene, signal.SIGKILL)


def freeze_process(scene: Scene) -> None:
    """Stop one process for longer than its leases."""
    pid = _signal_one(scene, signal.SIGSTOP)
    _pause(STANDSTILL_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def freeze_host(scene: Scene) -> None:
    """Stop a worker with all its processes for longer than its leases, as a machine that is suspended or swaps."""
    node = scene.dice.choice(scene.nodes)
    pids = [node.pid, *node.children()]
    signal_all(pids, signal.SIGSTOP)
    _pause(STANDSTILL_SECONDS)
    signal_all(pids, signal.SIGCONT)


def restart_redis(scene: Scene) -> None:
    """Kill Redis and start it on the same data."""
    scene.box.restart()


def freeze_redis(scene: Scene) -> None:
    """Let Redis stand still for longer than the leases."""
    scene.box.pause()
    _pause(STANDSTILL_SECONDS)
    scene.box.resume()


def cut_connections(scene: Scene) -> None:
    """Reset every connection of the workers and of the client."""
    scene.proxy.reset_connections()


def lose_replies(scene: Scene) -> None:
    """Let Redis apply the next requests, and drop their replies."""
    scene.proxy.cut_after_request(scene.dice.randint(1, 20), times=5)


def refuse_connections(scene: Scene) -> None:
    """Refuse connections for a second."""
    scene.proxy.refuse()
    _pause(1.0)
    scene.proxy.passing()


def swallow_bytes(scene: Scene) -> None:
    """Keep connections open without forwarding anything for a second."""
    scene.proxy.blackhole()
    _pause(1.0)
    scene.proxy.passing()


def flush_scripts(scene: Scene) -> None:
    """Let Redis forget its scripts."""
    scene.box.client().script_flush()


FAULTS: tuple[Callable[[Scene], None], ...] = (
    kill_host,
    kill_process,
    freeze_process,
    freeze_host,
    restart_redis,
    freeze_redis,
    cut_connections,
    lose_replies,
    refuse_connections,
    swallow_bytes,
    flush_scripts,
)


def _signal_one(scene: Scene, number: int) -> int:
    pids = scene.dice.choice(scene.nodes).children()
    if not pids:
        return os.getpid()
    pid = scene.dice.choice(pids)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return pid


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
