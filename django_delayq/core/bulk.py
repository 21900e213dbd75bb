"""What operators ask for many jobs at once.

Every verb works through the queue in chunks of at most 250 jobs, each one script call, so it may run beside producers
and workers at full load: nobody waits longer than for one chunk. A job is changed as a whole inside one script that
looks again whether it is still meant, never read first and removed later. What is buried, or fails, after the moment of
the call is left alone, so each verb comes to its end whatever the workers do meanwhile.

Every verb answers how many jobs came to what, and tells ``progress``, if given, after each chunk: how many jobs it has
looked at, and how many there were at the moment of the call.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final
from zlib import crc32

from .errors import InvalidJob
from .job import MAX_ID_BYTES
from .operations.rehome import live_in_older
from .operations.sweep import Act, Progress, last_score, look_at, sweep, told
from .records.frames import bad_id
from .records.keys import DUE_KEYS, number_of
from .sending.chunks import CHUNK

if TYPE_CHECKING:
    from .queue import Queue

#: an id (its generation that was buried last), or an id and the key of a generation
Wanted = str | tuple[str, bytes]

_KICKED: Final = {"k": "kicked", "l": "live", "n": "gone", "v": "moved"}
_DISCARDED: Final = {"d": "discarded", "n": "gone"}
_RUN_NOW: Final = struct.Struct("<dII")
#: ids that are read of an iterable before something is done to them
_AT_ONCE: Final = 10_000
#: jobs that one script call moves into the morgue or out of it: a few ms, for which everybody else has to wait
_AT_A_TIME: Final = 100


# -- the morgue ------------------------------------------------------------------------------------------------------


def kick_many(
    queue: Queue,
    wanted: Iterable[Wanted],
    *,
    delay_ms: int = 0,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Brings jobs back from the morgue, as :meth:`Queue.kick` does with one.

    Args:
        queue: the queue.
        wanted: ids, or (id, key) pairs.
        delay_ms: how long from now they wait.
        replace: take the places of live plain jobs of the same ids.
        progress: see the module.

    Returns:
        How many were kicked, how many stay because a live job stands in their way (live), how many are gone.

    Raises:
        InvalidJob: a negative delay, or an id that cannot be one.
    """
    pace = _Pace.of(delay_ms, None, 0)

    def act(number: int, graves: Sequence[bytes]) -> list[str]:
        return _kick(queue, number, graves, pace, replace)

    return _for_wanted(queue, wanted, act, lambda grave: _kick_over(queue, grave, pace, replace), progress)


