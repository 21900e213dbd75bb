"""Base class and helpers shared by all parts of the clients."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from weakref import WeakSet

from .errors import ApiError
from .methods import Pages
from .wire import Answer, Request, Steps, Wire

T = TypeVar("T")

Seconds = float | timedelta
#: jobs of one settling request
SETTLED_AT_ONCE: Final = 250
#: jobs of one request that produces or names jobs
AT_ONCE: Final = 1000
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
#: maximum size of the jobs of one request; servers accept bodies of 4 MiB unless their settings differ
MOST_BYTES: Final = 2 * 1024 * 1024


class Base:
    """Client of the HTTP API: what both clients have in common.

    Args:
        url: address under which the project includes ``django_delayq.api.urls`` ("https://shop.example/delayq/").
        token: token of a user with the required permissions; "" = none.
        timeout: seconds for connecting, and for each response.
        retries: further attempts after a broken connection, 429, 502, 503 and 504, with growing pauses, or after the
            time in Retry-After (more than 30 s: the error is raised at once). Every attempt of a POST carries the same
            Idempotency-Key.
        headers: further headers, for a proxy or another way of authentication.
        worker: name of the holder of reserved jobs; default: this host and process.
        context: for https; None = the system's certificates.

    Raises:
        ValueError: the address or the token is invalid.
    """

    _transport_class: type[Any]

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        timeout: float = 30.0,
        retries: int = 2,
        headers: Mapping[str, str] | None = None,
        worker: str = "",
        context: ssl.SSLContext | None = None,
    ) -> None:
        common = {
            "Accept": "application/json, application/problem+json",
            "Accept-Encoding": "identity",
            "User-Agent": "django_delayq",
            **(headers or {}),
        }
        if token:
            if not _TOKEN.fullmatch(token):
                raise ValueError(
                    "the token is invalid: it has a space, a line break or a non-ASCII character in it; strip it "
                    "if it was read from a file"
                )
            common["Authorization"] = f"Token {token}"
        self._wire = Wire(url, headers=common, timeout=timeout, retries=retries)
        if context is None:
            # Loading certificates takes time, and plain HTTP needs none.
            context = ssl.create_default_context() if self._wire.secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._transport = self._transport_class(context)
        self._worker_name = worker
        #: reserved jobs whose objects exist
        self._held: WeakSet[Any] = WeakSet()
        self._held_guard = threading.Lock()

    @property
    def _worker(self) -> str:
        """Name of the holder of reserved jobs. A forked process has another number than its parent."""
        return self._worker_name or f"http-{socket.gethostname()[:200]}-{os.getpid()}"

    def _exchange(self, method: str, *path: str, **options: Any) -> Steps[Answer]:
        """Exchange a request below v1; ``options`` are fields of :class:`Request`."""
        return self._wire.exchange(Request(method, ("v1", *path), **options))

    def _get(self, *path: str, **query: Any) -> Steps[Any]:
        answer = yield from self._exchange("GET", *path, query=query)
        return answer.data

    def _post(self, *path: str, body: Any = None) -> Steps[Any]:
        answer = yield from self._exchange("POST", *path, body={} if body is None else body)
        return answer.data

    def _post_each(
        self, path: tuple[str, ...], bodies: Iterable[Mapping[str, Any]]
    ) -> Steps[tuple[list[tuple[Any, str]], dict[str, int]]]:
        """Send a request for each body. Return (id, outcome) of all jobs, and counts by outcome.

        Raises:
            ApiError: a request was refused; ``done`` has the results of those before it.
        """
        results: list[tuple[Any, str]] = []
        counts: Counter[str] = Counter()
        for body in bodies:
            try:
                answer = yield from self._post(*path, body=body)
            except ApiError as error:
                error.done = results
                raise
            results += [(one["id"], one["outcome"]) for one in answer["results"]]
            counts.update(answer["counts"])
        return results, dict(counts)

    def _pages(
        self, path: tuple[str, ...], member: str, query: Mapping[str, Any], read: Callable[[Any], T]
    ) -> Pages[T]:
        """Return the function that fetches the pages of a list; ``member`` has the items of a page."""

        def page(cursor: str | None) -> Steps[tuple[list[T], str | None]]:
            data = yield from self._get(*path, **query, cursor=cursor)
            return [read(item) for item in data[member]], data["cursor"]

        return page


def all_items(page: Pages[T]) -> Steps[list[T]]:
    """Return the items of all pages."""
    items_read, cursor = yield from page(None)
    while cursor:
        items, cursor = yield from page(cursor)
        items_read += items
    return items_read


def seconds(span: Seconds) -> float:
    """Return a time span as a number of seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def members(**given: Any) -> dict[str, Any]:
    """Return the members that are not None as JSON values: spans in seconds, times in ISO 8601.

    Raises:
        ValueError: a time without a time zone.
    """
    return plain({name: value for name, value in given.items() if value is not None})


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all members as JSON values, including those that are None."""
    return {name: _plain(name, value) for name, value in given.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} has no time zone, so the moment is unknown: {value}; give an aware datetime")
        return value.isoformat()
    return value


def size_of(entry: Mapping[str, Any]) -> int:
    """Return the size of an entry as JSON, in bytes."""
    return len(json.dumps(entry, ensure_ascii=False).encode(errors="replace"))


def chunks(items: Iterable[T], size: int, *, weigh: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """Yield the items in lists of up to ``size``; with ``weigh``, of at most ``MOST_BYTES`` in total."""
    chunk: list[T] = []
    weight = 0
    for item in items:
        own = 0 if weigh is None else weigh(item)
        if chunk and (len(chunk) == size or weight + own > MOST_BYTES):
            yield chunk
            chunk, weight = [], 0
        chunk.append(item)
        weight += own
    if chunk:
        yield chunk
