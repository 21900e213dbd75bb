"""Registry of the queues of a deployment: a hash in Redis with the layout of each queue, and the queues opened here.

The layout is authoritative. A process believes the one that it read last, and reads it again from time to time and
whenever a shard turns out to be closed. Each shard has the rules that follow from the layout, where the scripts read
them. If a change is interrupted in between, or Redis loses a shard, the next tick of a dispatcher restores the rules.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, Unpack
from zlib import crc32

from . import layouts
from .deployment import Deployment
from .errors import InvalidJob, QueueUnavailable
from .inputs import unknown_queue
from .job import NewJob, new_request
from .layouts import Epochs, Layout, QueueLimits
from .records.frames import pack
from .records.keys import Shard, number_of
from .redis.connection import PARTIAL_SECONDS
from .redis.scripts import clear_errors
from .thread_lock import ThreadLock
from .times import span_ms_of

log = logging.getLogger(__name__)

#: longest time for which a call waits for the registry of a cluster, in seconds, if the layout is known
REGISTRY_SECONDS: Final = 1.0
#: field of the registry: since when the producers of all queues are paused, Unix ms
PRODUCERS_FIELD: Final = b"-producers"


class ShardSet:
    """Shards of one queue, as its layout names them.

    Other threads replace the layout at any moment: who needs two facts about it takes both from one of its attributes.
    """

    layout: Layout
    kind: str
    #: numbers of all shards that may hold jobs, those of older epochs first; none for a deleted queue
    numbers: tuple[int, ...]
    #: (epoch, shards) of these shards
    epochs: Epochs
    #: True if the queue was deleted, as far as this process has read
    deleted: bool
    #: shards of the present epoch, for new jobs
    present: tuple[Shard, ...]

    def __init__(self, registry: QueueRegistry[ShardSet], name: str, layout: Layout) -> None:
        self.registry = registry
        self.deployment = registry.deployment
        self.name = name
        #: moment (monotonic) until which no room is searched, because there was none (:mod:`.quotas`)
        self.full_until = 0.0
        #: moment (monotonic) at which the layout was read last, or could not be read on a cluster
        self.read_at = 0.0
        self.install(layout)

    def install(self, layout: Layout) -> None:
        """Adopt the layout that the registry has of the queue now."""
        epochs = layouts.epochs_of(layout)
        present = tuple(map(self.shard, layouts.shard_numbers(layout["epoch"], layout["shards"])))
        # In one step, because other threads copy or read these without a lock.
        vars(self).update(
            layout=layout,
            kind=layout["kind"],
            numbers=tuple(layouts.all_numbers(epochs)),
            epochs=epochs,
            deleted=layouts.is_deleted(layout),
            present=present,
        )

    def reload(self) -> bool:
        """Read the layout again; return True if the set of shards has changed."""
        before = self.epochs
        self.registry.read_layout(self.name)
        return self.epochs != before

    @property
    def shards(self) -> int:
        """Number of shards of the present epoch."""
        return int(self.layout["shards"])

    def shard(self, number: int) -> Shard:
        """Return keys and constants of a shard, whatever its epoch."""
        return self.deployment.shard(self.name, number)

    def text_of_other_shards(self, shards: int) -> str:
        """Return the message for a process that is configured for another number of shards."""
        return (
            f"queue {self.name!r} has {self.shards} shards in Redis, but {shards} are configured; Redis decides. To "
            f"change it: manage.py delayq_reshard {self.name} --shards {shards}"
        )

    def is_confirmed(self, new: NewJob) -> bool:
        """Return True if the call of a job has to wait for a confirmation (:mod:`.redis.scripts`)."""
        rule = self.deployment.connection.confirmation
        if rule is None:
            return False
        return new.durable or (rule.by_default if new.confirmed is None else new.confirmed)

    def home(self, ident: str) -> Shard:
        """Return the shard for new jobs of this id."""
        present = self.present
        return present[crc32(ident.encode()) % len(present)]

    def shard_of(self, ident: str) -> int:
        """Return the number of the shard for new jobs of this id."""
        return self.home(ident).number

    def shards_of(self, ident: str) -> tuple[int, ...]:
        """Return the numbers of the shards in which jobs of this id may lie, those of older epochs first."""
        crc = crc32(ident.encode())
        return tuple(number_of(epoch, crc % shards) for epoch, shards in self.epochs) or (self.shard_of(ident),)

    def call(
        self, script: str, number: int, *args: object, request: bytes | None = None, confirmed: bool = False
    ) -> Any:
        """Run a script on a shard.

        Args:
            request: the id of the call, if it repeats an earlier one.
            confirmed: wait until its writes are confirmed.
        """
        shard = self.shard(number)
        request = new_request() if request is None else request
        return self.deployment.scripts.call(script, shard.keys, request, shard.constants, *args, confirm=confirmed)

    def rule(self, number: int, rules: Mapping[str, Any]) -> None:
        """Replace the rules of a shard (:func:`.layouts.rules_of_shard`); a closed one stays closed."""
        self.call("rule", number, pack(rules))

    def close(self, numbers: Iterable[int]) -> None:
        """Close shards for new ids, for good; their other rules stay."""
        for number in numbers:
            self.call("rule", number, b"")


Q_co = TypeVar("Q_co", bound=ShardSet, covariant=True)
T = TypeVar("T")


class QueueRegistry(Generic[Q_co]):
    """Registry of the queues of a deployment.

    Args:
        make: returns a queue by its name and layout.
    """

    def __init__(self, deployment: Deployment, make: Callable[[str, Layout], Q_co]) -> None:
        self.deployment = deployment
        self.key = deployment.queues_key
        self._make = make
        #: shards and kind of a queue that is created without them
        self.new_queue: Callable[[str], tuple[int | None, str]] = lambda name: (None, "python")
        #: the producers of all queues are paused, as of the last read of the registry
        self.producers_paused = False
        self._queues: dict[str, Q_co] = {}
        self._lock = ThreadLock()

    # -- queues ------------------------------------------------------------------------------------------------------

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Q_co:
        """Return the queue of this name; create it if necessary.

        The first call of the deployment writes the layout into Redis. From then on Redis is authoritative, and a
        different number of shards only causes a warning: see ``delayq_reshard``. A deleted queue is created again.

        Args:
            shards: number of shards of a new queue; None = as :attr:`new_queue` says.
            kind: ``python`` or ``pull``; None = the same.
        """
        believed = self.believed(name)
        return self._open(name, shards, kind) if believed is None else believed

    def believed(self, name: str) -> Q_co | None:
        """Return the queue of this name if this process knows it; its layout is read again from time to time."""
        queue, now = self._queues.get(name), time.monotonic()
        if queue is not None and not queue.deleted and queue.read_at <= now - self.deployment.layout_seconds:
            before, queue.read_at = queue.read_at, now  # of many threads, one reads it
            try:
                self._read_again(name)
            except BaseException:
                queue.read_at = before
                raise
        return None if queue is None or queue.deleted else queue

    def _read_again(self, name: str) -> None:
        """Read the layout of a known queue again.

        On a cluster the registry may be unreachable while the shards of the queue are not. Then the layout is believed
        for longer: jobs are accepted under an old one too, because shards that were closed since redirect them.
        """
        connection = self.deployment.connection
        try:
            with connection.limited(REGISTRY_SECONDS):
                if self.read_layout(name)[1] is None:
                    self._restore(name)
        except QueueUnavailable as error:
            if not connection.cluster:
                raise
            for queue in self.opened_queues():
                queue.read_at = time.monotonic()
            log.warning("the registry cannot be read; queues are used as they were read last: %s", error)

    def _open(self, name: str, shards: int | None, kind: str | None) -> Q_co:
        new_shards, new_kind = self.new_queue(name)
        shards, kind = shards or new_shards, kind or new_kind
        try:
            queue, _ = self.create(name, lambda former: layouts.new_layout(shards or 1, kind, former))
        except QueueUnavailable as error:
            raise QueueUnavailable(
                f"queue {name!r} cannot be used: this process has not read its layout yet, and the registry "
                f"({self.key}) cannot be read now; try again ({error})"
            ) from (error.__cause__ or error)
        if shards is not None and queue.shards != shards:
            log.warning("%s", queue.text_of_other_shards(shards))
        return queue

    def known_queue(self, name: str) -> Q_co | None:
        """Return the queue of this name if the deployment has it now; never create it."""
        _, layout = self.read_layout(name)
        return self._queues[name] if layout is not None and not layouts.is_deleted(layout) else None

    def require_queue(self, name: str) -> Q_co:
        """Return the queue of this name; never create it.

        Raises:
            InvalidJob: there is no such queue; the message lists the existing ones.
        """
        queue = self.known_queue(name)
        if queue is None:
            raise unknown_queue(name, self.queue_names())
        return queue

    def reachable_queue(self, name: str) -> Q_co | None:
        """Return the queue of this name if the deployment has it, as last known if the registry does not answer now.

        For what people look at, on a cluster of which a part is away.
        """
        queue = self._or_known(lambda: self.known_queue(name), self._queues.get(name))
        return None if queue is None or queue.deleted else queue

    def reachable_queues(self) -> list[Q_co]:
        """Return all queues, sorted by name; those that this process knows if the registry does not answer now.

        Raises:
            QueueUnavailable: it does not answer, and this process knows none, or Redis is no cluster.
        """
        return self._or_known(self.queues, self.opened_queues())

    def _or_known(self, read: Callable[[], T], known: T) -> T:
        """Return what is read, or on a cluster what this process knows, if the registry does not answer now."""
        try:
            with self.deployment.connection.limited(PARTIAL_SECONDS):
                return read()
        except QueueUnavailable:
            if not (known and self.deployment.connection.cluster):
                raise
            return known

    def opened_queues(self) -> list[Q_co]:
        """Return the queues that this process knows, sorted by name, without asking Redis."""
        return [queue for _, queue in sorted(self._queues.items()) if not queue.deleted]

    def queue_names(self) -> list[str]:
        """Return the names of all queues of this deployment, sorted."""
        return [queue.name for queue in self.queues()]

    def queues(self) -> list[Q_co]:
        """Return all queues of this deployment, sorted by name."""
        known = self._layouts()
        with clear_errors():
            stored = self.deployment.client.hgetall(self.key)
        return self._opened(stored, known)

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Q_co]:
        """Return the queues that a process serves, as currently registered.

        Missing queues are created. Queues known locally but missing from Redis (after data loss) are restored,
        tombstones included. Deleted queues are skipped until a job is scheduled into them.

        Args:
            every: also all queues that are not named.
            awaited: names of queues that are not created: each is left out until the registry has it.
        """
        known = self._layouts()
        with clear_errors():
            if every:
                stored = self.deployment.client.hgetall(self.key)
            else:
                fields = [*(name.encode() for name in names), PRODUCERS_FIELD]
                values = zip(fields, self.deployment.client.hmget(self.key, fields), strict=True)
                stored = {field: value for field, value in values if value is not None}
        for name in sorted({*names, *(self._queues if every else ())}):
            if name.encode() not in stored and (name in self._queues or name not in awaited):
                stored[name.encode()] = layouts.encode(self._restore(name))
        return self._opened(stored, known)

    def _layouts(self) -> dict[str, Layout]:
        """Return the layouts that the queues of this process have now."""
        return {name: queue.layout for name, queue in dict(self._queues).items()}

    def _opened(self, stored: dict[bytes, bytes], known: Mapping[str, Layout]) -> list[Q_co]:
        """Return the queues that exist with the layouts that were read; one that may be out of date is read again."""
        self.producers_paused = PRODUCERS_FIELD in stored
        names = [field.decode() for field in sorted(stored) if field not in (b"", PRODUCERS_FIELD)]
        for name in names:
            if not self._install(name, layouts.decode(stored[name.encode()]), known.get(name)):
                self.read_layout(name)
        return [queue for name in names if not (queue := self._queues[name]).deleted]

    def _restore(self, name: str) -> Layout:
        queue = self._queues.get(name)
        if queue is None or queue.deleted:
            return self.queue(name).layout
        restored, _ = self.create(name, lambda _: layouts.recovered(queue.layout))
        self._close_former(name, restored.layout)
        return restored.layout

    # -- layouts -----------------------------------------------------------------------------------------------------

    def read_layout(self, name: str) -> tuple[bytes, Layout | None]:
        """Return the registry's layout of a queue, as stored and decoded; a known queue adopts it.

        Epochs only grow. If this process has seen a later epoch, a failover to a replica lost it, and it is written
        back (:func:`~.layouts.recovered`).
        """
        while name and name.encode() != PRODUCERS_FIELD:  # which are other fields of the registry
            known = self._layout_of(name)
            with clear_errors():
                stored: bytes | None = self.deployment.client.hget(self.key, name)
            if stored is None:
                break
            layout = layouts.decode(stored)
            if known is not None and known["epoch"] > layout["epoch"]:
                later = layouts.recovered(known, layout)
                self._close_former(name, later)
                if self.swap_layout(name, stored, later):
                    log.warning("the registry lost epoch %d of queue %r; it is restored", known["epoch"], name)
            elif self._install(name, layout, known):
                return stored, layout
        return b"", None

    def _layout_of(self, name: str) -> Layout | None:
        queue = self._queues.get(name)
        return None if queue is None else queue.layout

    def _close_former(self, name: str, layout: Layout) -> None:
        """Close all but the present epoch of a layout again, after Redis lost the closed shards."""
        ShardSet(self, name, layout).close(layouts.all_numbers(layouts.epochs_of(layout)[:-1]))

    def _install(self, name: str, layout: Layout, known: Layout | None) -> bool:
        """Let the queue of this name adopt a layout that was read or stored.

        Args:
            name: the queue.
            layout: the layout.
            known: the layout that it had before the call to Redis; None = it was not known here.

        Returns:
            False if it is of an earlier epoch than the known one, or another thread let the queue adopt another layout
                since then: that one may be the later of the two, so the registry has to be read again.
        """
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = self._make(name, layout)
            elif queue.layout != layout:
                if queue.layout is not known or known["epoch"] > layout["epoch"]:
                    return False
                queue.install(layout)
            queue.read_at = time.monotonic()
            return True

    def swap_layout(self, name: str, stored: bytes, layout: Layout) -> bool:
        """Replace the registry's layout of a queue; return False if it changed since ``stored`` was read."""
        known = self._layout_of(name)
        is_stored = self._swap(name, stored, layouts.encode(layout))
        if is_stored and not self._install(name, layout, known):
            self.read_layout(name)
        return is_stored

    def _swap(self, field: str | bytes, stored: bytes, value: bytes) -> bool:
        reply: bytes = self.deployment.scripts.call("swap", (self.key.encode(),), field, stored, value)
        return reply == b"1"

    def publish(self, name: str, stored: bytes, layout: Layout) -> bool:
        """Replace the registry's layout of a queue by one with new shards, which obey its policy; see `swap_layout`.

        If this process dies in between, or the producers of all queues are paused at that moment, the next look of a
        dispatcher writes the rules.
        """
        is_stored = self.swap_layout(name, stored, layout)
        if is_stored and ("paused" in layout or "limits" in layout or self.producers_paused_since() is not None):
            self.restore_rules(self._queues[name])
        return is_stored

    def change_layout(self, name: str, change: Callable[[Layout], Layout]) -> Layout:
        """Change a layout with ``change(present one) -> new one``, safely under concurrent changes.

        Raises:
            InvalidJob: there is no such queue.
        """
        while True:
            stored, layout = self.read_layout(name)
            if layout is None or layouts.is_deleted(layout):
                raise unknown_queue(name, self.queue_names())
            changed = change(layout)
            if changed == layout or self.swap_layout(name, stored, changed):
                return changed

    def create(self, name: str, make: Callable[[Layout | None], Layout]) -> tuple[Q_co, bool]:
        """Return a queue, and True if it was created by this call, with the layout ``make(its tombstone, if any)``."""
        while True:
            stored, layout = self.read_layout(name)
            if layout is not None and not layouts.is_deleted(layout):
                return self._queues[name], False
            if self.publish(name, stored, make(layout)):
                return self._queues[name], True

    def create_with(self, name: str, *, kind: str, shards: int, **limits: Unpack[QueueLimits]) -> tuple[Q_co, bool]:
        """Return a queue, and True if this call created it.

        Args:
            limits: members of :class:`.layouts.QueueLimits`. An existing queue keeps its own.
        """
        return self.create(name, lambda former: layouts.limited(layouts.new_layout(shards, kind, former), limits))

    # -- pauses and limits -------------------------------------------------------------------------------------------

    def producers_paused_since(self) -> int | None:
        """Return since when the producers of all queues are paused, Unix ms; None = they are not."""
        with clear_errors():
            stored: bytes | None = self.deployment.client.hget(self.key, PRODUCERS_FIELD)
        self.producers_paused = stored is not None
        return None if stored is None else int(stored)

    def pause_producers(self) -> None:
        """Refuse new jobs in all queues of the deployment (QueuePaused), also in queues that are created later.

        Stored jobs are run and settled as usual. Pauses of single queues are independent of this.
        """
        self._swap(PRODUCERS_FIELD, b"", b"%d" % int(self.deployment.now_ms()))
        self._restore_all_rules()

    def resume_producers(self) -> None:
        """End :meth:`pause_producers`."""
        self._swap(PRODUCERS_FIELD, b"%d" % (self.producers_paused_since() or 0), b"")
        self._restore_all_rules()

    def _restore_all_rules(self) -> None:
        for queue in self.queues():
            self.restore_rules(queue)

    def pause(self, name: str, direction: str = "both", *, seconds: float | timedelta | None = None) -> None:
        """Pause a queue. Waiting jobs stay in place; running jobs continue and are settled as usual.

        Args:
            direction: in (schedule is refused with QueuePaused), out (no job is reserved) or both.
            seconds: its length, on Redis's clock; None = until :meth:`resume`. A second pause replaces the end.

        Raises:
            InvalidJob: there is no such queue or direction, or the time is not above 0.
        """
        directions, end = layouts.directions_of(direction), 0
        if seconds is not None:
            length = span_ms_of("seconds", seconds)
            if length <= 0:
                raise InvalidJob(
                    f"a pause lasts more than 0 seconds, not {seconds!r}; leave seconds out to pause for good"
                )
            end = int(self.deployment.now_ms()) + length
        self._change_policy(name, lambda layout: layouts.paused(layout, directions, end))

    def resume(self, name: str, direction: str = "both") -> None:
        """End a pause and wake the workers; ``direction`` and errors as for :meth:`pause`."""
        self._change_policy(name, lambda layout: layouts.resumed(layout, layouts.directions_of(direction)))

    def limit(self, name: str, limits: QueueLimits) -> bool:
        """Set limits of a queue, see :meth:`Broker.limit`; return True if they were others before."""
        layouts.check_limits(limits)
        queue = self.known_queue(name)
        is_new = queue is None or layouts.limited(queue.layout, limits) != queue.layout
        if is_new:
            self._change_policy(name, lambda layout: layouts.limited(layout, limits))
        return is_new

    def _change_policy(self, name: str, change: Callable[[Layout], Layout]) -> None:
        self.change_layout(name, change)
        self.restore_rules(self._queues[name])

    def check_rules(self, queue: ShardSet, number: int, found: dict[str, Any], now_ms: float) -> None:
        """End the pauses of a queue that are over, and restore its rules if a shard has others.

        Args:
            found: the rules of shard ``number``.
            now_ms: its time.
        """
        ended = layouts.ended_pauses(queue.layout, now_ms)
        if ended:  # which saves the scripts their check
            self._change_policy(queue.name, lambda layout: layouts.resumed(layout, ended))
        demanded = layouts.rules_of_shard(queue.layout, number, producers_paused=self.producers_paused)
        # A tombstone needs no rules, and a shard may be closed for the next epoch.
        if "ended" not in found and found not in (demanded, {**demanded, "closing": True}):
            self.restore_rules(queue)

    def restore_rules(self, queue: ShardSet) -> None:
        """Write the rules that the registry demands into every shard of a queue, until both agree."""
        since, (stored, layout) = self.producers_paused_since(), self.read_layout(queue.name)
        while layout is not None and not layouts.is_deleted(layout):
            # The layout as read: another thread may make the queue adopt one that it read earlier.
            for number in layouts.all_numbers(layouts.epochs_of(layout)):
                queue.rule(number, layouts.rules_of_shard(layout, number, producers_paused=since is not None))
            # The policy may have changed meanwhile, or new shards may have been published.
            before = since, stored
            since, (stored, layout) = self.producers_paused_since(), self.read_layout(queue.name)
            if (since, stored) == before:
                return


# -- pauses of recurring tasks. Redis alone keeps them: after a loss of its data the ticks fire again -----------------


def pause_recurring(deployment: Deployment, task: str) -> None:
    """Let no tick of a recurring task fire until it is resumed; jobs that are there already run."""
    now_ms = deployment.now_ms()
    with clear_errors():
        deployment.client.hsetnx(deployment.key("recurring"), task, int(now_ms))


def resume_recurring(deployment: Deployment, *names: str) -> None:
    """End :func:`pause_recurring` under each of these names of a task."""
    with clear_errors():
        deployment.client.hdel(deployment.key("recurring"), *names)


def recurring_pauses(deployment: Deployment) -> dict[str, int]:
    """Return since when recurring tasks are paused, Unix ms, by task."""
    with clear_errors():
        stored: dict[bytes, bytes] = deployment.client.hgetall(deployment.key("recurring"))
    return {task.decode(): int(since) for task, since in stored.items()}