def kick_all(
    queue: Queue,
    *,
    delay_ms: int = 0,
    per_second: float | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Brings all jobs of the morgue back, those that were buried first first.

    Args:
        queue: the queue.
        delay_ms: how long from now they wait.
        per_second: how many of them fall due in a second; None = all at once.
        replace: take the places of live plain jobs of the same ids.
        progress: see the module.

    Returns:
        See :func:`kick_many`.

    Raises:
        InvalidJob: a negative delay, or a pace of nothing.
    """
    scene = look_at(queue)
    pace = _Pace.of(delay_ms, per_second, max((shard.now_ms for shard in scene.values()), default=0))

    def act(number: int, graves: Sequence[bytes]) -> list[str]:
        return _kick(queue, number, graves, pace, replace)

    until = {number: shard.moment for number, shard in scene.items()}
    return sweep(queue, ("morgue",), until, act, sum(shard.morgue for shard in scene.values()), progress)


def discard_many(queue: Queue, wanted: Iterable[Wanted], *, progress: Progress | None = None) -> dict[str, int]:
    """Throws jobs out of the morgue, as :meth:`Queue.discard` does with one.

    Args:
        queue: the queue.
        wanted: ids, or (id, key) pairs.
        progress: see the module.

    Returns:
        How many were discarded, and how many are gone.

    Raises:
        InvalidJob: an id that cannot be one.
    """

    def act(number: int, graves: Sequence[bytes]) -> list[str]:
        return _discard(queue, number, graves)

    return _for_wanted(queue, wanted, act, lambda grave: _discard_over(queue, grave), progress)


def discard_all(queue: Queue, *, before_ms: float | None = None, progress: Progress | None = None) -> dict[str, int]:
    """Throws all jobs out of the morgue.

    Args:
        queue: the queue.
        before_ms: only those that were buried before this moment, Unix ms.
        progress: see the module.

    Returns:
        How many were discarded.
    """
    scene = look_at(queue)
    latest = float("inf") if before_ms is None else before_ms * 1000 - 1
    until = {number: min(shard.moment, latest) for number, shard in scene.items()}

    def act(number: int, graves: Sequence[bytes]) -> list[str]:
        return _discard(queue, number, graves)

    return sweep(queue, ("morgue",), until, act, sum(shard.morgue for shard in scene.values()), progress)


# -- jobs that failed ------------------------------------------------------------------------------------------------


def kill_failed(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Puts every waiting job that has failed into the morgue (reason ``killed``); reserved ones are left alone.

    A merged job with more than 250 payloads gets several graves.

    Returns:
        How many were killed.
    """
    return _end_failed(queue, "kill", "killed", progress)


def delete_failed(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Takes every waiting job that has failed out for good; reserved ones are left alone.

    Returns:
        How many were deleted.
    """
    return _end_failed(queue, "delete", "deleted", progress)


def _end_failed(queue: Queue, verb: str, outcome: str, progress: Progress | None) -> dict[str, int]:
    scene = look_at(queue)
    until = {number: shard.moment for number, shard in scene.items()}

    def act(number: int, idents: Sequence[bytes]) -> list[str]:
        return _remove(queue, number, idents, verb, outcome, until[number])

    return sweep(queue, ("failed",), until, act, sum(shard.failed for shard in scene.values()), progress)


# -- jobs that wait --------------------------------------------------------------------------------------------------


def cancel_all(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Takes every waiting job out; reserved ones, and what is gated behind them, are left alone.

    Jobs that come meanwhile are taken out as well if they are due before the last one of those that waited at the
    moment of the call.

    Returns:
        How many were cancelled.
    """
    scene = look_at(queue)

    def act(number: int, idents: Sequence[bytes]) -> list[str]:
        return _remove(queue, number, idents, "cancel", "cancelled", 0)

    return sweep(queue, DUE_KEYS, None, act, sum(shard.waiting for shard in scene.values()), progress)


def run_all_now(queue: Queue, *, progress: Progress | None = None) -> dict[str, int]:
    """Makes every waiting job due now, in the order in which they wait (within each priority class of a shard).

    One that is overdue keeps its place, so the queue's lag stays what it was; failures are kept.

    Returns:
        How many were moved.
    """
    total = sum(shard.delayed for shard in look_at(queue).values())
    moved = seen = 0
    for number in queue.numbers:
        for place, index in enumerate(DUE_KEYS):
            until = last_score(queue, number, index)
            last, looked_at = 0.0, CHUNK if until else 0
            while looked_at == CHUNK:
                frame = queue.call("run_now_many", number, place + 1, f"{last:.0f}", until, CHUNK)
                last, looked_at, changed = _RUN_NOW.unpack(frame)
                moved, seen = moved + changed, seen + looked_at
                if progress and looked_at:
                    progress(seen, total)
    return {"moved": moved} if moved else {}


# -- how it is done --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pace:
    """When kicked jobs fall due: all after one delay, or one behind the other."""

    ms: float
    relative: bool
    step: float

    @classmethod
    def of(cls, delay_ms: int, per_second: float | None, now_ms: int) -> _Pace:
        if delay_ms < 0:
            raise InvalidJob(f"a delay cannot be negative, this one is {delay_ms} ms; leave it out for now")
        if per_second is None:
            return cls(delay_ms, relative=True, step=0)
        if not 0 < per_second < float("inf"):
            raise InvalidJob(f"a pace is a number of jobs per second above 0, not {per_second}")
        return cls(now_ms + delay_ms, relative=False, step=1000 / per_second)

    def delay_ms(self, queue: Queue) -> int:
        """The delay of the next job, counted from now."""
        return int(self.ms if self.relative else max(0.0, self.ms - queue.broker.now_ms()))


def _for_wanted(
    queue: Queue, wanted: Iterable[Wanted], act: Act, act_on_one: Callable[[bytes], str], progress: Progress | None
) -> dict[str, int]:
    queue.broker.read_layout(queue.name)
    counts: Counter[str] = Counter()
    seen = 0
    pending = iter(wanted)
    while some := list(islice(pending, _AT_ONCE)):
        graves = [_checked(one) for one in some]
        if len(queue.epochs) > 1:
            # Which generation of an id is the youngest is seen only by who looks at all its shards.
            counts.update(act_on_one(grave) for grave in graves if not _split(grave)[1])
            graves = [grave for grave in graves if _split(grave)[1]]
        counts.update(_over_epochs(queue, graves, act))
        seen += len(some)
        if progress:
            progress(seen, seen)
    return told(counts)


def _over_epochs(queue: Queue, graves: list[bytes], act: Act) -> Iterator[str]:
    """The outcomes, in no order. A grave may lie where its id belonged before the number of shards was changed."""
    for epoch, shards in queue.epochs:
        by_shard: dict[int, list[bytes]] = {}
        for grave in graves:
            by_shard.setdefault(number_of(epoch, crc32(_split(grave)[0]) % shards), []).append(grave)
        graves = []
        for number, mine in by_shard.items():
            for start in range(0, len(mine), CHUNK):
                chunk = mine[start : start + CHUNK]
                for grave, outcome in zip(chunk, act(number, chunk), strict=True):
                    if outcome == "gone":
                        graves.append(grave)
                    else:
                        yield outcome
    yield from ("gone" for _ in graves)


def _checked(wanted: Wanted) -> bytes:
    """The name of a grave; without a key it ends in the zero byte behind the id."""
    ident, key = (wanted, b"") if isinstance(wanted, str) else wanted
    encoded = ident.encode()
    if not 0 < len(encoded) <= MAX_ID_BYTES or b"\0" in encoded:
        raise bad_id(encoded)
    return encoded + b"\0" + key


def _split(grave: bytes) -> tuple[bytes, bytes]:
    ident, _, key = grave.partition(b"\0")
    return ident, key


def _entry(grave: bytes) -> bytes:
    ident, key = _split(grave)
    return b"%c%b%c%b" % (len(ident), ident, len(key), key)


def _kick(queue: Queue, number: int, graves: Sequence[bytes], pace: _Pace, replace: bool) -> list[str]:
    # An id that is live in an older epoch comes back there, so these are kicked one by one.
    elsewhere = live_in_older(queue, number, [_split(grave)[0] for grave in graves])
    if elsewhere:
        quiet = iter(_kick(queue, number, [g for g in graves if _split(g)[0] not in elsewhere], pace, replace))
        return [
            _kick_over(queue, grave, pace, replace) if _split(grave)[0] in elsewhere else next(quiet)
            for grave in graves
        ]
    outcomes: list[str] = []
    while rest := graves[len(outcomes) :]:
        frame = b"".join(map(_entry, rest[:_AT_A_TIME]))
        letters = queue.call(
            "kick_many", number, frame, pace.ms, b"1" if pace.relative else b"0", pace.step, b"1" if replace else b"0"
        ).decode()
        pace.ms += letters.count("k") * pace.step
        outcomes += [_KICKED[letter] for letter in letters]
    return [
        outcome if outcome != "moved" else _kick_over(queue, grave, pace, replace)
        for grave, outcome in zip(graves, outcomes, strict=True)
    ]


def _kick_over(queue: Queue, grave: bytes, pace: _Pace, replace: bool) -> str:
    """Kicks one job wherever it lies, out of a shard that takes no new ids into the one where its id belongs now."""
    ident, key = _split(grave)
    outcome = queue.kick(ident.decode(), key=key or None, delay_ms=pace.delay_ms(queue), replace=replace) or "gone"
    if outcome == "kicked":
        pace.ms += pace.step
    return outcome


def _discard(queue: Queue, number: int, graves: Sequence[bytes]) -> list[str]:
    letters = queue.call("discard_many", number, b"".join(map(_entry, graves))).decode()
    return [_DISCARDED[letter] for letter in letters]


def _discard_over(queue: Queue, grave: bytes) -> str:
    ident, key = _split(grave)
    return "discarded" if queue.discard(ident.decode(), key=key or None) else "gone"


def _remove(queue: Queue, number: int, idents: Sequence[bytes], verb: str, outcome: str, moment: float) -> list[str]:
    letters = ""
    while rest := idents[len(letters) :]:
        frame = b"".join(b"%c%b" % (len(ident), ident) for ident in rest[:_AT_A_TIME])
        letters += queue.call("remove_many", number, frame, verb, f"{moment:.0f}").decode()
    return [outcome] * letters.count("d")
