"""Real Redis Cluster, each node a process of its own on loopback: three masters, with replicas on request."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster

from .processes import wait_until
from .redis_box import RedisBox, free_port

SLOTS = 16384
#: seconds after which an orderly failover that did not happen is asked for again
ORDERLY_SECONDS = 6.0


class ClusterBox:
    """``with ClusterBox() as cluster: connect(RedisConfig.parse(cluster.setting))``.

    ``nodes`` are the boxes of the initial masters; with ``replicas=True``, ``replicas`` holds one for each of them in
    the same order; ``config`` are settings of every node.
    """

    def __init__(
        self,
        masters: int = 3,
        *,
        replicas: bool = False,
        binary: str | None = None,
        aof: str | None = None,
        **config: object,
    ) -> None:
        self._settings: dict[str, Any] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": 1000,
            "cluster_require_full_coverage": "no",  # one dead master must not stop the others
            "cluster_migration_barrier": 100,  # replicas stay with their masters
            "repl_diskless_sync_delay": 0,
            "databases": 1,
            **config,
        }
        self._program = {"binary": binary, "aof": aof}
        self.nodes = [self._box() for _ in range(masters)]
        self.replicas = [self._box() for _ in self.nodes] if replicas else []

    def _box(self) -> RedisBox:
        # A node's cluster bus is its port + 10000.
        return RedisBox(port=free_port(also=10000), **{**self._program, **self._settings})

    @property
    def boxes(self) -> list[RedisBox]:
        """All nodes."""
        return [*self.nodes, *self.replicas]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of every initial master, for RedisConfig.cluster_nodes."""
        return tuple(node.address for node in self.nodes)

    @property
    def setting(self) -> dict[str, list[str]]:
        """Value for RedisConfig.parse and the setting ``REDIS``."""
        return {"CLUSTER": [f"{host}:{port}" for host, port in self.addresses]}

    def client(self, **options: object) -> RedisCluster:
        """Return a new cluster client, which the caller closes."""
        nodes = [ClusterNode(host, port) for host, port in self.addresses]
        return RedisCluster(startup_nodes=nodes, **options)  # type: ignore[arg-type]

    # --- slots

    def slot_of(self, key: str | bytes) -> int:
        """Return the slot of ``key``."""
        return int(self._any().execute_command("CLUSTER", "KEYSLOT", key))

    def node_of(self, key: str | bytes) -> RedisBox:
        """Return the master that holds ``key``'s slot now."""
        return self.owner(self.slot_of(key))

    def move(self, slot: int, target: RedisBox) -> Move:
        """Open a slot for its move to another master; see :class:`Move`."""
        return Move(self, slot, self.owner(slot), target)

    def a_key_of(self, node: RedisBox) -> str:
        """Return a key whose slot this master holds now."""
        return next(key for key in map(str, range(SLOTS)) if self.node_of(key) is node)

    def owner(self, slot: int) -> RedisBox:
        """Return the present master of a slot."""
        for low, high, master, *_ in self._any().execute_command("CLUSTER", "SLOTS"):
            if low <= slot <= high:
                return next(node for node in self.boxes if node.port == master[1])
        raise LookupError(f"slot {slot} is served by nobody")

    def _any(self) -> redis.Redis:
        return next(node for node in self.nodes if node.running).client()

    # --- life

    def start(self) -> ClusterBox:
        """Start the nodes, distribute the slots and wait until all nodes agree."""
        with ThreadPoolExecutor(len(self.boxes)) as pool:
            list(pool.map(RedisBox.start, self.boxes))
        first = self.nodes[0]
        edges = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for number, node in enumerate(self.boxes):
            # Set the epochs explicitly: nodes that meet with equal ones need seconds to resolve the conflict.
            node.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < len(self.nodes):
                node.client().execute_command("CLUSTER", "ADDSLOTS", *range(edges[number], edges[number + 1]))
            if node is not first:
                node.client().execute_command("CLUSTER", "MEET", *first.address)
        wait_until(lambda: all(map(self._complete, self.boxes)), 30, "a complete cluster")
        for node, replica in zip(self.nodes, self.replicas, strict=False):
            replica.client().execute_command("CLUSTER", "REPLICATE", node_id(node))
        wait_until(lambda: all(map(RedisBox.in_step, self.replicas)), 30, "the replicas' first copies")
        return self

    def add_master(self) -> RedisBox:
        """Add a master without slots, and wait until every node lists it."""
        added = self._box().start()
        added.client().execute_command("CLUSTER", "MEET", *self.nodes[0].address)
        self.nodes.append(added)
        known = len(self.boxes)
        wait_until(
            lambda: (
                all(len(cluster_info(node, "NODES").split(b"\n")) > known for node in self.boxes)
                and self._complete(added)
            ),
            30,
            "a cluster that knows the new node",
        )
        return added

    def fail_over(self, number: int, *, crash: bool) -> RedisBox:
        """Make the replica of ``nodes[number]`` master, after ``kill -9`` or in an orderly way; return the new master.

        A killed master stays down. After ``start()`` it becomes a replica.
        """
        old, new = self.nodes[number], self.replicas[number]
        if crash:
            old.kill()
        self.nodes[number], self.replicas[number] = new, old
        living = [node for node in self.boxes if node.running]
        asked_at = 0.0

        def is_done() -> bool:
            nonlocal asked_at
            if all(new.port in _masters(node) and self._complete(node) for node in living):
                return True
            # The servers give an orderly failover up after 5 s, for instance if a vote was late, and do not repeat it.
            if not crash and time.monotonic() - asked_at > ORDERLY_SECONDS:
                asked_at = time.monotonic()
                with suppress(redis.ResponseError):  # it has become master meanwhile
                    new.client().execute_command("CLUSTER", "FAILOVER")
            return False

        wait_until(is_done, 60, "failover")
        return new

    def settled(self) -> bool:
        """Return True if all nodes agree about the configuration epoch of every node, and no two epochs are equal."""
        views = [_epochs(node) for node in self.boxes if node.running]
        masters = [node_id(node) for node in self.nodes if node.running]
        return all(view == views[0] for view in views) and len({views[0].get(name) for name in masters}) == len(masters)

    def flush(self) -> None:
        """Empty every master."""
        self.revive()
        for node in self.nodes:
            node.flush()

    def revive(self) -> None:
        """Start the masters that do not run, and wait until all nodes serve their slots again.

        A node that runs again may still believe for seconds that the cluster is down.
        """
        for node in self.nodes:
            if not node.running:
                node.start()
        wait_until(lambda: all(map(self._complete, self.boxes)), 30, "a complete cluster")

    def close(self) -> None:
        """Kill every node and remove their folders."""
        for node in self.boxes:
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
            text = _fields(cluster_info(node, "INFO"))
            slots = node.client().execute_command("CLUSTER", "SLOTS")
        except redis.RedisError:
            return False
        return (
            text["cluster_state"] == "ok"
            and int(text["cluster_slots_ok"]) == SLOTS
            and int(text["cluster_known_nodes"]) == len(self.boxes)
            and sum(high - low + 1 for low, high, *_ in slots) == SLOTS
        )


