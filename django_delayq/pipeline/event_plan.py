"""Plan of the next batch of events: offsets, the end of the batch, and events lost before they were read.

Offsets are ``{queue: {"<number of the shard>": "<position>"}}`` with sorted keys: each shard is read in intervals that
begin after one position and end with another. Queues and shards join with the position ``0-0`` when they appear. A
queue that a reader does not read keeps its positions, so that a later reader resumes there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ..core.broker import Broker
from ..core.deployment import Deployment
from ..core.errors import InvalidJob, Misconfigured
from ..core.events import (
    BEGINNING,
    EventEntry,
    Place,
    Stream,
    distance,
    entries,
    following,
    known_places,
    parts,
    streams,
)
from ..core.inputs import check_queue_name, short
from .errors import EventsLost

Offsets: TypeAlias = dict[str, dict[str, str]]
Positions: TypeAlias = dict[Place, str]

#: intervals with fewer events than this share a task
SMALL: Final = 5_000
_EXAMPLE: Final = '{"orders": {"0": "1-1700000000000"}}'
_MOST_LISTED: Final = 5
#: behind every position of one number
_LAST_MS: Final = 2**64 - 1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interval:
    """Events of one shard after ``after``, up to and including ``until``."""

    queue: str
    number: int
    after: str
    until: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Events of a shard that can no longer be read, and the reason."""

    place: Place
    after: str
    why: str
    #: True if it is another stream, which has to be read from its beginning
    other_stream: bool = False

    def __str__(self) -> str:
        return f"queue {self.place[0]!r}, shard {self.place[1]}, behind {self.after}: {self.why}"


def text_of(losses: Sequence[Loss]) -> str:
    """Return the error message for losses, with the remedy."""
    listed = "; ".join(str(loss) for loss in losses[:_MOST_LISTED])
    more = f"; and {len(losses) - _MOST_LISTED} more shards" if len(losses) > _MOST_LISTED else ""
    return (
        f"events were lost before they were read: {listed}{more}. They cannot be read "
        "any more. To continue with the events that are left, run once with the option failOnDataLoss set to false. To "
        'prevent another loss, read more often, or raise DELAYQ["EVENTS"]["cap"]'
    )


def report(losses: Sequence[Loss], *, fails: bool) -> None:
    """Report lost events.

    Raises:
        EventsLost: there are some, and they fail the reader; otherwise they are logged.
    """
    if losses and fails:
        raise EventsLost(text_of(losses))
    for loss in losses:
        log.warning("events were lost, and failOnDataLoss is false: %s", loss)


class Planner:
    """Plan of the batches of one reader.

    Args:
        queues: those that are read; empty = every queue, future ones included. The others keep their positions.
        fails: lost events are an error; else they are logged.
    """

    def __init__(self, broker: Broker, queues: Sequence[str], *, fails: bool) -> None:
        self._broker = broker
        self._queues = queues
        self._fails = fails
        self._reported: set[tuple[Place, str]] = set()
        #: limit of all batches; None = none
        self.target: Positions | None = None
        #: latest positions at the last planning
        self.newest: Positions = {}

    def first(self, start: str | Positions) -> Positions:
        """Return the positions at which a new reader begins; see :data:`EventsOptions.start`.

        Queues that are read another time have one too: events that are removed from now on are a loss there as well.
        """
        named = () if isinstance(start, str) else start
        return starting(streams(self._broker, {*known_places(self._broker), *named}), start)

    def fix_target(self) -> None:
        """Leave events that come from now on to other readers."""
        places = known_places(self._broker, self._queues)
        by_place = streams(self._broker, places)
        self.target = {place: by_place[place].last for place in places}

    def batch(self, positions: Mapping[Place, str], most: int | None = None) -> tuple[Positions, Positions]:
        """Return the begin and the end of the next batch behind these positions, of the queues that are read.

        A shard whose stream is another one begins at its beginning again; one that is gone begins at its end.

        Args:
            most: number of events of the batch; None = all.

        Raises:
            EventsLost: unread events are gone, and that is an error.
        """
        known = known_places(self._broker, self._queues)
        read = {place: at for place, at in positions.items() if not self._queues or place[0] in self._queues}
        by_place = streams(self._broker, dict.fromkeys([*known, *read]))
        new = joining(read, by_place, known)
        begin = read | {place: at for place, at in new.items() if self.target is None or place in self.target}
        losses = find_losses(self._broker, begin, by_place)
        report([loss for loss in losses if (loss.place, loss.after) not in self._reported], fails=self._fails)
        for loss in losses:
            self._reported.add((loss.place, loss.after))
            if loss.other_stream or by_place[loss.place].is_gone:
                begin[loss.place] = BEGINNING if loss.other_stream else by_place[loss.place].last
        end = ends(begin, by_place, known, self.target)
        self.newest = {place: by_place[place].last for place in known}
        return begin, end if most is None else limited(self._broker, most, begin, end)


# -- offsets ---------------------------------------------------------------------------------------------------------


def to_offsets(positions: Mapping[Place, str]) -> Offsets:
    """Return the offsets in Spark's form; keys are sorted, because Spark compares offsets as texts."""
    offsets: Offsets = {}
    for queue, number in sorted(positions):
        offsets.setdefault(queue, {})[str(number)] = positions[queue, number]
    return offsets


def to_positions(offsets: object) -> Positions:
    """Return the positions contained in offsets.

    Raises:
        Misconfigured: the value is not a mapping of offsets.
    """
    try:
        if not isinstance(offsets, Mapping):
            raise ValueError("there is no JSON object")
        positions = {}
        for queue, shards in offsets.items():
            for number, position in shards.items():
                parts(position)
                positions[check_queue_name(queue), int(number)] = position
        return positions
    except (InvalidJob, ValueError, AttributeError, TypeError) as error:
        raise Misconfigured(f"offsets must be like {_EXAMPLE}, got {short(offsets)} ({error})") from error


