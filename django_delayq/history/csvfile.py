"""The hours of the history as a file for spreadsheets and programs, written while it is read."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from .moments import from_row
from .paging import pages
from .rows import FIELDS

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models.history import HourlyStat

__all__ = ["lines", "response"]

#: rows that are read, and sent, at a time
CHUNK: Final = 2_000
#: what spreadsheets take for the beginning of a formula
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class _Echo:
    """A file that gives back what is written to it."""

    def write(self, text: str) -> str:
        return text


def lines(rows: QuerySet[HourlyStat]) -> Iterator[str]:
    """A head, then a line for each hour, queue and task, the latest first; hours are in UTC, histograms in one cell."""
    writer = csv.writer(_Echo())
    yield writer.writerow(FIELDS)
    for some in pages(rows, CHUNK):
        if some:
            yield "".join(writer.writerow([_cell(getattr(row, name)) for name in FIELDS]) for row in some)


def response(request: HttpRequest, rows: QuerySet[HourlyStat]) -> StreamingHttpResponse:
    """The file as an answer, under WSGI and under ASGI; it is sent as it is read."""
    text = lines(rows)
    found = StreamingHttpResponse(
        _in_threads(text) if isinstance(request, ASGIRequest) else text, content_type="text/csv; charset=utf-8"
    )
    found["Content-Disposition"] = 'attachment; filename="history.csv"'
    found["X-Content-Type-Options"] = "nosniff"
    return found


async def _in_threads(text: Iterator[str]) -> AsyncIterator[str]:
    """The same without the event loop waiting for the database."""
    while some := await sync_to_async(lambda: next(text, ""))():
        yield some


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{from_row(value):%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, Sequence):
        return " ".join(map(str, value))
    return value
