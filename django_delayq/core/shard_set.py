"""Shards of one queue by number: its layout, and the rules, states and completion marks of its shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import rules
from .job import new_request
from .outcomes import MOST_MARKS, CompletionMark, Tick
from .records import layout as layouts
from .records.frames import pack, pack_marks, unpack_marks, unpack_tick
from .records.keys import Shard
from .records.layout import Epochs, Layout

if TYPE_CHECKING:
    from .broker import Broker


class ShardSet:
    """Shards of one queue, as its layout names them, with the calls of operators and dispatchers.

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

    def __init__(self, broker: Broker, name: str, layout: Layout) -> None:
        self.broker = broker
        self.name = name
        self._shards: dict[int, Shard] = {}
        #: number of this layout among those that the queues of the process have adopted (:mod:`.registry`)
        self.adopted = 0
        #: moment (monotonic) until which no room is searched, because there was none (:mod:`.sending.quotas`)
        self.full_until = 0.0
        #: moment (monotonic) at which the layout was read last
        self.read_at = 0.0
        self.install(layout)

    def install(self, layout: Layout) -> None:
        """Adopt the layout that the registry has of the queue now."""
        epochs = layouts.epochs_of(layout)
        numbers = tuple(layouts.all_numbers(epochs))
        # Shards whose numbers may still be in use stay available.
        self._shards = {
            **self._shards,
            **{number: self.broker.shard(self.name, number) for number in numbers if number not in self._shards},
        }
        present = tuple(map(self.shard, layouts.shard_numbers(layout["epoch"], layout["shards"])))
        # In one step, because other threads copy or read these without a lock.
        vars(self).update(
            layout=layout,
            kind=layout["kind"],
            numbers=numbers,
            epochs=epochs,
            deleted=layouts.is_deleted(layout),
            present=present,
        )

    def shard(self, number: int) -> Shard:
        """Return keys and constants of a shard, whatever its epoch."""
        shard = self._shards.get(number)
        return shard if shard is not None else self.broker.shard(self.name, number)

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
        return self.broker.scripts.call(script, shard.keys, request, shard.constants, *args, confirm=confirmed)

    # -- rules, states and marks -----------------------------------------------------------------------------------

    def rule(self, number: int, policy: Mapping[str, Any], *, closing: bool = False) -> None:
        """Replace the rules of a shard that follow from the policy of its queue (``lua/rule.lua``).

        Args:
            policy: see :func:`.records.layout.rules_of`.
            closing: close the shard for new ids, for good.
        """
        self.call("rule", number, pack(policy), b"1" if closing else b"0")

    def tick(self, number: int, *, hold: bool = False) -> Tick:
        """Return the state of a shard to a dispatcher; wake a consumer if due work waits, and restore lost rules.

        Args:
            hold: arm the reaper hold: for one lease no job is taken from its holder, because holders may have been
                unable to extend their leases (an outage, a clock that jumped).
        """
        frame = self.call("tick", number, b"1" if hold else b"0")
        tick, stored_rules = unpack_tick(frame)
        if "until" in self.layout:
            rules.end_pauses(self, tick.now_ms)
        if not rules.are_kept(self, number, stored_rules):
            rules.restore(self)
        return tick

    def marks(
        self, number: int, forget: Sequence[CompletionMark] = (), limit: int = MOST_MARKS
    ) -> list[CompletionMark]:
        """Return completion marks of a shard, and forget processed ones.

        Args:
            forget: marks that were processed; one that has changed since stays.
            limit: maximum number of other marks returned.

        Returns:
            Marks in no order, a random choice if there are more.
        """
        some, rest = forget[:MOST_MARKS], forget[MOST_MARKS:]
        while rest:
            self.call("marks", number, pack_marks(some), 0, request=b"")
            some, rest = rest[:MOST_MARKS], rest[MOST_MARKS:]
        return unpack_marks(self.call("marks", number, pack_marks(some), limit, request=b""))
