"""CSV export of the hours, streamed while the rows are read."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from .periods import from_row
from .rows import FIELDS, HOURS

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models.history import HourlyStat

#: rows that are read and sent at a time
CHUNK: Final = 2_000
#: characters that spreadsheets take for the beginning of a formula
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class _Echo:
    """File whose ``write`` returns the text."""

    def write(self, text: str) -> str:
        return text


def lines(rows: QuerySet[HourlyStat]) -> Iterator[str]:
    """Yield a header, then a line for each hour, queue and task, newest first.

    Hours are in UTC; a histogram is one cell.
    """
    writer = csv.writer(_Echo())
    yield writer.writerow(FIELDS)
    for some in chunks(rows, CHUNK):
        if some:
            yield "".join(writer.writerow([_cell(getattr(row, name)) for name in FIELDS]) for row in some)


def chunks(rows: QuerySet[HourlyStat], size: int) -> Iterator[list[HourlyStat]]:
    """Yield all rows, without an open database cursor and without holding all of them in memory."""
    page = HOURS.page(rows, size)
    yield page.rows
    while page.after:
        page = HOURS.page(rows, size, after=page.after)
        yield page.rows


def response(request: HttpRequest, rows: QuerySet[HourlyStat]) -> StreamingHttpResponse:
    """Return the streaming response with the file, for WSGI and ASGI."""
    text = lines(rows)
    stream = StreamingHttpResponse(
        _in_threads(text) if isinstance(request, ASGIRequest) else text, content_type="text/csv; charset=utf-8"
    )
    stream["Content-Disposition"] = 'attachment; filename="history.csv"'
    stream["X-Content-Type-Options"] = "nosniff"
    return stream


async def _in_threads(text: Iterator[str]) -> AsyncIterator[str]:
    """Yield the same text from threads, so that the database does not block the event loop."""
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
