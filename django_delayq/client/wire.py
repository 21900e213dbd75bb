"""HTTP requests and responses: one connection for each thread, kept alive, and retries."""

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

#: seconds; a longer Retry-After raises the error at once
LONGEST_PAUSE: Final = 30.0
_FIRST_PAUSE: Final = 0.25
#: longest seconds between two polls for the response of an earlier attempt
_LONGEST_LOOK: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Response of the server."""

    status: int
    data: Any
    retry_after: float | None


class Wire:
    """HTTP transport. Thread-safe.

    Args:
        url: address under which the project includes ``django_delayq.api.urls``.
        headers: headers of every request.
        timeout: seconds for connecting, and for each response.
        retries: further attempts after a broken connection, 429, 502, 503 and 504.
        context: for https; None = the system's certificates.
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], timeout: float, retries: int, context: ssl.SSLContext | None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the address must be like https://shop.example/delayq/, got {url!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"the address may have no query, fragment or password: {parts.hostname}; give a token")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._where = parts.netloc
        self._root = parts.path.rstrip("/") + "/"
        self._headers = dict(headers)
        self._timeout = timeout
        self._retries = retries
        self._context = context
        self._mine = threading.local()

    def ask(
        self,
        method: str,
        *path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        extra: float = 0.0,
        attempts: int | None = None,
        keyed: bool = True,
    ) -> Answer:
        """Send a request and return the response, with retries where they can help.

        Every attempt of a POST carries the same Idempotency-Key, so that it is executed once.

        Args:
            method: HTTP method.
            path: parts of the address below the root, unquoted.
            body: converted to JSON; None = no body.
            query: names and values; None is left out.
            extra: seconds that the response may take in addition to the timeout.
            attempts: number of retries, instead of the default.
            keyed: send an Idempotency-Key with a POST.

        Raises:
            ApiError: an error response, or none.
            ValueError: the body contains a value that JSON lacks: NaN, an infinite float, or half of a surrogate pair.
        """
        target = self._root + "/".join(quote(part, safe="") for part in path)
        asked = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        if asked:
            target += "?" + urlencode(asked)
        raw = None if body is None else _json(body)
        headers = self._headers | ({} if raw is None else {"Content-Type": "application/json"})
        if method == "POST" and keyed:
            headers["Idempotency-Key"] = uuid.uuid4().hex
            # No attempt is made later than that, so the server's Redis need not keep the response any longer.
            longest = (self._timeout + extra + LONGEST_PAUSE) * (self._retries + 1)
            headers["Idempotency-Keep"] = str(math.ceil(max(1.0, longest)))
        further = _Further(self._retries if attempts is None else attempts - 1, self._timeout + extra)
        while True:
            try:
                return self._answer(method, target, raw, headers, self._timeout + extra)
            except TryLater as error:
                pause = further.pause(error)
                if pause is None:
                    raise
            time.sleep(pause)

    def close(self) -> None:
        """Close this thread's connection; those of other threads are closed when their threads end."""
        line: _Line | None = self._mine.__dict__.pop("line", None)
        if line is not None:
            line.close()

    def _answer(
        self, method: str, target: str, raw: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> Answer:
        line = self._line()
        try:
            try:
                response = line.send(method, target, raw, headers, timeout)
            except (ConnectionError, http.client.RemoteDisconnected):
                if not line.used:
                    raise
                # The connection was idle for too long and the server closed it, which is not a failure of the server.
                line.close()
                response = line.send(method, target, raw, headers, timeout)
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            line.close()
            reason = str(error) or type(error).__name__
            raise Unavailable(0, "no_answer", f"{self._where} did not answer: {reason}") from error
        except BaseException:
            line.close()  # an unread response would be taken for the next one
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


class _Further:
    """Retry policy of one request.

    Args:
        attempts: number of retries.
        patience: seconds for which an earlier attempt may still be running on the server.
    """

    def __init__(self, attempts: int, patience: float) -> None:
        self._attempts = attempts
        self._patience = patience
        self._made = 0
        self._asked = 0
        self._end = 0.0

    def pause(self, error: TryLater) -> float | None:
        """Return the seconds before the next attempt; None to raise the error instead."""
        if error.code == "idempotency_in_progress" and self._attempts:
            return self._until_it_is_answered()
        pause = _pause(error.retry_after, self._made)
        if self._made == self._attempts or pause > LONGEST_PAUSE:
            return None
        self._made += 1
        return pause

    def _until_it_is_answered(self) -> float | None:
        """Return the seconds before the next poll for the response of an earlier attempt; None after ``patience``.

        The response was lost, and the attempt may have stored or reserved something, so the client keeps polling. The
        server's Retry-After is the maximum time the attempt can take; usually the response is available much sooner.
        """
        now = time.monotonic()
        self._end = self._end or now + self._patience
        if now >= self._end:
            return None
        pause = min(_FIRST_PAUSE * 2.0**self._asked, _LONGEST_LOOK)
        self._asked += 1
        return float(min(pause, self._end - now))


class _Line:
    """Connection of one thread of one process; closed when its thread ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.pid = os.getpid()
        self.used = False
        self._connection = connection

    def send(
        self, method: str, target: str, raw: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> http.client.HTTPResponse:
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


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _read(response: http.client.HTTPResponse, content: bytes) -> Answer:
    retry_after = _seconds(response.headers.get("Retry-After"))
    kind = response.headers.get_content_type()
    is_json = kind == "application/json" or kind.endswith("+json")
    try:
        data = json.loads(content) if content and is_json else None
    except ValueError:
        data = None
    if response.status == 204 or (200 <= response.status < 300 and isinstance(data, dict)):
        return Answer(response.status, data, retry_after)
    if response.status < 400:
        text = "this is not the answer of the API; is the address that of the include, with its https?"
        raise ApiError(response.status, f"http_{response.status}", text)
    raise error_of(response.status, data, retry_after)


def _pause(retry_after: float | None, attempt: int) -> float:
    """Return the seconds before the next attempt, with jitter, so that many clients do not retry at the same time."""
    if retry_after is not None:
        return retry_after * random.uniform(1.0, 1.1)
    return float(_FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))


def _seconds(text: str | None) -> float | None:
    """Return Retry-After if it is a number; dates are not supported."""
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
