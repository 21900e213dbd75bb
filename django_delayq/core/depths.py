"""Depth of queues over time: a sample a minute for a day, in a string of fixed size for each queue.

A sample lies at the place of its minute in the day, so it replaces that of the day before, and two samples of one
minute are one. The series ``""`` is that of all queues together. A series expires a day after its last sample.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Final

from .deployment import Deployment
from .errors import DelayQError
from .records.keys import depth_claim_key, depth_key
from .redis.scripts import clear_errors

logger: Final = logging.getLogger(__name__)

#: minutes for which samples are kept
MINUTES: Final = 1440
#: series of all queues together
TOTAL: Final = ""
#: ms for which one dispatcher takes the samples, unless it stops; shorter than a minute, so that it can renew its claim
_CLAIM_MS: Final = 55_000
_MINUTE_MS: Final = 60_000
#: minute since 1970, then the fields of :class:`DepthSample`
_SAMPLE: Final = struct.Struct("<I5If3I2f")
#: counters are stored modulo this number
_WRAP: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class DepthSample:
    """Counts and counters of a queue at one moment. ``scheduled``, ``done`` and ``failing`` only ever increase.

    ``p50_ms`` and ``p99_ms`` are the lateness of the attempts since the sample before; NaN = unknown, or none
    began.
    """

    delayed: int = 0
    ready: int = 0
    reserved: int = 0
    failed: int = 0
    morgue: int = 0
    lag_seconds: float = 0.0
    scheduled: int = 0
    done: int = 0
    failing: int = 0
    p50_ms: float = math.nan
    p99_ms: float = math.nan


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """Point of a series: counts at ``at_ms`` (Unix ms, a whole minute), and what happened since the point before.

    ``scheduled``, ``done`` and ``failing`` are per second; they are None for a point without a predecessor. ``p50_ms``
    and ``p99_ms`` are the lateness; None = unknown, or no attempt began.
    """

    at_ms: int
    delayed: int
    ready: int
    reserved: int
    failed: int
    morgue: int
    lag_seconds: float
    scheduled: float | None
    done: float | None
    failing: float | None
    p50_ms: float | None
    p99_ms: float | None


def claim(deployment: Deployment, worker: str) -> bool:
    """Return True if this worker takes the samples of this minute, and no other one does."""
    with clear_errors():
        return bool(deployment.client.set(depth_claim_key(deployment.prefix), worker, nx=True, px=_CLAIM_MS))


def record(deployment: Deployment, samples: Mapping[str, DepthSample], now_ms: float) -> None:
    """Store a sample of each of these queues, by one command. Repeating it changes nothing.

    Args:
        samples: queue -> sample; ``""`` = all queues together.
        now_ms: moment of the samples on Redis's clock, Unix ms.
    """
    minute = int(now_ms // _MINUTE_MS)
    keys = tuple(depth_key(deployment.prefix, queue).encode() for queue in samples)
    packed = [_pack(minute, sample) for sample in samples.values()]
    deployment.scripts.call("depth", keys, minute % MINUTES * _SAMPLE.size, MINUTES * _MINUTE_MS, *packed)


def read(
    deployment: Deployment, queues: Iterable[str], until_ms: float, minutes: int = 60
) -> dict[str, list[DepthPoint]]:
    """Return the points of these queues in the last ``minutes`` (1 … 1440) before ``until_ms``, the oldest first.

    It takes one round trip. A minute without a dispatcher has no point.
    """
    names, last = list(queues), int(until_ms // _MINUTE_MS)
    first = last - min(minutes, MINUTES - 1)  # one more than requested, to which the first rates relate
    with clear_errors(), deployment.client.pipeline(transaction=False) as pipe:
        for name in names:
            for start, end in _ranges(first, last):
                pipe.getrange(depth_key(deployment.prefix, name), start * _SAMPLE.size, end * _SAMPLE.size - 1)
        replies = pipe.execute()
    parts = len(replies) // len(names) if names else 0
    return {
        name: _points(b"".join(replies[place * parts : (place + 1) * parts]), first, last, minutes)
        for place, name in enumerate(names)
    }


def violations(deployment: Deployment, queue: str) -> list[str]:
    """Return what is wrong with the series of a queue. Samples repair it, so only its size is checked."""
    with clear_errors():
        size = deployment.client.strlen(depth_key(deployment.prefix, queue))
    whole = size % _SAMPLE.size == 0 and size <= MINUTES * _SAMPLE.size
    return [] if whole else [f"{queue}: {size} bytes of depths are not at most {MINUTES} samples"]


def drop(deployment: Deployment, queue: str) -> None:
    """Delete the series of a deleted queue. An error is only logged, because the series expires anyway."""
    try:
        with clear_errors():
            deployment.client.unlink(depth_key(deployment.prefix, queue))
    except DelayQError as error:
        logger.warning("the depths of the deleted queue %r stay for a day: %s", queue, error)


def _pack(minute: int, sample: DepthSample) -> bytes:
    return _SAMPLE.pack(minute, *(value % _WRAP if type(value) is int else value for value in astuple(sample)))


def _ranges(first: int, last: int) -> list[tuple[int, int]]:
    """Return the places of these minutes as ranges (start, end), in the order of time."""
    start, end = first % MINUTES, last % MINUTES + 1
    return [(start, end)] if start < end else [(start, MINUTES), (0, end)]


def _points(stored: bytes, first: int, last: int, minutes: int) -> list[DepthPoint]:
    whole = stored[: len(stored) - len(stored) % _SAMPLE.size]
    listed = [
        (minute, DepthSample(*values)) for minute, *values in _SAMPLE.iter_unpack(whole) if first <= minute <= last
    ]
    pairs = pairwise([None, *listed])
    points = [_point(before, *after) for before, after in pairs if after is not None]
    return [point for point in points if point.at_ms > (last - minutes) * _MINUTE_MS]


def _point(before: tuple[int, DepthSample] | None, minute: int, sample: DepthSample) -> DepthPoint:
    def rate(counter: str) -> float | None:
        if before is None:
            return None
        then, seconds = getattr(before[1], counter), (minute - before[0]) * 60
        increase = (getattr(sample, counter) - then) % _WRAP
        # A counter that became smaller belongs to a queue that was deleted meanwhile, or Redis lost it.
        return increase / seconds if increase < _WRAP // 2 else 0.0

    return DepthPoint(
        minute * _MINUTE_MS,
        *(sample.delayed, sample.ready, sample.reserved, sample.failed, sample.morgue),
        lag_seconds=sample.lag_seconds,
        scheduled=rate("scheduled"),
        done=rate("done"),
        failing=rate("failing"),
        p50_ms=None if math.isnan(sample.p50_ms) else sample.p50_ms,
        p99_ms=None if math.isnan(sample.p99_ms) else sample.p99_ms,
    )