class Move:
    """Move of a slot from one master to another, step by step as ``redis-cli --cluster reshard`` does it.

    While it is open Redis rejects a script whose keys are not all on one side.
    """

    def __init__(self, cluster: ClusterBox, slot: int, source: RedisBox, target: RedisBox) -> None:
        self.slot, self.source, self.target = slot, source, target
        # Two concurrent changes by nodes that have not synchronised could give one slot two owners.
        wait_until(cluster.settled, 30, "nodes that agree about who changed what when")
        self._refused = refusals(source, target)
        self._others = [node for node in cluster.nodes if node not in (source, target) and node.running]
        target.client().execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        source.client().execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))

    def carry(self, limit: int = 1) -> int:
        """Transfer up to ``limit`` keys; return their number."""
        keys = self.source.client().execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, limit)
        if keys:
            host, port = self.target.address
            self.source.client().execute_command("MIGRATE", host, port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def was_refused(self) -> bool:
        """Return True if a command was redirected by this move (or another one of these nodes since its start)."""
        return refusals(self.source, self.target) > self._refused

    def finish(self) -> None:
        """Transfer the rest and assign the slot to its new master."""
        while self.carry(100):
            pass
        for node in (self.target, self.source, *self._others):
            node.client().execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))


def refusals(*nodes: RedisBox) -> int:
    """Return how often these nodes have redirected a command because of a slot that moves."""
    told = [node.client().info("errorstats") for node in nodes]
    return sum(stats.get(f"errorstat_{code}", {}).get("count", 0) for stats in told for code in ("TRYAGAIN", "ASK"))


def node_id(node: RedisBox) -> str:
    """Return the name of a node inside its cluster."""
    return cluster_info(node, "MYID").decode()


def cluster_info(node: RedisBox, word: str) -> bytes:
    """Return the raw reply to CLUSTER ``word``; some versions of redis-py would convert some of them to dicts."""
    connection: Any = node.client().connection_pool.get_connection()
    try:
        connection.send_command("CLUSTER", word)
        return bytes(connection.read_response())
    finally:
        node.client().connection_pool.release(connection)


def _masters(node: RedisBox) -> list[int]:
    """Return the ports of the masters that hold slots, according to a node."""
    return [int(master[1]) for _, _, master, *_ in node.client().execute_command("CLUSTER", "SLOTS")]


def _epochs(node: RedisBox) -> dict[str, str]:
    """Return the configuration epochs of all nodes, according to one of them."""
    lines = [line.split() for line in cluster_info(node, "NODES").decode().splitlines()]
    return {fields[0]: fields[6] for fields in lines}


def _fields(text: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.decode().split() if ":" in line)
