"""What the next piece of the events is: offsets, how far a batch may go, and what was lost before it was read.

Offsets are ``{queue: {"<number of the shard>": "<position>"}}`` with sorted keys: each shard is read in intervals that
begin behind one position and end with another. Queues and shards join with the position ``0-0`` when they appear; a
queue that a reader was not asked for keeps its positions, so that whoever reads it next goes on there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..core.broker import Broker
from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_queue_name, short
from ..core.records.keys import MAX_SHARDS
from ..core.streams import BEGINNING, Place, Stream, before, have, parts, streams

Offsets: TypeAlias = dict[str, dict[str, str]]
Positions: TypeAlias = dict[Place, str]

#: intervals of fewer entries than that share a task
SMALL: Final = 5_000
_EXAMPLE: Final = '{"orders": {"0": "1700000000000-0"}}'
_MOST_TOLD: Final = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """Events of one shard: those behind ``after``, up to ``until``, which is one of them."""

    queue: str
    number: int
    after: str
    until: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Why events of a shard can no longer be read."""

    queue: str
    number: int
    after: str
    why: str

    def __str__(self) -> str:
        epoch, place = divmod(self.number, MAX_SHARDS)
        return (
            f"queue {self.queue!r}, shard {self.number} (epoch {epoch}, place {place}), behind {self.after}: {self.why}"
        )


def text_of(losses: Sequence[Loss]) -> str:
    """What to say of losses, and what to do about them."""
    told = "; ".join(str(loss) for loss in losses[:_MOST_TOLD])
    more = f"; and {len(losses) - _MOST_TOLD} more shards" if len(losses) > _MOST_TOLD else ""
    return (
        f"events were lost before they were read: {told}{more}. They cannot be had any more. To go on with what is "
        "there, run once with the option failOnDataLoss set to false; that it does not happen again: read more often, "
        'raise DELAYQ["EVENTS"]["cap"], and set the option trim, so that nobody else takes off what is not read yet'
    )


# -- offsets ---------------------------------------------------------------------------------------------------------


def to_offsets(positions: Mapping[Place, str]) -> Offsets:
    """As Spark keeps them; it compares them as texts, so the order of the keys is always the same."""
    offsets: Offsets = {}
    for queue, number in sorted(positions):
        offsets.setdefault(queue, {})[str(number)] = positions[queue, number]
    return offsets


def to_positions(offsets: object) -> Positions:
    """The positions in offsets.

    Raises:
        Misconfigured: they are none.
    """
    try:
        if not isinstance(offsets, Mapping):
            raise ValueError("they are no object")
        positions = {}
        for queue, shards in offsets.items():
            for number, position in shards.items():
                parts(position)
                positions[check_queue_name(queue), _number(number)] = position
        return positions
    except (InvalidJob, ValueError, AttributeError) as error:
        raise Misconfigured(f"offsets look like {_EXAMPLE}, but in these {error}: {short(offsets)}") from error


def _number(text: object) -> int:
    if isinstance(text, str) and text.isdigit() and len(text) <= 9:
        return int(text)
    raise ValueError(f"{short(text)} is no number of a shard")


def parse_start(text: str) -> str | Positions:
    """The option ``startingOffset``: earliest, latest, or offsets as JSON.

    Raises:
        Misconfigured: it is something else.
    """
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return to_positions(json.loads(text))
    except ValueError:
        raise Misconfigured(f"startingOffset is earliest, latest or JSON like {_EXAMPLE}, not {short(text)}") from None


# -- looking ---------------------------------------------------------------------------------------------------------


def known_places(broker: Broker, queues: Sequence[str]) -> list[Place]:
    """Every shard, of all epochs, of these queues; of every queue, if none is named."""
    return [
        (queue.name, number)
        for queue in broker.queues()
        if not queues or queue.name in queues
        for number in queue.numbers
    ]


def starting(scene: Mapping[Place, Stream], start: str | Positions) -> Positions:
    """Where a reader begins that has read nothing yet."""
    if not isinstance(start, str):
        return {place: start.get(place, BEGINNING) for place in {*scene, *start}}
    if start == "latest":
        return {place: stream.last for place, stream in scene.items()}
    # No entry lies between this and the first one, so it is seen when that one is taken off before it is read.
    return {place: before(stream.first) if stream.first else stream.last for place, stream in scene.items()}


