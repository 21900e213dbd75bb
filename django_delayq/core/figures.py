"""Figures of a deployment: counters of finished attempts, and the depth of its queues over the last day.

A process counts lateness, duration and a few counts in memory (:class:`Tally`) and adds to one hash per deployment, at
most once a second. The name of a field states what it counts:

    l<bound>:<queue>            starts at most this many ms late, and later than the bound before
    r<bound>:<queue>\\0<task>    attempts that took at most this long, and longer than the bound before
    s<bound>:<script>           observed calls of a script that took this long, as the caller measured
    …sum:…                      sum of all of them, ms
    c:<name>\\0<label>           a count

The last bucket has the bound "inf". Empty buckets have no field.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from itertools import accumulate, repeat
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from .deployment import Deployment
from .errors import DelayQError
from .outcomes import Settlement
from .records.frames import pack, unpack
from .redis.faults import Fault, classify
from .redis.scripts import clear_errors

logger: Final = logging.getLogger(__name__)

#: upper bounds, ms; larger values go into one extra bucket
BUCKETS_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000, 1_800_000)
#: maximum number of fields in the hash; new fields beyond it are left out
MOST_FIELDS: Final = 50_000

_BOUNDS: Final = (*(b"%d" % bound for bound in BUCKETS_MS), b"inf")
_NONE: Final = (0,) * len(_BOUNDS)
#: kinds of histograms, in the order of :class:`Figures`: first byte of their fields
_KINDS: Final = (b"l", b"r", b"s")
LATENESS, RUN, SCRIPT = _KINDS
#: counts of the buckets followed by the sum in ms, while they are collected
Cells: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram of durations.

    Args:
        counts: one for each of ``BUCKETS_MS``, and one for larger values.
        sum_ms: sum of all durations.
    """

    counts: tuple[int, ...] = _NONE
    sum_ms: int = 0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def quantile(self, q: float) -> float | None:
        """Return the duration, ms, that the share ``q`` (0 … 1) does not exceed; see :func:`quantile`."""
        return quantile(self.counts, BUCKETS_MS, q)

    def since(self, before: Histogram | None) -> Histogram:
        """Return the durations added since ``before``, or all of them if Redis lost data (a count became smaller)."""
        if before is None or any(now < then for now, then in zip(self.counts, before.counts, strict=True)):
            return self
        counts = tuple([now - then for now, then in zip(self.counts, before.counts, strict=True)])
        return Histogram(counts, max(0, self.sum_ms - before.sum_ms))

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple([one + more for one, more in zip(self.counts, other.counts, strict=True)])
        return Histogram(counts, self.sum_ms + other.sum_ms)


def quantile(counts: Sequence[int], bounds: Sequence[int], q: float) -> float | None:
    """Return the value that the share ``q`` (0 … 1) of a histogram does not exceed; None if the histogram is empty.

    Values are assumed to be spread evenly inside a bucket.

    Args:
        counts: one for each bucket, and one for the values above the last bound, which count as that bound.
        bounds: upper bounds of the buckets.
    """
    rank, low = q * sum(counts), 0
    for high, count, upto in zip(bounds, counts, accumulate(counts), strict=False):
        if count and upto >= rank:
            return low + (high - low) * (rank - upto + count) / count
        low = high
    return low if any(counts) else None


@dataclass(frozen=True, slots=True)
class Figures:
    """Counters of finished attempts, either as stored or as an increment to be added.

    Attributes:
        lateness: by queue, how long after its due time each attempt began, ms; never below 0.
        run: by queue and task, how long each attempt took, ms.
        script: by name of the script, how long callers waited; only where scripts are observed.
        counts: by name and label, e.g. ``("redis_error", "transient")``; ``("fsck", "violations")`` and
            ``("fsck", "at_ms")`` are the result of the last check of the whole deployment, and its time.
    """

    lateness: Mapping[str, Histogram] = field(default_factory=dict)
    run: Mapping[tuple[str, str], Histogram] = field(default_factory=dict)
    script: Mapping[str, Histogram] = field(default_factory=dict)
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.lateness or self.run or self.script or self.counts)


