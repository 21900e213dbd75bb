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
#: seconds between two looks if a request is answered by now
_LONGEST_LOOK: Final = 2.0


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
        """One request, with further attempts where they can help.

        Every attempt of a POST carries the same Idempotency-Key, so that it is carried out once.

        Args:
            method: of HTTP.
            path: the parts of the address below the root, each as it is.
            body: becomes JSON; None = no body.
            query: names and values; None is left out.
            extra: seconds that the answer may take on top of the timeout.
            attempts: another number of them.
            keyed: whether a POST carries a key.

        Raises:
            ApiError: the answer is an error, or there was none.
            ValueError: the body holds what JSON has not: a float that is no number, or half of a surrogate pair.
        """
        target = self._root + "/".join(quote(part, safe="") for part in path)
        asked = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        if asked:
            target += "?" + urlencode(asked)
        raw = None if body is None else _json(body)
        headers = self._headers | ({} if raw is None else {"Content-Type": "application/json"})
        if method == "POST" and keyed:
            headers["Idempotency-Key"] = uuid.uuid4().hex
            # Nobody asks again later than that, so it need not fill the server's Redis for longer.
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
        """Ends this thread's connection; those of other threads end with their threads."""
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
                # It lay idle too long, and the server hung up: that says nothing about the server.
                line.close()
                response = line.send(method, target, raw, headers, timeout)
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            line.close()
            reason = str(error) or type(error).__name__
            raise Unavailable(0, "no_answer", f"{self._where} did not answer: {reason}") from error
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


class _Further:
    """When a request is sent again, if at all.

    Args:
        attempts: how often.
        patience: seconds for which an earlier attempt may still be under way at the server.
    """

    def __init__(self, attempts: int, patience: float) -> None:
        self._attempts = attempts
        self._patience = patience
        self._made = 0
        self._asked = 0
        self._end = 0.0

    def pause(self, error: TryLater) -> float | None:
        """Seconds before the next attempt; None if there is none, and the error is to be raised."""
        if error.code == "idempotency_in_progress" and self._attempts:
            return self._until_it_is_answered()
        pause = _pause(error.retry_after, self._made)
        if self._made == self._attempts or pause > LONGEST_PAUSE:
            return None
        self._made += 1
        return pause

    def _until_it_is_answered(self) -> float | None:
        """Its answer was lost, and it may have stored or reserved something: who gives up now never hears of that.

        What the server says in Retry-After is the longest that it can take. Mostly it is there much sooner.
        """
        now = time.monotonic()
        self._end = self._end or now + self._patience
        if now >= self._end:
            return None
        pause = min(_FIRST_PAUSE * 2.0**self._asked, _LONGEST_LOOK)
        self._asked += 1
        return float(min(pause, self._end - now))


class _Line:
    """A connection of one thread of one process; closed when its thread is gone."""

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
