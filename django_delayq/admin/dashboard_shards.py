"""Heat map of queues and shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from ..core.records.keys import MAX_SHARDS
from .charts import HeatMap, level
from .formatting import grouped

if TYPE_CHECKING:
    from ..core.counts import Counts
    from ..status import QueueStatus

#: maximum number of rows, and of shards in a row
MOST_ROWS: Final = 30
MOST_SHARDS: Final = 64
#: queues that a note names
_MOST_NAMES: Final = 5


@dataclass(frozen=True)
class ShardMap:
    """Shards of queues, coloured by their ready, delayed or reserved jobs.

    Attributes:
        queues: the queues, with the counts of their shards.
        place: name of the count that colours a shard.
    """

    queues: Sequence[QueueStatus]
    place: str

    @property
    def most(self) -> str:
        """Number that the strongest colour stands for."""
        return grouped(self._most)

    @property
    def heat(self) -> HeatMap:
        """Return a row per queue and epoch."""
        most = self._most
        return HeatMap(
            [
                (name, [self._cell(f"{name}, {_('shard %s') % place}", one, most) for place, one in enumerate(shards)])
                for name, shards in self._listed
            ]
        )

    @property
    def note(self) -> str:
        """Note on rows and shards that are left out."""
        rows = self._rows
        notes = [_("%s more are not shown.") % grouped(len(rows) - MOST_ROWS)] if len(rows) > MOST_ROWS else []
        cut = [name for name, shards in rows if len(shards) > MOST_SHARDS]
        if cut:
            numbers = {"shards": MOST_SHARDS, "queues": ", ".join(cut[:_MOST_NAMES])}
            notes.append(_("Only the first %(shards)d shards are shown of: %(queues)s") % numbers)
        return " ".join(notes)

    @cached_property
    def _rows(self) -> list[tuple[str, list[Counts]]]:
        rows = []
        for queue in self.queues:
            epochs: dict[int, list[Counts]] = {}
            for place, counts in queue.counts.shards:
                epochs.setdefault(place // MAX_SHARDS, []).append(counts)
            for epoch, shards in epochs.items():
                rows.append((f"{queue.name}, {_('epoch %s') % epoch}" if len(epochs) > 1 else queue.name, shards))
        return rows

    @cached_property
    def _listed(self) -> list[tuple[str, list[Counts]]]:
        return [(name, shards[:MOST_SHARDS]) for name, shards in self._rows[:MOST_ROWS]]

    @cached_property
    def _most(self) -> int:
        return max((getattr(one, self.place) for _name, shards in self._listed for one in shards), default=0)

    def _cell(self, name: str, counts: Counts, most: int) -> tuple[str, int, str]:
        numbers = {place: grouped(getattr(counts, place)) for place in ("ready", "delayed", "reserved")}
        text = _("%(name)s: ready %(ready)s, delayed %(delayed)s, reserved %(reserved)s") % {"name": name, **numbers}
        return numbers[self.place], level(getattr(counts, self.place), most), text
