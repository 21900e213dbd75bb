"""Parts of a page of jobs: the orders of each place, the bounds of a range, and the cursor."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ..errors import InvalidJob
from ..inputs import short
from ..records.keys import DUE_KEYS

#: place -> by -> the indexes of the place in this order
INDEXES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "waiting": {"due": DUE_KEYS},
    "reserved": {"deadline": ("lease",)},
    "failed": {"updated": ("failed",), "failures": ("failures",)},
    "morgue": {"updated": ("morgue",), "id": ("morgue_id",)},
}
#: valid form of a score; float() accepts more than Redis does, 1_0 for instance
_SCORE: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
#: orders whose scores are µs of which the last three digits are a place of arrival
_PLACED: Final = ("due", "updated")

Bound: TypeAlias = float | str | None


@dataclass(slots=True, order=True)
class IndexEntry:
    """IndexEntry of an index, in the order of a page."""

    score: float
    member: bytes
    shard: int
    text: str = field(compare=False, default="")


@dataclass(frozen=True, slots=True)
class Range:
    """Range in an order, both ends included: Unix ms, a number of failures, or an id; None = no bound."""

    by: str
    low: Bound = None
    high: Bound = None

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            if bound is not None and not self._is_bound(bound):
                expected = "an id" if self.by == "id" else "a number"
                raise InvalidJob(f"a bound of the order {self.by!r} is {expected}, not {short(bound)}")

    def _is_bound(self, bound: object) -> bool:
        if self.by != "id":
            return isinstance(bound, (int, float)) and not isinstance(bound, bool) and abs(bound) < 2**53
        return isinstance(bound, str) and _is_text(bound)

    def within(self, low: Bound, high: Bound) -> Range:
        """Return the part of the range that lies between two further bounds."""
        lows = [bound for bound in (self.low, low) if bound is not None]
        highs = [bound for bound in (self.high, high) if bound is not None]
        return Range(self.by, max(lows, default=None), min(highs, default=None))

    def holds(self, value: float | str) -> bool:
        """Return True if a value lies in the range; for an order by time, whole milliseconds count."""
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)  # type: ignore[operator]

    def arguments(self) -> tuple[bytes, bytes, bytes]:
        """Return the last arguments of ``page.lua``."""
        if self.by == "id":
            low, high = (None if bound is None else str(bound).encode() for bound in (self.low, self.high))
            # The members are id, \0 and key; no id contains a \0.
            return (b"" if low is None else b"(%b\0" % low), (b"" if high is None else b"(%b\1" % high), b"1"
        return _before(self.by, self.low), _up_to(self.by, self.high), b""


def _is_text(bound: str) -> bool:
    try:
        bound.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _before(by: str, low: Bound) -> bytes:
    if low is None:
        return b""
    return b"(%d" % (math.ceil(float(low)) * (1000 if by in _PLACED else 1))


def _up_to(by: str, high: Bound) -> bytes:
    if high is None:
        return b""
    last = math.floor(float(high))
    return b"(%d" % ((last + 1) * 1000) if by in _PLACED else b"%d" % last


def pack_cursor(entry: IndexEntry) -> str:
    """Return the cursor that continues after an entry."""
    raw = b"%d:%b:%b" % (entry.shard, entry.text.encode(), entry.member)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unpack_cursor(cursor: str) -> IndexEntry | None:
    """Return the entry after which a cursor continues; None = from the beginning.

    Raises:
        InvalidJob: the text is not a cursor.
    """
    if not cursor:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        shard, text, member = raw.split(b":", 2)
        score = float(text)
        if not math.isfinite(score) or not _SCORE.fullmatch(text):
            raise ValueError(text)
        return IndexEntry(score, member, int(shard), text.decode())
    except ValueError:
        raise InvalidJob(f"{cursor[:40]!r} is not a cursor of this inspector; start again without one") from None