# -- in memory -------------------------------------------------------------------------------------------------------


def new_cells() -> Cells:
    """Return the cells of a histogram without values."""
    return [0] * (len(_BOUNDS) + 1)


def fill(cells: Cells, values: Sequence[float]) -> None:
    """Count durations, ms. Negative ones count as 0."""
    for place, number in Counter(map(bisect_left, repeat(BUCKETS_MS), values)).items():
        cells[place] += number
    cells[-1] += sum([value for value in values if value > 0])


def histogram_of(cells: Cells) -> Histogram:
    """Return the counted durations as a histogram.

    A fractional sum is rounded to whole milliseconds at random, up with a probability equal to the fraction. Always
    rounding down would report no waiting at all for a process that waits 0.3 ms in each second.
    """
    whole = int(cells[-1])
    return Histogram(tuple(cells[:-1]), whole + (random.random() < cells[-1] - whole))


def figures_of(collected: Mapping[tuple[bytes, Any], Cells], counts: Mapping[Any, int]) -> Figures:
    """Return what was collected by kind and name."""
    by_kind: dict[bytes, dict[Any, Histogram]] = {kind: {} for kind in _KINDS}
    for (kind, name), cells in collected.items():
        by_kind[kind][name] = histogram_of(cells)
    lateness, run, script = by_kind.values()
    return Figures(lateness, run, script, counts)


#: seconds for which counters are collected before a flush
PACE: Final = 1.0
#: seconds after a flush that failed
_RETRY_SECONDS: Final = 10.0
#: name of the script that stores counters: observing it would produce counters for its next call, without end
CARRIER: Final = "note"
#: verbs that end an attempt; an attempt that did not begin has no start
_RUNS: Final = frozenset({"ack", "fail", "bury", "record"})


