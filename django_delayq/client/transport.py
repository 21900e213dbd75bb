"""Transports: they perform the steps of a verb with httpx, one blocking, one for asyncio."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
import weakref
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, TypeVar

try:
    import httpx
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise ModuleNotFoundError(
        'the client of the HTTP API needs httpx: pip install "django-delayq[client]"', name="httpx"
    ) from error

from .wire import Attempt, NoReply, Pause, Reply, Step, Steps

T = TypeVar("T")

#: seconds for which an idle connection is kept
_IDLE_SECONDS: Final = 60.0


class Transport:
    """Blocking transport. Thread-safe: each thread of each process has its own connection, which is kept alive."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._local = threading.local()

    def run(self, steps: Steps[T]) -> T:
        """Perform the steps and return their result."""
        result: Reply | NoReply | None = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            result = self._perform(step)

    def close(self) -> None:
        """Close this thread's connection; those of other threads are closed when their threads end."""
        http: httpx.Client | None = self._local.__dict__.pop("http", None)
        if http is not None:
            http.close()

    def _perform(self, step: Step) -> Reply | NoReply | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            response = self._http().request(**_arguments(step))
        except httpx.RequestError as error:
            return _no_reply(error)
        return Reply(response.status_code, response.headers, response.content)

    def _http(self) -> httpx.Client:
        http: httpx.Client | None = getattr(self._local, "http", None)
        # A forked process must not use the connection of its parent.
        if http is None or self._local.pid != os.getpid():
            transport = httpx.HTTPTransport(verify=self._context, limits=_limits(), trust_env=False)
            http = httpx.Client(transport=transport, cookies=_no_cookies(), trust_env=False)
            weakref.finalize(http, transport.close).atexit = False
            self._local.http, self._local.pid = http, os.getpid()
        return http


class AsyncTransport:
    """Transport for asyncio. Each event loop has its own connections, which are kept alive."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._by_loop: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}

    async def run(self, steps: Steps[T]) -> T:
        """Perform the steps and return their result."""
        result: Reply | NoReply | None = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                value: T = end.value
                return value
            result = await self._perform(step)

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        http = self._by_loop.pop(asyncio.get_running_loop(), None)
        if http is not None:
            await http.aclose()

    async def _perform(self, step: Step) -> Reply | NoReply | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            response = await self._http().request(**_arguments(step))
        except httpx.RequestError as error:
            return _no_reply(error)
        return Reply(response.status_code, response.headers, response.content)

    def _http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        http = self._by_loop.get(loop)
        if http is None:
            for ended in [other for other in list(self._by_loop) if other.is_closed()]:
                self._by_loop.pop(ended, None)
            transport = httpx.AsyncHTTPTransport(verify=self._context, limits=_limits(), trust_env=False)
            http = httpx.AsyncClient(transport=transport, cookies=_no_cookies(), trust_env=False)
            self._by_loop[loop] = http
        return http


def _arguments(attempt: Attempt) -> dict[str, Any]:
    return {
        "method": attempt.method,
        "url": attempt.url,
        "headers": httpx.Headers(dict(attempt.headers), encoding="latin-1"),
        "content": attempt.content,
        "timeout": httpx.Timeout(attempt.reply_seconds, connect=attempt.connect_seconds, pool=None),
        "follow_redirects": False,  # the token is for this server only
    }


def _no_reply(error: httpx.RequestError) -> NoReply:
    if isinstance(error, httpx.LocalProtocolError):
        # Its text has the value, which may be a secret.
        raise ValueError("a header of the client has a value that HTTP does not allow; see headers=") from None
    return NoReply(error)


def _limits() -> httpx.Limits:
    return httpx.Limits(keepalive_expiry=_IDLE_SECONDS)


def _no_cookies() -> CookieJar:
    """Return a jar that stays empty: with a session's cookie the server would ask for a CSRF token."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
