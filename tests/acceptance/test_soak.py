"""A worker that runs long keeps its size: memory, descriptors, threads and connections stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .conftest import MakeMill
from .world import Mill

ROUNDS = 20
#: rounds until caches, pools and the allocator have what they need
WARM_UP = 5


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the worker's processes together."""

    mebibytes: float
    descriptors: int
    threads: int
    connections: int


#: what may be there besides: MiB that the allocator keeps, and threads, descriptors and connections that come and go
TOLERANCE = Size(4.0, 5, 2, 5)


class Soak:
    """A deployment whose connections are cut again and again."""

    def __init__(self, mill: Mill, box: RedisBox, proxy: TcpProxy) -> None:
        self.mill = mill
        self.box = box
        self.proxy = proxy
        self.node = mill.start("--threads", 4)

    def run(self, jobs: int, cuts: int) -> Size:
        """Run so many jobs while the connections are cut so often; return the sizes afterwards."""
        for cut in range(cuts):
            self.mill.put_many("grind_on", jobs // cuts)
            if cut:
                self.proxy.reset_connections()
            self.mill.wait_empty()
        return self.size()

    def size(self) -> Size:
        pids = [self.node.pid, *self.node.children()]
        status = [_status(pid) for pid in pids]
        clients = self.box.client().info("clients")
        return Size(
            sum(int(one["VmRSS"].split()[0]) for one in status) / 1024,
            sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
            sum(int(one["Threads"]) for one in status),
            int(clients["connected_clients"]),
        )


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize(
    ("jobs", "cuts"), [(4_000, 40), pytest.param(100_000, 200, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_jobs_and_reconnects_leave_nothing_behind_in_a_worker(
    make_mill: MakeMill,
    redis_factory: Callable[..., RedisBox],
    proxy_factory: Callable[..., TcpProxy],
    jobs: int,
    cuts: int,
) -> None:
    box = redis_factory(tcp=True)
    proxy = proxy_factory(box.address)
    soak = Soak(make_mill(proxy.url), box, proxy)
    pids = soak.node.children()
    sizes = [soak.run(jobs // ROUNDS, cuts // ROUNDS) for _ in range(ROUNDS)]
    assert soak.node.children() == pids, "no process was replaced"
    columns = list(zip(*map(astuple, sizes[WARM_UP:]), strict=True))
    first, last = ([median(column[part]) for column in columns] for part in (slice(None, 5), slice(-5, None)))
    grown = [now - before for before, now in zip(first, last, strict=True)]
    assert all(growth <= most for growth, most in zip(grown, astuple(TOLERANCE), strict=True)), sizes