class Tally:
    """In-memory counters of one deployment. All methods may be called from any thread.

    The first counter after a flush starts a timer, whose thread sends the counters to Redis and retries while that
    fails. The rest is sent when the broker is closed or the process ends.

    Args:
        send: ``send(figures, request)`` adds them to Redis; of calls with the same request only the first counts.
        patience: seconds that a flush waits for the flush of another thread.
    """

    def __init__(self, send: Callable[[Figures, bytes], None], *, patience: float = 2.0) -> None:
        self._send = send
        self._patience = patience
        self.forget()
        _tallies.add(self)

    def forget(self) -> None:
        """Begin without counters, as a forked child: the parent flushes its own, and its locks may be held for ever."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._timer: threading.Timer | None = None
        #: True if the last flush failed
        self._failed = False
        #: counters that may or may not have arrived, with the request id under which they are sent again
        self._doubtful: tuple[bytes, Figures] | None = None
        self._open()

    def _open(self) -> None:
        self._cells: dict[tuple[bytes, Any], Cells] = defaultdict(new_cells)
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._fresh = False

    def __bool__(self) -> bool:
        """Return True if there are counters that Redis does not have yet, or if they are being sent."""
        return self._fresh or self._sending.locked() or self._doubtful is not None

    # -- counting ----------------------------------------------------------------------------------------------------

    def ended(self, queue: str, settlements: Sequence[Settlement]) -> None:
        """Count the ended jobs of one queue. Jobs that did not begin are left out."""
        ran = [one for one in settlements if one.started_ms > 0 and one.verb in _RUNS]
        if not ran:
            return
        with self._lock:
            fill(self._cells[LATENESS, queue], [one.started_ms - one.job.due_ms for one in ran])
            for task in {one.job.task for one in ran}:  # most often there is one
                fill(self._cells[RUN, (queue, task)], [one.run_ms for one in ran if one.job.task == task])
            self._changed()

    def count(self, name: str, label: str) -> None:
        """Add one to a count."""
        with self._lock:
            self._counts[name, label] += 1
            self._changed()

    def waited(self, script: str, seconds: float, failed: bool) -> None:
        """Count the duration of a script call; an observer for :meth:`Broker.observe`."""
        if script == CARRIER:
            return
        with self._lock:
            fill(self._cells[SCRIPT, script], (seconds * 1000,))
            self._changed()

    def _changed(self) -> None:
        """Note, under the lock, that there are counters to send."""
        if not self._fresh:
            self._fresh = True
            self._flush_in(PACE)

    # -- flush -------------------------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Add the pending counters to Redis in one call; no call is made when there are none.

        Counters that could not be sent are kept, and sent again with the next flush, before the rest. Counters that
        arrive during a flush wait for the next one: under constant load, this one would never end.

        Returns:
            True if Redis has everything that was counted before; False if another thread's flush took too long.

        Raises:
            QueueUnavailable: Redis cannot be reached.
        """
        if not self._sending.acquire(timeout=self._patience):
            return False
        try:
            if self._doubtful is not None:
                self._post(self._doubtful)
            if self._fresh:
                self._post((os.urandom(16), self._take()))
            return True
        finally:
            self._sending.release()

    def _post(self, call: tuple[bytes, Figures]) -> None:
        self._doubtful = call
        request, figures = call
        self._send(figures, request)
        self._doubtful = None

    def _take(self) -> Figures:
        with self._lock:
            cells, counts = self._cells, self._counts
            self._open()
        return figures_of(cells, counts)

    def _flush_in(self, seconds: float) -> None:
        """Flush in this many seconds, unless a flush is scheduled or running; under the lock."""
        if self._timer is not None:
            return
        timer = threading.Timer(seconds, self._flush_on_time)
        timer.name, timer.daemon = "delayq-counters", True
        try:
            timer.start()
        except RuntimeError:  # the interpreter is shutting down: _flush_all() flushes
            return
        self._timer = timer

    def _flush_on_time(self) -> None:
        try:
            self.flush()
            self._failed = False
        except Exception as error:
            if classify(error) is Fault.BUG and not self._failed:
                logger.exception("the counters could not be sent; retried later")
            self._failed = True
        with self._lock:
            if self._timer is threading.current_thread():  # else it was closed meanwhile
                self._timer = None
                if self:
                    self._flush_in(_RETRY_SECONDS if self._failed else PACE)

    def close(self) -> None:
        """Flush one last time and stop the timer, even if that fails. A later counter starts another one."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.flush_last()

    def flush_last(self) -> None:
        """Flush at the end of the process. If the last flush failed, skip it instead of waiting for Redis."""
        if self._failed:
            return
        try:
            self.flush()
        except Exception as error:
            logger.info("the last counters could not be sent: %s", error)


_tallies: WeakSet[Tally] = WeakSet()


def _forget() -> None:
    for tally in list(_tallies):
        tally.forget()


def _flush_all() -> None:
    for tally in list(_tallies):
        tally.flush_last()


atexit.register(_flush_all)
os.register_at_fork(after_in_child=_forget)


# -- fields of the hash ----------------------------------------------------------------------------------------------

_PLACES: Final = {bound: place for place, bound in enumerate((*_BOUNDS, b"sum"))}


def to_fields(figures: Figures) -> list[tuple[bytes, int]]:
    """Return the fields of these counters, and their increments."""
    increments = [(b"c:" + _stored(name), count) for name, count in figures.counts.items()]
    by_kind: tuple[Mapping[Any, Histogram], ...] = (figures.lateness, figures.run, figures.script)
    for kind, histograms in zip(_KINDS, by_kind, strict=True):
        for name, histogram in histograms.items():
            counted = zip(_PLACES, (*histogram.counts, histogram.sum_ms), strict=True)
            increments += [(b"%b%b:%b" % (kind, bound, _stored(name)), count) for bound, count in counted if count]
    return increments


def from_fields(stored: Mapping[bytes, bytes]) -> Figures:
    """Return the counters read from the hash. Fields that this release does not recognise are left out."""
    collected: dict[tuple[bytes, Any], Cells] = defaultdict(new_cells)
    counts: dict[Any, int] = {}
    for field_name, value in stored.items():
        head, _, rest = field_name.partition(b":")
        with suppress(KeyError, ValueError):
            if head == b"c":
                counts[_named(rest)] = int(value)
            elif head[:1] in _KINDS:
                place, number = _PLACES[head[1:]], int(value)
                collected[head[:1], _named(rest)][place] += number
    return figures_of(collected, counts)


def _stored(name: str | tuple[str, str]) -> bytes:
    return (name if isinstance(name, str) else "\0".join(name)).encode()


def _named(stored: bytes) -> str | tuple[str, ...]:
    words = tuple(stored.decode().split("\0"))
    return words[0] if len(words) == 1 else words


def _belongs_to(stored: bytes, queue: str) -> bool:
    """Return True if a field belongs to this queue."""
    head, _, name = stored.partition(b":")
    return head[:1] in (b"l", b"r") and name.partition(b"\0")[0] == queue.encode()


# -- storage ---------------------------------------------------------------------------------------------------------

#: maximum number of fields in one call
_MOST_AT_ONCE: Final = 1000
#: seconds between two warnings about too many fields; the condition holds for every call
_REMIND: Final = 60.0
_reminded_at = -_REMIND


def read(deployment: Deployment) -> Figures:
    """Return the counters of finished attempts of all processes, by one command; the most recent may be missing."""
    with clear_errors():
        return from_fields(deployment.client.hgetall(deployment.key("figures")))


def note(deployment: Deployment, figures: Figures, request: bytes | None = None, *, replace: bool = False) -> None:
    """Add to the counters. More than 1,000 fields are sent in chunks, each with its own request id.

    Args:
        request: of calls with the same id only the first counts.
        replace: store these values in place of the previous ones.
    """
    keys = (deployment.key("figures").encode(), deployment.key("noted").encode())
    fields, request, change = to_fields(figures), request or os.urandom(16), "HSET" if replace else "HINCRBY"
    for start in range(0, len(fields), _MOST_AT_ONCE):
        words = [word for pair in fields[start : start + _MOST_AT_ONCE] for word in pair]
        part = request + start.to_bytes(4, "big")
        _remind(deployment.scripts.call(CARRIER, keys, part, MOST_FIELDS, change, *words))


def _remind(left_out: int) -> None:
    global _reminded_at
    if left_out and time.monotonic() - _reminded_at >= _REMIND:
        _reminded_at = time.monotonic()
        logger.warning(
            "%d figures are left out: there are more than %d of queues and tasks already; queues that are "
            "deleted make room",
            left_out,
            MOST_FIELDS,
        )


def drop(deployment: Deployment, queue: str) -> None:
    """Delete the figures of a deleted queue. An attempt that ends later may bring back a few.

    An error is only logged, because leftover figures are no reason for the deletion to fail.
    """
    key = deployment.key("figures")
    try:
        with clear_errors():
            deployment.client.unlink(_depth_key(deployment, queue))
            fields = [name for name in deployment.client.hkeys(key) if _belongs_to(name, queue)]
            for start in range(0, len(fields), _MOST_AT_ONCE):
                deployment.client.hdel(key, *fields[start : start + _MOST_AT_ONCE])
    except DelayQError as error:
        logger.warning("the figures of the deleted queue %r stay: %s", queue, error)


# -- depths: a stream for each queue, with an entry a minute ----------------------------------------------------------

#: minutes for which samples of the depth are kept
MINUTES: Final = 1440
#: series of all queues together
TOTAL: Final = ""
#: ms for which one dispatcher takes the samples, unless it stops; shorter than a minute, so that it can renew its claim
_CLAIM_MS: Final = 55_000
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """Counts of a queue at ``at_ms`` (Unix ms, a whole minute), and what happened since the point before.

    In a sample ``scheduled``, ``done`` and ``failing`` are counters that only ever increase; in a point of a series
    they are per second, and None without a predecessor. ``p50_ms`` and ``p99_ms`` are the lateness of the attempts
    since the point before; None = unknown, or none began.
    """

    at_ms: int = 0
    delayed: int = 0
    ready: int = 0
    reserved: int = 0
    failed: int = 0
    morgue: int = 0
    lag_seconds: float = 0.0
    scheduled: float | None = 0
    done: float | None = 0
    failing: float | None = 0
    p50_ms: float | None = None
    p99_ms: float | None = None


def claim_depths(deployment: Deployment, worker: str) -> bool:
    """Return True if this worker takes the samples of this minute, and no other one does."""
    with clear_errors():
        return bool(deployment.client.set(deployment.key("sampler"), worker, nx=True, px=_CLAIM_MS))


def record_depths(deployment: Deployment, samples: Mapping[str, DepthPoint], now_ms: float) -> None:
    """Store a sample of each of these queues, by one command. Of two samples in a minute the later one counts.

    Args:
        samples: queue -> sample; ``""`` = all queues together.
        now_ms: moment of the samples on Redis's clock, Unix ms.
    """
    keys = tuple(_depth_key(deployment, queue).encode() for queue in samples)
    packed = [pack(astuple(sample)[1:]) for sample in samples.values()]
    deployment.scripts.call("depth", keys, int(now_ms), MINUTES * _MINUTE_MS, *packed)


def read_depths(
    deployment: Deployment, queues: Sequence[str], until_ms: float, minutes: int = 60
) -> dict[str, list[DepthPoint]]:
    """Return the points of these queues in the last ``minutes`` (1 … 1440) before ``until_ms``, the oldest first.

    It takes one round trip. A minute without a dispatcher has no point.
    """
    last_ms = int(until_ms // _MINUTE_MS) * _MINUTE_MS
    first_ms = last_ms - min(minutes, MINUTES - 1) * _MINUTE_MS  # one more than requested, for the first rates
    return {
        name: [point for point in _points(entries) if point.at_ms > last_ms - minutes * _MINUTE_MS]
        for name, entries in _samples(deployment, queues, "xrange", first_ms, last_ms + _MINUTE_MS - 1)
    }


def last_samples(deployment: Deployment, queues: Sequence[str], before_ms: float) -> dict[str, DepthPoint]:
    """Return the last sample of each queue before a moment, with its own time; a queue without one is left out.

    It takes one round trip.
    """
    return {
        name: DepthPoint(int(ident.partition(b"-")[0]), *unpack(fields[b"sample"]))
        for name, entries in _samples(deployment, queues, "xrevrange", int(before_ms), "-", 1)
        for ident, fields in entries
    }


def _samples(deployment: Deployment, queues: Sequence[str], command: str, *bounds: Any) -> Iterable[tuple[str, Any]]:
    with clear_errors(), deployment.client.pipeline(transaction=False) as pipe:
        for name in queues:
            getattr(pipe, command)(_depth_key(deployment, name), *bounds)
        return zip(queues, pipe.execute(), strict=True)


def _depth_key(deployment: Deployment, queue: str) -> str:
    return deployment.key(f"depth:{queue}")


def _points(entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> Iterator[DepthPoint]:
    by_minute = {
        int(ident.partition(b"-")[0]) // _MINUTE_MS * _MINUTE_MS: fields[b"sample"] for ident, fields in entries
    }
    before: DepthPoint | None = None
    for at_ms, packed in by_minute.items():
        sample = DepthPoint(at_ms, *unpack(packed))
        scheduled, done, failing = [_rate(counter, before, sample) for counter in ("scheduled", "done", "failing")]
        yield replace(sample, scheduled=scheduled, done=done, failing=failing)
        before = sample


def _rate(counter: str, before: DepthPoint | None, after: DepthPoint) -> float | None:
    if before is None:
        return None
    # A counter that became smaller belongs to a queue that was deleted meanwhile, or Redis lost it.
    increase: int = max(0, getattr(after, counter) - getattr(before, counter))
    return increase / ((after.at_ms - before.at_ms) / 1000)
