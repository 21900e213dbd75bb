"""Options for reading a Django table, validated before anything runs. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..core.errors import Misconfigured
from ..core.inputs import short
from ..core.task import suggest

NAMES: Final = ("model", "filter", "columns", "using", "partitions", "fetch", "method")
METHODS: Final = ("auto", "orm", "copy")
PARTITIONS: Final = 4
MOST_PARTITIONS: Final = 10_000
FETCH: Final = 10_000
MOST_FETCH: Final = 1_000_000
_MODEL: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
#: A path through fields, possibly with a lookup. Names that begin with _ are internal to Django's filter().
_LOOKUP: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)

#: field lookups -> values; a row must satisfy all of them
Filter = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Selection of rows of a table, and how they are read.

    ``filters``: a row must satisfy all of them. ``columns``: None = all. ``using``: alias of the database; None =
    chosen by the project's routers. ``partitions``: maximum number of Spark tasks. ``fetch``: rows per read.
    """

    model: str
    filters: tuple[Filter, ...] = ()
    columns: tuple[str, ...] | None = None
    using: str | None = None
    partitions: int = PARTITIONS
    fetch: int = FETCH
    method: str = "auto"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> TableOptions:
        """Parse the options as Spark passes them.

        Raises:
            Misconfigured: an option is unknown or invalid; the message says what to write.
        """
        _check_names(options)
        method = (options.get("method") or "auto").strip().lower()
        if method not in METHODS:
            raise Misconfigured(f"method is {short(method)}; use one of {', '.join(METHODS)}")
        using = (options.get("using") or "").strip() or None
        return cls(
            _model(options.get("model")),
            parse_filter(options.get("filter")),
            _columns(options.get("columns")),
            using,
            _number(options, "partitions", PARTITIONS, MOST_PARTITIONS),
            _number(options, "fetch", FETCH, MOST_FETCH),
            method,
        )


def parse_filter(text: str | None) -> tuple[Filter, ...]:
    """Parse the filters in a JSON text: one object of field lookups, or a list of such objects.

    Raises:
        Misconfigured: it is neither; the message says what to write.
    """
    if text is None or not text.strip():
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"the filter is no JSON ({error}); write it like {_EXAMPLE}") from None
    filters = found if isinstance(found, list) else [found]
    for one in filters:
        if not isinstance(one, dict):
            raise Misconfigured(f"the filter is {short(one)}; write it like {_EXAMPLE}")
        for name, value in one.items():
            _check_lookup(name, value)
    return tuple(one for one in filters if one)


_EXAMPLE: Final = '{"status": "pending", "total__gte": 10}'


def _check_lookup(name: str, value: object) -> None:
    if not _LOOKUP.fullmatch(name):
        raise Misconfigured(f"the filter has {short(name)}, which is no field lookup; write it like {_EXAMPLE}")
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, (dict, list)) for one in values):
        raise Misconfigured(
            f"the filter {name!r} has {short(value)}; a value is a text, a number, true, false, null, or a list of "
            "these"
        )


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for given in options:
        if given.lower() not in known:
            told = f"{given[:60]!r} is no option here.{suggest(given, NAMES)} Known are: {', '.join(NAMES)}"
            raise Misconfigured(told)


def _model(given: str | None) -> str:
    text = (given or "").strip()
    if not text:
        raise Misconfigured("which table? Give the option model, like shop.Order")
    if not _MODEL.fullmatch(text):
        raise Misconfigured(f"model is {short(text)}; write the app's label and the model's name, like shop.Order")
    return text


def _columns(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    words = [word.strip() for word in given.split(",") if word.strip()]
    if not words:
        raise Misconfigured("the option columns is empty; give names of fields with commas between, or leave it out")
    for word in words:
        if not _LOOKUP.fullmatch(word):
            raise Misconfigured(f"columns has {short(word)}, which cannot name a field")
    if len({word.lower() for word in words}) < len(words):
        told = f"columns names one twice: {short(given)} (Spark does not tell capitals from small letters)"
        raise Misconfigured(told)
    return tuple(words)


def _number(options: Mapping[str, str], name: str, default: int, most: int) -> int:
    given = options.get(name)
    if given is None:
        return default
    text = given.strip()
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise Misconfigured(f"{name} is {short(given)}; give a whole number from 1 to {most}")
    return int(text)
