"""Options for reading a Django table, validated before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ..core.errors import InvalidJob, Misconfigured
from ..core.inputs import short
from .option_fields import SourceOptions, choice, listed, option, parse_json, text, whole

_MODEL: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
#: A path through fields, possibly with a lookup. Names that begin with _ are internal to Django's filter().
_LOOKUP: Final = re.compile(r"[A-Za-z]\w*", re.ASCII)
_EXAMPLE: Final = '{"status": "pending", "total__gte": 10}'

#: field lookups -> values; a row must satisfy all of them
Filter = Mapping[str, Any]


def check_filter(name: str, given: str) -> tuple[Filter, ...]:
    """Return the filters in a JSON text: one object of field lookups, or a list of such objects.

    Raises:
        InvalidJob: it is neither; the message says what to write.
    """
    parsed = parse_json(name, given, _EXAMPLE)
    filters = parsed if isinstance(parsed, list) else [parsed]
    for one in filters:
        if not isinstance(one, dict):
            raise InvalidJob(f"{name} must be field lookups like {_EXAMPLE}, got {short(one)}")
        for lookup, value in one.items():
            _check_lookup(name, lookup, value)
    return tuple(one for one in filters if one)


def _check_lookup(name: str, lookup: str, value: object) -> None:
    if not _LOOKUP.fullmatch(lookup):
        raise InvalidJob(f"{name} has {short(lookup)}, which is no field lookup; write it like {_EXAMPLE}")
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, (dict, list)) for one in values):
        raise InvalidJob(
            f"{name} {lookup!r} has {short(value)}; a value is a text, a number, true, false, null, or a list of these"
        )


def _model(name: str, given: str) -> str:
    if not _MODEL.fullmatch(given):
        raise InvalidJob(f"{name} must be the app's label and the model's name, like shop.Order, got {short(given)}")
    return given


def _columns(name: str, given: str) -> tuple[str, ...]:
    columns = listed(name, given)
    for column in columns:
        if not _LOOKUP.fullmatch(column):
            raise InvalidJob(f"{name} has {short(column)}, which cannot name a field")
    if len({column.lower() for column in columns}) < given.count(",") + 1:
        raise InvalidJob(f"{name} has one twice, and Spark ignores case: {short(given)}; leave one of them out")
    return columns


@dataclass(frozen=True, slots=True)
class TableOptions(SourceOptions):
    """Selection of rows of a table, and how they are read."""

    ELSEWHERE: ClassVar[tuple[str, ...]] = ()

    model: str = option("model", _model, "")
    #: a row must satisfy all of them
    filters: tuple[Filter, ...] = option("filter", check_filter, ())
    #: None = all
    columns: tuple[str, ...] | None = option("columns", _columns)
    #: alias of the database; None = chosen by the project's routers
    using: str | None = option("using", text)
    #: maximum number of Spark tasks
    partitions: int = option("partitions", whole(1, 10_000), 4)
    #: rows per read
    fetch: int = option("fetch", whole(1, 1_000_000), 10_000)
    method: str = option("method", choice("auto", "orm", "copy"), "auto")

    def __post_init__(self) -> None:
        if not self.model:
            raise Misconfigured("which table? Give the option model, like shop.Order")
