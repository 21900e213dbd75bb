"""Options for reading a queue, validated before anything runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_choice, check_id, short
from ..core.snapshot import PLACES
from ..core.times import ms_of, parse_moment
from .option_fields import EVERY, SourceOptions, choice, listed, named, option, parse_json, queue_names, whole, words

STATES: Final = ("waiting", "reserved")
_MS: Final = re.compile(r"-?\d{1,15}")
_IDS_EXAMPLE: Final = '["order-5", "order-6"]'


def _shards(name: str, given: str) -> frozenset[int]:
    numbers = words(given)
    if not numbers or not all(re.fullmatch(r"\d{1,9}", number) for number in numbers):
        raise InvalidJob(
            f"{name} must be numbers of shards (column shard) with commas between them, got {short(given)}"
        )
    return frozenset(map(int, numbers))


def _states(name: str, given: str) -> tuple[str, ...]:
    if given == EVERY:
        return PLACES
    states = [check_choice(name, state, PLACES) for state in listed(name, given.lower())]
    return tuple(place for place in PLACES if place in states)


def _ids(name: str, given: str) -> tuple[str, ...]:
    """Return the ids of a JSON list, or of a comma-separated text."""
    ids = parse_json(name, given, _IDS_EXAMPLE) if given.startswith("[") else listed(name, given)
    return tuple(dict.fromkeys(named(check_id)(name, one) for one in ids))


def _ms(name: str, given: str) -> int:
    """Return Unix ms; a fraction is rounded up, because due times are whole."""
    return int(given) if _MS.fullmatch(given) else ms_of(parse_moment(given, what=name))


@dataclass(frozen=True, slots=True)
class ReadOptions(SourceOptions):
    """Selection of jobs, and how they are read. Due times are Unix ms, from ``low`` on and before ``high``."""

    #: empty = all
    queues: tuple[str, ...] = option("queue", queue_names, ())
    #: None = all
    shards: frozenset[int] | None = option("shards", _shards)
    states: tuple[str, ...] = option("states", _states, STATES)
    low: int | None = option("dueFrom", _ms)
    high: int | None = option("dueTo", _ms)
    #: None = all
    ids: tuple[str, ...] | None = option("ids", _ids)
    #: jobs per call to Redis
    fetch: int = option("fetch", whole(1, 1000), 200)
    #: maximum number of Spark tasks
    partitions: int = option("partitions", whole(1, 100_000), 200)
    #: fail; empty: a missing queue has no jobs
    missing_queue: str = option("missingQueue", choice("fail", "empty"), "fail")

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise Misconfigured(
                "dueFrom is not before dueTo, so no job can be due between them; is it the other way round?"
            )
