"""What all parts of the client share."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from .wire import Wire

T = TypeVar("T")

Seconds = float | timedelta
#: jobs of one settling request
SETTLED_AT_ONCE: Final = 250
#: jobs of one request that produces, or speaks of jobs
AT_ONCE: Final = 1000
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
#: of the jobs of one request; servers take bodies of 4 MiB unless their settings say otherwise
MOST_BYTES: Final = 2 * 1024 * 1024


class Base:
    """A connection to the API. Any thread may use it; each has a connection of its own, kept alive.

    Args:
        url: where the project includes ``django_delayq.api.urls`` ("https://shop.example/delayq/").
        token: of a user with the permissions that are needed; "" = none.
        timeout: seconds for connecting, and for each answer.
        retries: further attempts after a broken connection, 429, 502, 503 and 504, with growing pauses, or as long as
            the server says in Retry-After (more than 30 s: the error is raised at once). Every attempt of a POST
            carries the same Idempotency-Key.
        headers: further ones, for a proxy or another way of authentication.
        worker: who reserves, as others see it; default: this host and process.
        context: for https; None = the system's certificates.

    Raises:
        ValueError: the address, or the token, is none.
    """

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
        sent = {
            "Accept": "application/json, application/problem+json",
            "User-Agent": "django_delayq",
            **(headers or {}),
        }
        if token:
            if not _TOKEN.fullmatch(token):
                raise ValueError(
                    "the token is none: it has a space, a line break or a sign beyond ASCII in it, perhaps"
                    " the end of the line of the file that it comes from"
                )
            sent["Authorization"] = f"Token {token}"
        self._wire = Wire(url, headers=sent, timeout=timeout, retries=retries, context=context)
        self._named = worker

    @property
    def _worker(self) -> str:
        """Who reserves. A process that was forked has another number than its parent."""
        return self._named or f"http-{socket.gethostname()[:200]}-{os.getpid()}"

    def close(self) -> None:
        """End this thread's connection. The client may go on: a new one is opened."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, *path: str, **query: Any) -> Any:
        return self._wire.ask("GET", "v1", *path, query=query).data

    def _post(self, *path: str, body: Any = None) -> Any:
        return self._wire.ask("POST", "v1", *path, body={} if body is None else body).data


def seconds(span: Seconds) -> float:
    """A span as a number of seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def said(**members: Any) -> dict[str, Any]:
    """The members that are not None, as JSON has them: spans in seconds, moments in ISO 8601.

    Raises:
        ValueError: a moment without a time zone.
    """
    return plain({name: value for name, value in members.items() if value is not None})


def plain(members: Mapping[str, Any]) -> dict[str, Any]:
    """The same with those that are None."""
    return {name: _plain(name, value) for name, value in members.items()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} has no time zone, so nobody knows when it is: {value}; give an aware datetime")
        return value.isoformat()
    return value


def size_of(entry: Mapping[str, Any]) -> int:
    """How many bytes it has as JSON."""
    return len(json.dumps(entry, ensure_ascii=False).encode(errors="replace"))


def chunks(items: Iterable[T], size: int, *, weigh: Callable[[T], int] | None = None) -> Iterator[list[T]]:
    """The items in lists of up to ``size``, and of ``MOST_BYTES`` together where ``weigh`` says how many one has."""
    found: list[T] = []
    weight = 0
    for item in items:
        own = 0 if weigh is None else weigh(item)
        if found and (len(found) == size or weight + own > MOST_BYTES):
            yield found
            found, weight = [], 0
        found.append(item)
        weight += own
    if found:
        yield found