def find_losses(broker: Broker, positions: Mapping[Place, str], scene: Mapping[Place, Stream]) -> list[Loss]:
    """Where somebody who has read up to these positions has missed something."""
    doubtful = {place: position for place, position in positions.items() if _needs_stone(position, scene[place])}
    there = have(broker, doubtful)
    found = (
        (place, position, _why_lost(position, scene[place], has_stone=place not in doubtful or place in there))
        for place, position in sorted(positions.items())
    )
    return [Loss(*place, position, why) for place, position, why in found if why]


def _needs_stone(position: str, stream: Stream) -> bool:
    """Whether only the entry at the position, if it is still there, can tell that nothing was taken off behind it."""
    if position == BEGINNING or parts(stream.last) <= parts(position) or not stream.there:
        return False
    return stream.first is None or before(stream.first) != position


def _why_lost(position: str, stream: Stream, *, has_stone: bool) -> str:
    read, end = parts(position), parts(stream.last)
    if not stream.there:
        if stream.ended:
            return f"the shard is gone, with events up to {stream.last}" if end > read else ""
        return "" if position == BEGINNING else "Redis has lost the stream (FLUSHALL, or a restart without its data?)"
    if end < read:
        return f"the stream ends at {stream.last} (another Redis, or an older copy after a failover?)"
    if position == BEGINNING and stream.added is not None and stream.added > stream.length:
        return f"{stream.added - stream.length} events were taken off before anybody read them"
    if not has_stone:
        return f"the entry there was taken off, and maybe more before the oldest one left, {stream.first or 'none'}"
    return ""


# -- how far ---------------------------------------------------------------------------------------------------------


def ends(
    positions: Mapping[Place, str],
    scene: Mapping[Place, Stream],
    known: Iterable[Place],
    target: Mapping[Place, str] | None,
) -> Positions:
    """Up to where there is something to read: what is gone leaves, what is new joins.

    Args:
        positions: up to where was read.
        known: the shards that there are now.
        target: nothing is read behind these, and no other shards; None = no such limit.
    """
    there = {place for place in known if target is None or place in target or place in positions}
    found = {}
    for place in there:
        position, stream = positions.get(place, BEGINNING), scene[place]
        last = stream.last if stream.there else position
        if target is not None:
            last = min(last, target.get(place, BEGINNING), key=parts)
        found[place] = max(position, last, key=parts)
    return found


def limit_to(
    most: int,
    positions: Mapping[Place, str],
    wanted: Mapping[Place, str],
    scene: Mapping[Place, Stream],
    walk: Callable[[Place, str, int], str],
) -> Positions:
    """The same ends, but drawn back so far that there are at most so many events in all.

    Those who have little get all of it, the others equal shares; if there are more shards than events, those come first
    that are the furthest behind.

    Args:
        walk: ``walk(place, position, n)`` = the position n events further, or the last one before that.
    """
    begun = {place: positions.get(place, BEGINNING) for place in wanted}
    pending = sorted(
        (place for place in wanted if wanted[place] != begun[place]), key=lambda place: parts(begun[place])
    )
    chosen = sorted(pending[:most], key=lambda place: scene[place].length)
    result, left = {**wanted, **{place: begun[place] for place in pending}}, most
    for at, place in enumerate(chosen):
        share = left // (len(chosen) - at)
        length = scene[place].length
        if length <= share:  # an upper bound of what is to be read
            result[place], left = wanted[place], left - length
        else:
            result[place] = min(walk(place, begun[place], share), wanted[place], key=parts)
            left -= share
    return result


def intervals(broker: Broker, start: Mapping[Place, str], end: Mapping[Place, str]) -> list[list[Interval]]:
    """What is to be read between two offsets, one list for each task."""
    places = [place for place in sorted(end) if parts(end[place]) > parts(start.get(place, BEGINNING))]
    scene = streams(broker, places)
    tasks: list[list[Interval]] = []
    small: list[Interval] = []
    room = 0
    for place in places:
        after, stream = start.get(place, BEGINNING), scene[place]
        if after == BEGINNING and stream.first:
            after = before(stream.first)
        interval = Interval(*place, after, end[place])
        if stream.length >= SMALL:
            tasks.append([interval])
            continue
        if stream.length > room:
            small, room = [], SMALL
            tasks.append(small)
        small.append(interval)
        room -= stream.length
    return tasks


def newest(scene: Mapping[Place, Stream], known: Iterable[Place]) -> dict[str, Any]:
    """The offsets of whoever has read everything."""
    return to_offsets({place: scene[place].last for place in known})
