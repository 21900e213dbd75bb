"""HTTP exchanges of the client, without I/O: requests, responses and the retry policy.

A generator yields steps, an :class:`Attempt` or a :class:`Pause`; a transport performs each step and sends its result
back. So both clients share everything but :mod:`.transport`.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from .errors import ApiError, TryLater, Unavailable, error_of

T = TypeVar("T")

#: seconds; a longer Retry-After raises the error at once
LONGEST_PAUSE: Final = 30.0
_FIRST_PAUSE: Final = 0.25
#: longest seconds between two polls for the response of an earlier attempt
_LONGEST_POLL_PAUSE: Final = 2.0


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a verb.

    Attributes:
        method: HTTP method.
        path: parts of the address below the root, unquoted.
        body: converted to JSON; None = no body.
        query: names and values; None is left out.
        extra: seconds that the response may take in addition to the timeout.
        attempts: number of attempts; None = the client's retries.
        keyed: send an Idempotency-Key with a POST.
    """

    method: str
    path: tuple[str, ...]
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    extra: float = 0.0
    attempts: int | None = None
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """Successful response of the server."""

    data: Any
    retry_after: float | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """Step: send a request once. The result is a :class:`Reply` or :class:`NoReply`."""

    method: str
    url: str
    headers: Mapping[str, str]
    content: bytes | None
    connect_seconds: float
    reply_seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait. The result is None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """HTTP response as received; ``headers`` ignores the case of names."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """Attempt without a response: no connection, a broken one, or a timeout."""

    error: Exception


Step: TypeAlias = Attempt | Pause
#: calculation that needs I/O: it yields steps, receives their results and returns a T
Steps: TypeAlias = Generator[Step, Any, T]


class Wire:
    """Rules for exchanging requests with one server.

    Args:
        url: address under which the project includes ``django_delayq.api.urls``.
        headers: headers of every request.
        timeout: seconds for connecting, and for each response.
        retries: further attempts after a broken connection, 429, 502, 503 and 504.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the address must be like https://shop.example/delayq/, got {url!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"the address may have no query, fragment or password: {parts.hostname}; give a token")
        _ = parts.port  # raises ValueError if it is no port
        self.secure = parts.scheme == "https"
        self._server = parts.netloc
        self._root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
        self._headers = dict(headers)
        self._timeout = timeout
        self._retries = retries

    def exchange(self, request: Request) -> Steps[Answer]:
        """Return the response to a request, with retries where they can help.

        Every attempt of a POST carries the same Idempotency-Key, so that it is executed once.

        Raises:
            ApiError: an error response, or none.
            ValueError: the body contains a value that JSON lacks: NaN, an infinite float, or half of a surrogate pair.
        """
        attempt = self._attempt(request)
        attempts = self._retries + 1 if request.attempts is None else request.attempts
        retries = _Retries(attempts - 1, attempt.reply_seconds)
        while True:
            reply = yield attempt
            try:
                return self._read(reply)
            except TryLater as error:
                pause = retries.next_pause(error)
                if pause is None:
                    raise
            yield Pause(pause)

    def _attempt(self, request: Request) -> Attempt:
        url = self._root + "/".join(map(_segment, request.path))
        query = {name: _text(value) for name, value in request.query.items() if value is not None}
        if query:
            url += "?" + urlencode(query)
        content = None if request.body is None else _json(request.body)
        headers = dict(self._headers)
        if content is not None:
            headers["Content-Type"] = "application/json"
        seconds = self._timeout + request.extra
        if request.method == "POST" and request.keyed:
            headers["Idempotency-Key"] = uuid.uuid4().hex
        return Attempt(request.method, url, headers, content, self._timeout, seconds)

    def _read(self, reply: Reply | NoReply) -> Answer:
        if isinstance(reply, NoReply):
            reason = str(reply.error) or type(reply.error).__name__
            raise Unavailable(0, "no_answer", f"{self._server} did not answer: {reason}") from reply.error
        retry_after = _seconds(reply.headers.get("Retry-After"))
        data = _json_of(reply)
        if reply.status == 204 or (200 <= reply.status < 300 and isinstance(data, dict)):
            return Answer(data, retry_after)
        if reply.status < 400:
            text = "this is not the answer of the API; is the address that of the include, with its https?"
            raise ApiError(reply.status, f"http_{reply.status}", text)
        raise error_of(reply.status, data, retry_after)


class _Retries:
    """Retry policy of one request.

    Args:
        limit: number of retries.
        patience: seconds for which an earlier attempt may still be running on the server.
    """

    def __init__(self, limit: int, patience: float) -> None:
        self._limit = limit
        self._patience = patience
        self._retries = 0
        self._polls = 0
        self._polls_end = 0.0

    def next_pause(self, error: TryLater) -> float | None:
        """Return the seconds before the next attempt; None to raise the error instead."""
        if error.code == "idempotency_in_progress" and self._limit:
            return self._next_poll()
        pause = _pause(error.retry_after, self._retries)
        if self._retries == self._limit or pause > LONGEST_PAUSE:
            return None
        self._retries += 1
        return pause

    def _next_poll(self) -> float | None:
        """Return the seconds before the next poll for the response of an earlier attempt; None after ``patience``.

        The response was lost, and the attempt may have stored or reserved something, so the client keeps polling. The
        server's Retry-After is the maximum time the attempt can take; usually the response is available much sooner.
        """
        now = time.monotonic()
        self._polls_end = self._polls_end or now + self._patience
        if now >= self._polls_end:
            return None
        pause = min(_FIRST_PAUSE * 2.0**self._polls, _LONGEST_POLL_PAUSE)
        self._polls += 1
        return float(min(pause, self._polls_end - now))


def _segment(part: str) -> str:
    """Return a part of the path, quoted. "." and ".." are quoted too, or they would be removed as relative steps."""
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _json_of(reply: Reply) -> Any:
    """Return the JSON of a response; None if it has none."""
    kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not reply.content or not (kind == "application/json" or kind.endswith("+json")):
        return None
    try:
        return json.loads(reply.content)
    except ValueError:
        return None


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
