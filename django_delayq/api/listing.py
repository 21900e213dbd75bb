"""Pages of jobs: query parameters of the lists, and the inspector pages that answer them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from ..core.errors import InvalidJob
from ..core.inputs import check_id, check_int, short
from ..core.operations.paging import unpack_cursor
from ..core.operations.views import JobView
from ..core.queue import Queue
from ..settings.conf import conf
from . import brokers, values
from .base import Body
from .fields import moment_of, number_of
from .problems import Problem, invalid

#: state of a list → place in the inspector and its orders, default first
STATES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "waiting": ("waiting", ("due",)),
    "delayed": ("waiting", ("due",)),
    "ready": ("waiting", ("due",)),
    "reserved": ("reserved", ("deadline",)),
    "gated": ("reserved", ("deadline",)),
    "failed": ("failed", ("updated", "failures")),
}
MORGUE: Final = ("morgue", ("updated", "id"))
BYS: Final = ("due", "deadline", "updated", "failures")
#: bytes of arguments, payloads and errors after which a page of whole records ends
PAGE_BYTES: Final = 1024 * 1024
_MOST: Final = 250
_SCORE: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


class _PageQuery(Body):
    order = serializers.ChoiceField(choices=("asc", "desc"), default="asc")
    cursor = serializers.CharField(default="", allow_blank=True, max_length=2000, trim_whitespace=False)
    limit = serializers.CharField(default="100", max_length=20)
    id = serializers.CharField(default="", trim_whitespace=False, max_length=1000)
    task = serializers.CharField(default="", trim_whitespace=False, max_length=255)
    min = serializers.CharField(default="", trim_whitespace=False, max_length=1000)
    max = serializers.CharField(default="", trim_whitespace=False, max_length=1000)


class GravesQuery(Body):
    """Query for the morgue records of one id."""

    cursor = serializers.CharField(default="", allow_blank=True, max_length=2000, trim_whitespace=False)
    limit = serializers.CharField(default="100", max_length=20)


class JobsQuery(_PageQuery):
    """Query for a list of jobs."""

    state = serializers.ChoiceField(choices=tuple(STATES), default="")
    by = serializers.ChoiceField(choices=BYS, default="")


class MorgueQuery(_PageQuery):
    """Query for a list of morgue records."""

    by = serializers.ChoiceField(choices=MORGUE[1], default="")


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """Validated query for one page of jobs."""

    place: str
    by: str
    state: str
    reverse: bool
    cursor: str
    limit: int
    id: str
    task: str
    low: float | str | None
    high: float | str | None

    @classmethod
    def of(cls, query: dict[str, Any], place: str, orders: tuple[str, ...]) -> ListingQuery:
        """Return the page query for validated query parameters.

        Raises:
            Problem: the parameters contradict each other.
        """
        by = query["by"] or orders[0]
        if by not in orders:
            text = f"jobs that are {query.get('state') or 'waiting'} are ordered by {' or '.join(orders)}, not by {by}"
            raise invalid(text, ("/by", text))
        if query["id"]:
            _refuse_beside_id(query)
        return cls(
            place,
            by,
            query.get("state", ""),
            query["order"] == "desc",
            _cursor(query["cursor"]),
            _limit(query["limit"]),
            _id(query["id"]) if query["id"] else "",
            query["task"],
            _bound("min", query["min"], by),
            _bound("max", query["max"], by),
        )

    def answer(self, queue: Queue) -> dict[str, Any]:
        """Return the page: ``jobs`` and ``cursor``."""
        inspector = brokers.broker().inspector
        if self.id:
            found = self._of_id(queue)
            cursor = ""
        else:
            low, high = self._range()
            page = inspector.page(
                queue.name,
                self.place,
                self.by,
                cursor=self.cursor,
                limit=self.limit,
                reverse=self.reverse,
                low=low,
                high=high,
                most_bytes=values.MOST_BYTES,
            )
            found, cursor = page.jobs, page.cursor
        return {"jobs": [values.job(view) for view in found if self._is_meant(view)], "cursor": cursor or None}

    def _of_id(self, queue: Queue) -> list[JobView]:
        inspector = brokers.broker().inspector
        if self.place == "morgue":
            return inspector.graves(queue.name, self.id, most_bytes=values.MOST_BYTES)
        view = inspector.get(queue.name, self.id, most_bytes=values.MOST_BYTES)
        return [view] if view is not None and self._is_there(view) else []

    def _is_there(self, view: JobView) -> bool:
        waits = view.state in ("delayed", "ready")
        return view.state != "morgue" and {
            "": True,
            "waiting": waits,
            "failed": waits and view.job.failures > 0,
            "gated": True,
        }.get(self.state, view.state == self.state)

    def _is_meant(self, view: JobView) -> bool:
        """Return True if the job passes the filters that the index does not cover."""
        if self.state == "gated" and view.gated_due_ms is None:
            return False
        return not self.task or view.job.task == self.task

    def _range(self) -> tuple[float | str | None, float | str | None]:
        """Return the bounds of the page, cut at the current time for delayed and ready jobs."""
        low, high = self.low, self.high
        if self.state not in ("delayed", "ready"):
            return low, high
        now_ms = math.floor(brokers.broker().now_ms())
        if self.state == "ready":
            return low, now_ms if high is None else min(float(high), now_ms)
        return now_ms + 1 if low is None else max(float(low), now_ms + 1), high


def most_bytes() -> int:
    """Return the maximum bytes of arguments shown for a job requested by id; no job should have more."""
    return max(PAGE_BYTES, conf().max_args_bytes)


def graves_page(queue: Queue, ident: str, query: dict[str, Any]) -> dict[str, Any]:
    """Return a page of the records of an id: ``jobs`` and ``cursor``.

    Raises:
        Problem: the query is invalid, or there is no record.
    """
    cursor = _cursor(query["cursor"])
    page = brokers.broker().inspector.graves_page(
        queue.name,
        ident,
        cursor=cursor,
        limit=_limit(query["limit"]),
        most_bytes=most_bytes(),
        page_bytes=PAGE_BYTES,
    )
    if not (page.jobs or page.cursor or cursor):
        raise Problem(404, "job_not_found", f"the morgue of queue {queue.name!r} has no job {ident!r} (any more)")
    return {"jobs": [values.job(view, view.payloads) for view in page.jobs], "cursor": page.cursor or None}


def _refuse_beside_id(query: dict[str, Any]) -> None:
    for name in ("min", "max", "cursor"):
        if query[name]:
            text = f"id names one job, so {name} says nothing; leave it out"
            raise invalid(text, (f"/{name}", text))


def _limit(text: str) -> int:
    try:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidJob(f"limit must be 1 to {_MOST}, got {short(text)}")
        return check_int("limit", int(text), 1, _MOST)
    except InvalidJob as error:
        raise invalid(str(error), ("/limit", str(error))) from None


def _cursor(text: str) -> str:
    """Return the cursor after checking that Redis can parse its score, too."""
    after = unpack_cursor(text)
    if after is not None and not _SCORE.fullmatch(after.text):
        raise invalid(f"{short(text)} is no cursor; start again without one", ("/cursor", "this is no cursor"))
    return text


def _id(text: str) -> str:
    try:
        return check_id(text)
    except InvalidJob as error:
        raise invalid(str(error), ("/id", str(error))) from None


def _bound(name: str, text: str, by: str) -> float | str | None:
    """Return a bound in the unit of the order: Unix ms, a number of failures, or an id."""
    if not text:
        return None
    if by == "id":
        return _id(text)
    if by == "failures":
        if text.isascii() and text.isdigit() and len(text) < 10:
            return int(text)
        raise invalid(f"{name} is a number of failures, not {short(text)}", (f"/{name}", "this is a whole number"))
    seconds = number_of(text)
    try:
        ms = (moment_of(text).timestamp() if seconds is None else seconds) * 1000
    except InvalidJob as error:
        raise invalid(str(error), (f"/{name}", str(error))) from None
    if not abs(ms) < 2**53:
        raise invalid(f"{name} is a moment that no job can have; Unix seconds are expected", (f"/{name}", "too large"))
    return ms


def _parameter(name: str, text: str, schema: Any = str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, schema, OpenApiParameter.QUERY, description=text, **more)


_COMMON: Final = [
    _parameter("order", "asc (default) or desc", enum=("asc", "desc")),
    _parameter("cursor", "that of the page before; the other parameters stay as they were"),
    _parameter("limit", "1 to 250, default 100", {"type": "integer", "minimum": 1, "maximum": _MOST}),
    _parameter("id", "this id only; it goes with neither min, max nor cursor"),
    _parameter(
        "task",
        "jobs of this task only. It is looked at page by page, so a page may have fewer jobs than "
        "`limit`, and even none; the cursor goes on all the same",
    ),
    _parameter("min", "from this moment (ISO 8601 with offset, or Unix seconds), number of failures or id on"),
    _parameter("max", "up to this one, it included"),
]
#: query parameters of the lists, for the OpenAPI document
JOBS_PARAMETERS: Final = [
    _parameter(
        "state",
        "default waiting, which is delayed and ready together. gated: jobs that run while new content "
        "waits behind them; a page may have fewer jobs than `limit`",
        enum=tuple(STATES),
    ),
    _parameter(
        "by",
        "the order: due (waiting, delayed, ready), deadline (reserved, gated), updated or failures (failed)",
        enum=BYS,
    ),
    *_COMMON,
]
GRAVES_PARAMETERS: Final = [
    _parameter("cursor", "that of the page before"),
    _parameter("limit", "1 to 250, default 100", {"type": "integer", "minimum": 1, "maximum": _MOST}),
]
MORGUE_PARAMETERS: Final = [
    _parameter("by", "the order: updated (default; when they were buried) or id", enum=MORGUE[1]),
    *_COMMON,
]
