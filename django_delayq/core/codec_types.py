"""Codec for values of a project's own types, stored behind a tag each: ``register("money", Money, dump, load)``.

Registrations are per process, like the adapters of a database driver: both the processes that schedule and the
processes that run jobs must register the types.
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
from .refusals import SCALARS

#: prefix of all tags of a project, so that no tag of a later release collides with one
MARK: Final = "$."
_TAG: Final = re.compile(r"[a-z0-9_-]{1,40}")
#: types that have a built-in stored form
BUILT_IN: Final = frozenset(
    (object, *SCALARS, list, tuple, dict, datetime, date, time, timedelta, Decimal, UUID, bytes, bytearray, memoryview)
)
#: tag as stored -> type
types_by_tag: Final[dict[str, ValueType]] = {}
#: class -> type
types_by_kind: Final[dict[type[Any], ValueType]] = {}


@dataclass(frozen=True, slots=True)
class ValueType:
    """Stored form of one of the project's own types: ``ValueType("money", Money, dump, load)``.

    Attributes:
        tag: marks the values in storage: 1 to 40 of ``a-z 0-9 _ -``. It must never change its meaning.
        kind: the type. Its subclasses use the same form, unless they have a tag of their own.
        dump: converts a value into one that can be stored (text, numbers, lists, dicts, dates, other registered types).
            Equal values must give equal results, or equal payloads are not recognised.
        load: converts the result of ``dump`` back. If it raises for a job, the job cannot be read and goes to the
            morgue.
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
    """Make values of a type storable in this process: see :class:`ValueType`. Repeating a registration has no effect.

    Both the processes that schedule and the processes that run the jobs must register; with Django,
    ``DELAYQ["CODEC_TYPES"]`` does so.

    Raises:
        Misconfigured: an argument is not usable, or the tag or the type belongs to another registration.
    """
    return install(ValueType(tag, kind, dump, load))


def install(made: ValueType) -> ValueType:
    """Register an existing :class:`ValueType`; see :func:`register`."""
    for other in (types_by_tag.get(MARK + made.tag), types_by_kind.get(made.kind)):
        if other is not None and other != made:
            raise Misconfigured(
                f"tag {made.tag!r} for {made.kind.__qualname__}: {other.tag!r} stands for {other.kind.__qualname__} "
                f"already; a tag stands for one type and a type has one tag"
            )
    types_by_tag[MARK + made.tag] = types_by_kind[made.kind] = made
    return made


def forget(made: ValueType) -> None:
    """Remove a registration: its values can no longer be stored, and stored ones can no longer be read."""
    if types_by_tag.get(MARK + made.tag) == made:
        del types_by_tag[MARK + made.tag], types_by_kind[made.kind]
