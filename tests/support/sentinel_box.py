"""Master, replica and one sentinel (quorum 1), each a process of its own on loopback."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import redis
from redis.sentinel import Sentinel

from . import processes
from .processes import wait_until
from .redis_box import RedisBox, free_port, redis_binary


class SentinelBox:
    """``with SentinelBox() as group: group.master_client().set(...); group.fail_over()``.

    ``down_after`` is the time in ms after which the sentinel regards a silent master as down.
    """

    name = "shop"

    def __init__(self, *, binary: str | None = None, down_after: int = 500, **config: object) -> None:
        self.binary = redis_binary(binary)
        self.down_after = down_after
        # Without setting the diskless delay a replica would wait 5 s for its first copy.
        settings: dict[str, Any] = {"repl_diskless_sync_delay": 0, **config}
        self.first = RedisBox(tcp=True, binary=self.binary, **settings)
        self.second = RedisBox(tcp=True, binary=self.binary, **settings)
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="dq-sentinel-"))
        self._process: subprocess.Popen[Any] | None = None
        self._client: redis.Redis | None = None

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of the sentinels, for RedisConfig.sentinels."""
        return (("127.0.0.1", self.port),)

    def client(self) -> redis.Redis:
        """Return a client of the sentinel itself, closed with the box."""
        if self._client is None:
            self._client = redis.Redis(port=self.port, socket_timeout=5)
        return self._client

    def sentinel(self, **options: Any) -> Sentinel:
        """Return redis-py's Sentinel for this group; the caller closes its clients."""
        return Sentinel(list(self.addresses), socket_timeout=5, **options)

    @property
    def master(self) -> RedisBox:
        """Box that the sentinel names as master now."""
        address = self.client().execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
        return self.first if int(address[1]) == self.first.port else self.second

    @property
    def replica(self) -> RedisBox:
        """Box that is not the master."""
        return self.second if self.master is self.first else self.first

    def start(self) -> SentinelBox:
        """Start all three; return when the replica is in sync and registered with the sentinel."""
        self.first.start()
        self.second.start()
        self.second.follow(self.first)
        self.second.config["replicaof"] = f"127.0.0.1 {self.first.port}"
        (self.directory / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\nlogfile {self.directory}/sentinel.log\n"
            f"sentinel monitor {self.name} 127.0.0.1 {self.first.port} 1\n"
            f"sentinel down-after-milliseconds {self.name} {self.down_after}\n"
            f"sentinel failover-timeout {self.name} 3000\n"
        )
        command = [self.binary, str(self.directory / "sentinel.conf"), "--sentinel"]
        self._process = processes.spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._replica_known, 30, "the sentinel's knowledge of the replica")
        return self

    def fail_over(self, *, crash: bool = True, timeout: float = 30.0) -> RedisBox:
        """Make the replica master, after ``kill -9`` or by a command (``crash=False``); return the new master.

        A killed master stays down. After ``start()`` the sentinel makes it a replica.
        """
        old, new = self.master, self.replica
        if crash:
            old.kill()
        else:
            self.client().execute_command("SENTINEL", "FAILOVER", self.name)
        wait_until(lambda: self._leads(new), timeout, "the failover")
        new.config.pop("replicaof", None)
        return new

    def close(self) -> None:
        """Kill all three and remove their folders."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            processes.end(self._process)
        self.second.close()
        self.first.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> SentinelBox:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leads(self, box: RedisBox) -> bool:
        """Return True if the box is the master, also in the list of masters, which changes last and redis-py reads."""
        listed: Any = self.client().sentinel_masters()
        return self.master is box and listed[self.name]["port"] == box.port and self._role(box) == "master"

    def _role(self, box: RedisBox) -> str:
        try:
            return str(box.client().info("replication")["role"])
        except redis.RedisError:
            return ""

    def _replica_known(self) -> bool:
        try:
            known = self.client().execute_command("SENTINEL", "REPLICAS", self.name)
        except redis.RedisError:
            return False
        # redis-py returns dicts or flat lists, depending on its version
        flags = [_as_dict(entry)[b"flags"] for entry in known]
        return flags == [b"slave"]  # "slave,disconnected" until the sentinel has connected to it


def _as_dict(entry: Any) -> dict[bytes, bytes]:
    pairs = entry.items() if isinstance(entry, dict) else zip(entry[::2], entry[1::2], strict=True)
    return {_bytes(name): _bytes(value) for name, value in pairs}


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
