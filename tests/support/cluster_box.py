"""A real Redis Cluster, each node a process of its own on loopback: three masters, with replicas if wanted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster

from .processes import wait_until
from .redis_box import RedisBox, free_port

SLOTS = 16384


class ClusterBox:
    """``with ClusterBox() as cluster: connect(RedisConfig.parse(cluster.setting))``.

    ``nodes`` are the boxes of the masters at the start, ``replicas`` with ``replicas=True`` one more for each of them
    in the same order; ``config`` are settings of every node.
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
        """Every node."""
        return [*self.nodes, *self.replicas]

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of every first master, for RedisConfig.cluster_nodes."""
        return tuple(node.address for node in self.nodes)

    @property
    def setting(self) -> dict[str, list[str]]:
        """What RedisConfig.parse and the setting ``REDIS`` want."""
        return {"CLUSTER": [f"{host}:{port}" for host, port in self.addresses]}

    def client(self, **options: object) -> RedisCluster:
        """A cluster client of your own; close it."""
        nodes = [ClusterNode(host, port) for host, port in self.addresses]
        return RedisCluster(startup_nodes=nodes, **options)  # type: ignore[arg-type]

    # --- slots

    def slot_of(self, key: str | bytes) -> int:
        """The slot in which ``key`` lies."""
        return int(self._any().execute_command("CLUSTER", "KEYSLOT", key))

    def node_of(self, key: str | bytes) -> RedisBox:
        """The master that holds ``key``'s slot now."""
        return self.owner(self.slot_of(key))

    def move(self, slot: int, target: RedisBox) -> Move:
        """Opens a slot for its move to another master; see :class:`Move`."""
        return Move(self, slot, self.owner(slot), target)

    def a_key_of(self, node: RedisBox) -> str:
        """A key that lies at this master now."""
        return next(key for key in map(str, range(SLOTS)) if self.node_of(key) is node)

    def owner(self, slot: int) -> RedisBox:
        """The master of a slot now."""
        for low, high, master, *_ in self._any().execute_command("CLUSTER", "SLOTS"):
            if low <= slot <= high:
                return next(node for node in self.boxes if node.port == master[1])
        raise LookupError(f"slot {slot} is served by nobody")

    def _any(self) -> redis.Redis:
        return next(node for node in self.nodes if node.running).client()

    # --- life

    def start(self) -> ClusterBox:
        """Start the nodes, share out the slots and wait until all of them agree."""
        with ThreadPoolExecutor(len(self.boxes)) as pool:
            list(pool.map(RedisBox.start, self.boxes))
        first = self.nodes[0]
        edges = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for number, node in enumerate(self.boxes):
            # Epochs given by hand: nodes that meet with equal ones need seconds to sort them out.
            node.client().execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < len(self.nodes):
                node.client().execute_command("CLUSTER", "ADDSLOTS", *range(edges[number], edges[number + 1]))
            if node is not first:
                node.client().execute_command("CLUSTER", "MEET", *first.address)
        wait_until(lambda: all(map(self._complete, self.boxes)), 30, "a complete cluster")
        for node, replica in zip(self.nodes, self.replicas, strict=False):
            replica.client().execute_command("CLUSTER", "REPLICATE", node_id(node))
        wait_until(lambda: all(map(_in_step, self.replicas)), 30, "the replicas' first copies")
        return self

    def add_master(self) -> RedisBox:
        """One more master, without slots, which every node knows."""
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
        """Make the replica of ``nodes[number]`` master: ``kill -9`` the master, or in good order. Returns the new one.

        A killed master stays down; ``start()`` it yourself: it becomes a replica.
        """
        old, new = self.nodes[number], self.replicas[number]
        if crash:
            old.kill()
        else:
            new.client().execute_command("CLUSTER", "FAILOVER")
        self.nodes[number], self.replicas[number] = new, old
        living = [node for node in self.boxes if node.running]
        wait_until(lambda: all(new.port in _masters(node) and self._complete(node) for node in living), 30, "failover")
        return new

    def settled(self) -> bool:
        """Whether all nodes agree about the age of every node's configuration, and no two are equally old."""
        views = [_epochs(node) for node in self.boxes if node.running]
        masters = [node_id(node) for node in self.nodes if node.running]
        return all(view == views[0] for view in views) and len({views[0].get(name) for name in masters}) == len(masters)

    def flush(self) -> None:
        """Empty every master."""
        for node in self.nodes:
            if not node.running:
                node.start()
            node.flush()

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
    """A slot on its way from one master to another, as ``redis-cli --cluster reshard`` does it: step by step.

    While it is open Redis refuses a script whose keys do not all lie on one side.
    """

    def __init__(self, cluster: ClusterBox, slot: int, source: RedisBox, target: RedisBox) -> None:
        self.slot, self.source, self.target = slot, source, target
        # Two changes of different nodes before they have heard of each other could end with two owners of one slot.
        wait_until(cluster.settled, 30, "nodes that agree about who changed what when")
        self._refused = refusals(source, target)
        self._others = [node for node in cluster.nodes if node not in (source, target) and node.running]
        target.client().execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        source.client().execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))

    def carry(self, limit: int = 1) -> int:
        """Takes up to ``limit`` keys over; returns how many there were."""
        keys = self.source.client().execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, limit)
        if keys:
            host, port = self.target.address
            self.source.client().execute_command("MIGRATE", host, port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def was_refused(self) -> bool:
        """Whether a command was sent away because of this move (or another one of these nodes since its start)."""
        return refusals(self.source, self.target) > self._refused

    def finish(self) -> None:
        """Takes the rest over and gives the slot to its new master."""
        while self.carry(100):
            pass
        for node in (self.target, self.source, *self._others):
            node.client().execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))


def refusals(*nodes: RedisBox) -> int:
    """How often these nodes have sent a command away because of a slot that moves."""
    told = [node.client().info("errorstats") for node in nodes]
    return sum(stats.get(f"errorstat_{code}", {}).get("count", 0) for stats in told for code in ("TRYAGAIN", "ASK"))


def node_id(node: RedisBox) -> str:
    """The name of a node inside its cluster."""
    return cluster_info(node, "MYID").decode()


def cluster_info(node: RedisBox, word: str) -> bytes:
    """The raw answer to CLUSTER ``word``: redis-py would turn some of them into dicts, by version."""
    connection: Any = node.client().connection_pool.get_connection()
    try:
        connection.send_command("CLUSTER", word)
        return bytes(connection.read_response())
    finally:
        node.client().connection_pool.release(connection)


def _masters(node: RedisBox) -> list[int]:
    """Ports of the masters that hold slots, as a node sees it."""
    return [int(master[1]) for _, _, master, *_ in node.client().execute_command("CLUSTER", "SLOTS")]


def _epochs(node: RedisBox) -> dict[str, str]:
    """The configuration epochs of all nodes, as one of them knows them."""
    lines = [line.split() for line in cluster_info(node, "NODES").decode().splitlines()]
    return {fields[0]: fields[6] for fields in lines}


def _in_step(replica: RedisBox) -> bool:
    return bool(replica.client().info("replication").get("master_link_status") == "up")


def _fields(text: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text.decode().split() if ":" in line)
