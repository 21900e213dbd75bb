"""Processes that a server forks after it has loaded the site, and used Redis, share nothing with each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import processes
from tests.support.redis_box import free_port

from .world import Mill, until

WORKERS = 3


class Site:
    """A gunicorn with ``--preload``."""

    def __init__(self, mill: Mill) -> None:
        self.port = free_port()
        self.log = mill.folder / "gunicorn.log"
        options = ["--preload", "--workers", str(WORKERS), "--threads", "4", "--bind", f"127.0.0.1:{self.port}"]
        with self.log.open("w") as output:
            self.process = processes.spawn(
                [sys.executable, "-m", "gunicorn", *options, "tests.acceptance.mill.site:application"],
                env=mill.env(),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def workers(self) -> list[int]:
        return processes.children(self.process.pid)

    def visit(self, name: str) -> tuple[int, str]:
        """Return the process that answered, and the outcome."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{name}", timeout=20) as response:
            pid, outcome = response.read().decode().split()
            return int(pid), outcome

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            self.visit("ready")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True


@pytest.fixture
def site(mill: Mill) -> Iterator[Site]:
    site = Site(mill)
    try:
        until(site.answers, "the first answer")
        yield site
    finally:
        processes.end(site.process)


def test_forked_workers_schedule_each_job_once_over_connections_of_their_own(mill: Mill, site: Site) -> None:
    names = [f"job-{number}" for number in range(300)]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(site.visit, names[:200]))
        os.kill(site.workers[0], signal.SIGKILL)  # the master forks another one
        until(lambda: len(site.workers) == WORKERS, "another worker")
        until(site.answers, "answers after the kill")
        answers += pool.map(site.visit, names[200:])
    pids = Counter(pid for pid, _ in answers)
    assert len(pids) >= WORKERS
    assert site.process.pid not in pids
    assert {outcome for _, outcome in answers} == {"created"}
    mill.start("--threads", 3)
    mill.wait_ended([*names, "preloaded"])
    starts = mill.starts_by_id()
    assert {starts[name] for name in [*names, "preloaded"]} == {1}, "the forked processes did not schedule it again"
