"""Requests and answers: one connection for each thread, kept alive, and a few attempts."""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import ssl
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from .errors import ApiError, TryLater, Unavailable, error_of

#: seconds; who is asked to wait longer is told so instead
LONGEST_PAUSE: Final = 30.0
_FIRST_PAUSE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    data: Any
    retry_after: float | None


class Wire:
    """Any thread may use it.

    Args:
        url: where the project includes ``django_delayq.api.urls``.
        headers: of every request.
        timeout: seconds for connecting, and for each answer.
        retries: further attempts after a broken connection, 429, 502, 503 and 504.
        context: for https; None = the system's certificates.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout: float, retries: int,
                 context: ssl.SSLContext | None) -> None:  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the address must be like https://shop.example/delayq/, got {url!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"the address may have no query, fragment or password: {parts.hostname}; give a token")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._root = parts.path.rstrip("/") + "/"
        self._headers = dict(headers)
        self._timeout = timeout
        self._retries = retries
        self._context = context
        self._mine = threading.local()

    def ask(self, method: str, *path: str, body: Any = None, query: Mapping[str, Any] | None = None,
            extra: float = 0.0, attempts: int | None = None) -> Answer:  # fmt: skip
        """One request, with further attempts where they can help.

        Every attempt of a POST carries the same Idempotency-Key, so that it is carried out once.

        Args:
            method: of HTTP.
            path: the parts of the address below the root, each as it is.
            body: becomes JSON; None = no body.
            query: names and values; None is left out.
            extra: seconds that the answer may take on top of the timeout.
            attempts: another number of them.

        Raises:
            ApiError: the answer is an error, or there was none.
        """
        target = self._root + "/".join(quote(part, safe="") for part in path)
        asked = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        if asked:
            target += "?" + urlencode(asked)
        raw = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        headers = self._headers | ({} if raw is None else {"Content-Type": "application/json"})
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex
            # Nobody asks again later than that, so it need not fill the server's Redis for longer.
            longest = (self._timeout + extra + LONGEST_PAUSE) * (self._retries + 1)
            headers["Idempotency-Keep"] = str(math.ceil(max(1.0, longest)))
        last = self._retries if attempts is None else attempts - 1
        for attempt in range(last + 1):
            try:
                return self._answer(method, target, raw, headers, self._timeout + extra)
            except TryLater as error:
                pause = _pause(error.retry_after, attempt)
                if attempt == last or pause > LONGEST_PAUSE:
                    raise
            time.sleep(pause)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Ends this thread's connection; those of other threads end with their threads."""
        line: _Line | None = self._mine.__dict__.pop("line", None)
        if line is not None:
            line.close()

    def _answer(self, method: str, target: str, raw: bytes | None, headers: Mapping[str, str],
                timeout: float) -> Answer:  # fmt: skip
        line = self._line()
        try:
            try:
                response = line.send(method, target, raw, headers, timeout)
            except (ConnectionError, http.client.RemoteDisconnected):
                if not line.used:
                    raise
                # It lay idle too long, and the server hung up: that says nothing about the server.
                line.close()
                response = line.send(method, target, raw, headers, timeout)
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            line.close()
            reason = str(error) or type(error).__name__
            raise Unavailable(0, "no_answer", f"{self._host} did not answer: {reason}") from error
        except BaseException:
            line.close()  # an answer that nobody read would be taken for the next one
            raise
        line.used = True
        return _read(response, content)

    def _line(self) -> _Line:
        line: _Line | None = getattr(self._mine, "line", None)
        if line is None or line.pid != os.getpid():
            line = self._mine.line = _Line(self._connection())
        return line

    def _connection(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)


class _Line:
    """A connection of one thread of one process; closed when its thread is gone."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.pid = os.getpid()
        self.used = False
        self._connection = connection

    def send(self, method: str, target: str, raw: bytes | None, headers: Mapping[str, str],
             timeout: float) -> http.client.HTTPResponse:  # fmt: skip
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(timeout)
        connection.request(method, target, raw, dict(headers))
        return connection.getresponse()

    def close(self) -> None:
        self.used = False
        self._connection.close()

    def __del__(self) -> None:
        self._connection.close()


def _read(response: http.client.HTTPResponse, content: bytes) -> Answer:
    retry_after = _seconds(response.headers.get("Retry-After"))
    kind = response.headers.get_content_type()
    is_json = kind == "application/json" or kind.endswith("+json")
    try:
        data = json.loads(content) if content and is_json else None
    except ValueError:
        data = None
    if 200 <= response.status < 300 and (is_json or not content):
        return Answer(response.status, data, retry_after)
    if response.status < 400:
        text = "this is not the answer of the API; is the address that of the include, with its https?"
        raise ApiError(response.status, f"http_{response.status}", text)
    raise error_of(response.status, data, retry_after)


def _pause(retry_after: float | None, attempt: int) -> float:
    """Seconds before the next attempt; spread, so that many clients do not come back at once."""
    if retry_after is not None:
        return retry_after * random.uniform(1.0, 1.1)
    return float(_FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))


def _seconds(text: str | None) -> float | None:
    """Retry-After, where it is a number; dates are for browsers."""
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
