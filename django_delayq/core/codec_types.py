"""Values of types of the project's own, stored behind a tag each: ``register("money", Money, dump, load)``.

They are known to a process, as adapters of a database driver are: whoever schedules and whoever runs registers them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from .errors import Misconfigured
from .inputs import short

#: what begins the tags of a project, so that no tag of a later release is one of them
MARK: Final = "$."
_TAG: Final = re.compile(r"[a-z0-9_-]{1,40}")
#: what has a stored form already
BUILT_IN: Final = frozenset(
    (
        object,
        str,
        int,
        float,
        bool,
        type(None),
        list,
        tuple,
        dict,
        datetime,
        date,
        time,
        timedelta,
        Decimal,
        UUID,
        bytes,
        bytearray,
        memoryview,
    )
)
#: tag as stored -> type
types_by_tag: Final[dict[str, ValueType]] = {}
#: class -> type
types_by_kind: Final[dict[type[Any], ValueType]] = {}


@dataclass(frozen=True, slots=True)
class ValueType:
    """How values of one type of the project's own are stored: ``ValueType("money", Money, dump, load)``.

    Attributes:
        tag: what marks them in what is stored: 1 to 40 of ``a-z 0-9 _ -``. It must never change its meaning.
        kind: the type. Its subclasses are stored by it too, unless they have a tag of their own.
        dump: makes of a value one that can be stored (text, numbers, lists, dicts, dates, other registered types); of
            equal values equal ones, or equal payloads will not be recognised.
        load: makes the value of what ``dump`` gave. A job that it raises for cannot be read, and goes to the morgue.
    """

    tag: str
    kind: type[Any]
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not isinstance(self.tag, str) or not _TAG.fullmatch(self.tag):
            raise Misconfigured(f"the tag {short(self.tag)} is not 1 to 40 of a-z, 0-9, _ and -, like 'money'")
        if not isinstance(self.kind, type):
            raise Misconfigured(f"tag {self.tag!r}: {short(self.kind)} is no type; give the class of the values")
        if self.kind in BUILT_IN:
            raise Misconfigured(f"tag {self.tag!r}: {self.kind.__name__} has a stored form of its own, which stays")
        if not callable(self.dump) or not callable(self.load):
            raise Misconfigured(f"tag {self.tag!r}: dump and load are functions of one value")


def register(tag: str, kind: type[Any], dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> ValueType:
    """Makes values of a type storable, in this process: see :class:`ValueType`. The same again changes nothing.

    Whoever schedules and whoever runs the jobs must both do so; with Django ``DELAYQ["CODEC_TYPES"]`` does it.

    Raises:
        Misconfigured: a part of it cannot be, or the tag or the type belongs to another registration.
    """
    return install(ValueType(tag, kind, dump, load))


def install(made: ValueType) -> ValueType:
    """:func:`register` for one that is made already."""
    for other in (types_by_tag.get(MARK + made.tag), types_by_kind.get(made.kind)):
        if other is not None and other != made:
            raise Misconfigured(
                f"tag {made.tag!r} for {made.kind.__qualname__}: {other.tag!r} stands for {other.kind.__qualname__} "
                f"already; a tag stands for one type and a type has one tag"
            )
    types_by_tag[MARK + made.tag] = types_by_kind[made.kind] = made
    return made


def forget(made: ValueType) -> None:
    """Takes a registration back: its values are not storable any more, and stored ones cannot be read."""
    if types_by_tag.get(MARK + made.tag) == made:
        del types_by_tag[MARK + made.tag], types_by_kind[made.kind]
