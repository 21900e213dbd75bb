"""A standalone cluster of Spark on this machine: a master and workers, each on a loopback address of its own.

Spark tries a slow task once more only on another host, and hosts are told apart by their addresses, so a second worker
at 127.0.0.2 is to Spark what a second machine is.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pyspark

from tests.support import processes

from .few_rows import JAVA

_HOME: Final = Path(pyspark.__file__).parent
_MASTER: Final = r"Starting Spark master at (spark://\S+)"
_JOINED: Final = r"(Successfully registered with master)"
#: what a driver needs of such a small machine, and that no task begins before all executors are there
CONF: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
}


class Standalone:
    """A running cluster; :meth:`close` ends all of it, executors included.

    Args:
        folder: for logs and what executors leave.
        workers: of one core each.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self.hosts = [f"127.0.0.{number}" for number in range(1, workers + 1)]
        with ExitStack() as stack:
            master = self._start(stack, "master", self.hosts[0])
            self.url = self._said(*master, _MASTER)
            joining = [
                self._start(stack, "worker", host, "-c", "1", "-m", "1g", "-d", str(folder / host), self.url)
                for host in self.hosts
            ]
            for worker in joining:
                self._said(*worker, _JOINED)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Ends the workers, then the master."""
        self._stack.close()

    def _start(self, stack: ExitStack, role: str, host: str, *more: str) -> tuple[subprocess.Popen[Any], Path]:
        said = self._folder / f"{role}-{host}.log"
        command = [
            _HOME / "bin" / "spark-class",
            f"org.apache.spark.deploy.{role}.{role.title()}",
            "--host",
            host,
            "--port",
            "0",
            "--webui-port",
            "0",
            *more,
        ]
        env = {"SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(_HOME), "TZ": "UTC"}
        with said.open("w") as log:
            process = processes.spawn(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        stack.callback(_end, process)
        return process, said

    @staticmethod
    def _said(process: subprocess.Popen[Any], log: Path, words: str) -> str:
        """Wait until a process has logged a text, and return it."""

        def look() -> re.Match[str] | None:
            text = log.read_text()
            assert process.poll() is None, text[-2000:]
            return re.search(words, text)

        found = processes.wait_until(look, 60, f"{words} in {log}")
        assert found is not None
        return found[1]


def has_hosts() -> bool:
    """Return True if this machine has several loopback addresses (Linux has, macOS has not)."""
    with socket.socket() as made, suppress(OSError):
        made.bind(("127.0.0.2", 0))
        return True
    return False


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends a master or worker and whatever it has started: executors, and the Pythons of these."""
    session = process.pid
    processes.end(process)
    for pid in _members(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    processes.wait_until(lambda: not _members(session), 20, "the end of what a worker has started")


def _members(session: int) -> list[int]:
    found = []
    for pid in processes.leaked():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found