def check_offsets(name: str, text: str) -> str | Positions:
    """Return a parsed offset: earliest, latest, or the positions of offsets in JSON.

    Raises:
        InvalidJob, Misconfigured: it is something else.
    """
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return to_positions(json.loads(text))
    except ValueError:
        raise InvalidJob(f"{name} must be earliest, latest or JSON like {_EXAMPLE}, got {short(text)}") from None


# -- state of the streams -------------------------------------------------------------------------------------------


def starting(streams: Mapping[Place, Stream], start: str | Positions) -> Positions:
    """Return the positions at which a new reader begins."""
    left = {place: stream for place, stream in streams.items() if not stream.is_gone}
    if not isinstance(start, str):
        return {**dict.fromkeys(left, BEGINNING), **start}
    if start == "latest":
        return {place: stream.last for place, stream in left.items()}
    return {place: stream.before or stream.last for place, stream in left.items()}


def joining(positions: Mapping[Place, str], streams: Mapping[Place, Stream], known: Iterable[Place]) -> Positions:
    """Return the positions of known shards that a reader has not read yet.

    A shard that is gone joins, as a loss, if its epoch is later than all that the reader knows of the queue.
    """
    newest: dict[str, int] = {}
    for queue, number in positions:
        newest[queue] = max(number, newest.get(queue, number))
    new = [place for place in known if place not in positions]
    return {
        (queue, number): BEGINNING
        for queue, number in new
        if not streams[queue, number].is_gone or number > newest.get(queue, number)
    }


def find_losses(deployment: Deployment, positions: Mapping[Place, str], streams: Mapping[Place, Stream]) -> list[Loss]:
    """Return the events that a reader at these positions has missed."""
    unread = {place: at for place, at in positions.items() if parts(streams[place].last) > parts(at)}
    next_events = following(deployment, unread)
    losses = []
    for place, position in sorted(positions.items()):
        why, other_stream = _why_lost(position, streams[place], next_events.get(place))
        if why:
            losses.append(Loss(place, position, why, other_stream))
    return losses


def _why_lost(position: str, stream: Stream, next_events: EventEntry | None) -> tuple[str, bool]:
    read, end = parts(position), parts(stream.last)
    if stream.is_gone:
        return f"the shard is gone, with events up to {stream.last}" if end > read else "", False
    if end < read:
        if stream.last == BEGINNING:
            return "Redis has lost the stream (FLUSHALL, or a restart without its data?)", True
        return f"the stream ends at {stream.last} (another Redis, or an older copy after a failover?)", True
    if end == read:
        return "", False
    if next_events is None:
        return f"all events up to {stream.last} were removed", False
    missing = parts(next_events.before)[0] - read[0]
    return text_of_gap(missing), missing < 0


def text_of_gap(missing: int) -> str:
    """Return the text about so many missing events; "" = none is missing."""
    if missing < 0:
        return "the next events have smaller numbers (another Redis, or an older copy after a failover?)"
    return f"{missing} events were removed before they were read" if missing else ""


# -- extent of a batch ----------------------------------------------------------------------------------------------


def ends(
    positions: Mapping[Place, str],
    streams: Mapping[Place, Stream],
    known: Iterable[Place],
    target: Mapping[Place, str] | None,
) -> Positions:
    """Return the end positions up to which there is something to read; deleted shards are left out, new ones are added.

    Args:
        positions: the positions already read.
        known: the existing shards.
        target: upper limit by shard, which also excludes all other shards; None = no such limit.
    """
    left = {place for place in known if not streams[place].is_gone}
    there = {place for place in left if target is None or place in target or place in positions}
    reached = {}
    for place in there:
        position, stream = positions.get(place, BEGINNING), streams[place]
        last = stream.last
        if target is not None:
            last = min(last, target.get(place, BEGINNING), key=parts)
        reached[place] = max(position, last, key=parts)
    return reached


def limited(deployment: Deployment, most: int, positions: Mapping[Place, str], ends: Mapping[Place, str]) -> Positions:
    """Return end positions, moved back so that about ``most`` events are read: an equal share of each shard.

    An entry is read whole, so a share may be exceeded by the rest of its last entry.

    Args:
        ends: the end positions without a limit.
    """
    unread = {place: distance(positions.get(place, BEGINNING), end) for place, end in ends.items()}
    share = max(1, most // max(1, sum(map(bool, unread.values()))))
    result = dict(ends)
    for place, events in unread.items():
        if events > share:
            number = parts(positions.get(place, BEGINNING))[0] + share
            # An entry has the number of its last event.
            found = entries(deployment, *place, f"{number - 1}-{_LAST_MS}", 1)
            result[place] = min([*(entry.position for entry in found), ends[place]], key=parts)
    return result


def intervals(start: Mapping[Place, str], end: Mapping[Place, str]) -> list[list[Interval]]:
    """Return the intervals to read between two offsets, one list per task."""
    tasks: list[list[Interval]] = []
    small: list[Interval] = []
    room = 0
    for place in sorted(end):
        after = start.get(place, BEGINNING)
        if parts(end[place]) <= parts(after):
            continue
        interval, size = Interval(*place, after, end[place]), distance(after, end[place])
        if size >= SMALL:
            tasks.append([interval])
            continue
        if size > room:
            small, room = [], SMALL
            tasks.append(small)
        small.append(interval)
        room -= size
    return tasks
