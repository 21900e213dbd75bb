"""A real Redis Cluster of three masters (no replicas), each a process of its own on loopback."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster

from .processes import wait_until
from .redis_box import RedisBox, free_port

SLOTS = 16384


class ClusterBox:
    """``with ClusterBox() as cluster: RedisCluster(startup_nodes=...)``. ``nodes`` are the boxes of the masters."""

    def __init__(self, masters: int = 3, *, binary: str | None = None, **config: object) -> None:
        settings: dict[str, Any] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": 1000,
            "cluster_require_full_coverage": "no",  # one dead master must not stop the others
            "databases": 1,
            **config,
        }
        # A node's cluster bus is its port + 10000.
        self.nodes = [RedisBox(port=free_port(also=10000), binary=binary, **settings) for _ in range(masters)]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of every node, for RedisConfig.cluster_nodes."""
        return tuple(node.address for node in self.nodes)

    def client(self, **options: object) -> RedisCluster:
        """A cluster client of your own; close it."""
        nodes = [ClusterNode(host, port) for host, port in self.addresses]
        return RedisCluster(startup_nodes=nodes, **options)  # type: ignore[arg-type]

    def node_of(self, key: str | bytes) -> RedisBox:
        """The master that holds ``key``'s slot now."""
        first = self.nodes[0].client()
        slot = int(first.execute_command("CLUSTER", "KEYSLOT", key))
        for low, high, master, *_ in first.execute_command("CLUSTER", "SLOTS"):
            if low <= slot <= high:
                return next(node for node in self.nodes if node.port == master[1])
        raise LookupError(f"slot {slot} is served by nobody")

    def start(self) -> ClusterBox:
        """Start the masters, share out the slots and wait until all of them agree."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(RedisBox.start, self.nodes))
        first = self.nodes[0]
        edges = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for number, node in enumerate(self.nodes):
            # Epochs given by hand: nodes that meet with equal ones need seconds to sort them out.
            node.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.client().execute_command("CLUSTER", "ADDSLOTS", *range(edges[number], edges[number + 1]))
            if node is not first:
                node.client().execute_command("CLUSTER", "MEET", *first.address)
        wait_until(lambda: all(map(self._complete, self.nodes)), 30, "a complete cluster")
        return self

    def flush(self) -> None:
        """Empty every master."""
        for node in self.nodes:
            if not node.running:
                node.start()
            node.flush()

    def close(self) -> None:
        """Kill every node and remove their folders."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> ClusterBox:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _complete(self, node: RedisBox) -> bool:
        try:
            told = node.client().execute_command("CLUSTER", "INFO")
            slots = node.client().execute_command("CLUSTER", "SLOTS")
        except redis.RedisError:
            return False
        text = told if isinstance(told, dict) else _fields(told)
        return (
            text["cluster_state"] == "ok"
            and int(text["cluster_slots_ok"]) == SLOTS
            and sum(high - low + 1 for low, high, *_ in slots) == SLOTS
        )


def _fields(text: bytes | str) -> dict[str, str]:
    plain = text.decode() if isinstance(text, bytes) else text
    return dict(line.split(":", 1) for line in plain.split() if ":" in line)
