"""Options for reading a queue, validated before anything runs, and the selection of jobs derived from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import check_id, check_queue_name, short
from ..core.moments import ms_of, parse_moment
from ..core.operations.columns import PLACES
from ..core.task import suggest
from .redis_door import check_names

#: option names, without those of :mod:`.redis_door`
NAMES: Final = ("queue", "missingQueue", "shards", "states", "ids", "dueFrom", "dueTo", "fetch", "partitions")
EVERY: Final = "*"
STATES: Final = ("waiting", "reserved")
FETCH: Final = 200
MOST_FETCH: Final = 1000
PARTITIONS: Final = 200
MOST_PARTITIONS: Final = 100_000
_IDS_HINT: Final = 'give a JSON list like ["order-5", "order-6"], or ids with commas between them'
_MS: Final = re.compile(r"-?\d{1,15}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of jobs. None = all; times are Unix ms, from ``low`` on and before ``high``."""

    queues: tuple[str, ...] | None = None
    shards: frozenset[int] | None = None
    states: tuple[str, ...] = STATES
    low: int | None = None
    high: int | None = None
    idents: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a queue.

    ``fetch``: jobs per call to Redis. ``partitions``: maximum number of Spark tasks. ``missing_is_empty``: treat a
    missing queue as empty instead of raising an error.
    """

    wanted: Wanted = Wanted()
    fetch: int = FETCH
    partitions: int = PARTITIONS
    missing_is_empty: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse the options as Spark passes them.

        Raises:
            Misconfigured: an option is unknown or invalid; the message says what to write.
        """
        check_names(options, NAMES)
        low, high = (_moment(name, options.get(name)) for name in ("dueFrom", "dueTo"))
        if low is not None and high is not None and low >= high:
            raise Misconfigured(
                "dueFrom is not before dueTo, so no job can be due between them; is it the other way round?"
            )
        wanted = Wanted(
            _queues(options.get("queue")),
            _shards(options.get("shards")),
            _states(options.get("states")),
            low,
            high,
            _idents(options.get("ids")),
        )
        missing = (options.get("missingQueue") or "fail").strip().lower()
        if missing not in ("fail", "empty"):
            raise Misconfigured(
                f"missingQueue is {short(missing)}; use fail, or empty: then a queue that is not there has no jobs"
            )
        fetch = _number(options, "fetch", FETCH, MOST_FETCH)
        partitions = _number(options, "partitions", PARTITIONS, MOST_PARTITIONS)
        return cls(wanted, fetch, partitions, missing == "empty")


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))


def _queues(given: str | None) -> tuple[str, ...] | None:
    if given is None or given.strip() == EVERY:
        return None
    names = _words(given)
    if not names:
        raise Misconfigured("the option queue is empty; give a name, several with commas between them, or * for all")
    try:
        return tuple(check_queue_name(name) for name in names)
    except InvalidJob as error:
        raise Misconfigured(f"option queue: {error}") from None


def _shards(given: str | None) -> frozenset[int] | None:
    if given is None:
        return None
    words = _words(given)
    if not words or not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise Misconfigured(
            f"shards is {short(given)}; give the numbers of shards (column shard) with commas between them"
        )
    return frozenset(map(int, words))


def _states(given: str | None) -> tuple[str, ...]:
    if given is None:
        return STATES
    words = PLACES if given.strip() == EVERY else [word.lower() for word in _words(given)]
    for word in words:
        if word not in PLACES:
            raise Misconfigured(
                f"states has {short(word)}, which is none.{suggest(word, PLACES)} "
                f"Use some of {', '.join(PLACES)}, or * for all"
            )
    if not words:
        raise Misconfigured(f"the option states is empty; use some of {', '.join(PLACES)}, or * for all")
    return tuple(place for place in PLACES if place in words)


def _idents(given: str | None) -> tuple[str, ...] | None:
    """Return the ids of a JSON list, or of a comma-separated text; None = all."""
    if given is None:
        return None
    is_json = given.lstrip().startswith("[")
    try:
        idents = dict.fromkeys(check_id(ident) for ident in (json.loads(given) if is_json else _words(given)))
    except ValueError as error:  # json's, or InvalidJob
        raise Misconfigured(f"ids is {short(given)}: {error}; {_IDS_HINT}") from None
    if not idents and not is_json:
        raise Misconfigured(f"the option ids is empty; {_IDS_HINT}")
    return tuple(idents)


def _moment(name: str, given: str | None) -> int | None:
    """Return Unix ms; a fraction is rounded up, because due times are whole."""
    if given is None:
        return None
    text = given.strip()
    if _MS.fullmatch(text):
        return int(text)
    try:
        return ms_of(parse_moment(text))
    except InvalidJob as error:
        raise Misconfigured(f"{name}: {error}, or give Unix milliseconds") from None


def _number(options: Mapping[str, str], name: str, default: int, most: int) -> int:
    given = options.get(name)
    if given is None:
        return default
    text = given.strip()
    if not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= most:
        raise Misconfigured(f"{name} is {short(given)}; give a whole number from 1 to {most}")
    return int(text)
