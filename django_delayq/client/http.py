"""HTTP exchanges of the clients: addresses, retries, errors, and verbs that are defined once for both clients.

A verb is a coroutine function. :class:`verb` makes a method of it: on classes derived from :class:`Asynchronous` it
stays one; on those derived from :class:`Blocking` it is a function, which runs the coroutine to its end at once: there
requests and pauses block, so nothing suspends it. Each has the types that belong to it.
"""

from __future__ import annotations

import functools
import json
import random
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar, overload
from urllib.parse import quote, urlencode, urlsplit

try:
    import httpx as httpx  # exported
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise ModuleNotFoundError(
        'the client of the HTTP API needs httpx: pip install "django-delayq[client]"', name="httpx"
    ) from error

from .errors import ApiError, TryLater, Unavailable, error_of

P = ParamSpec("P")
T = TypeVar("T")

#: seconds; a longer Retry-After raises the error at once
LONGEST_PAUSE: Final = 30.0
_FIRST_PAUSE: Final = 0.25
#: longest seconds between two polls for the response of an earlier attempt
_LONGEST_POLL_PAUSE: Final = 2.0
#: seconds for which an idle connection is kept
_IDLE_SECONDS: Final = 60.0

#: verb that was called and has not run yet
Steps: TypeAlias = Coroutine[Any, Any, T]


class Sender:
    """Base of the clients, each of which sends a request once, and waits, in its own way."""

    async def _send(self, **request: Any) -> httpx.Response:
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Answer(NamedTuple):
    """Successful response of the server."""

    data: Any
    retry_after: float | None


class Server:
    """Exchanges of requests with one server.

    Args:
        url: address under which the project includes ``django_delayq.api.urls``.
        token: token of the user; "" = none.
        timeout: seconds for connecting, and for each response.
        retries: further attempts after a broken connection, 429, 502, 503 and 504.

    Raises:
        ValueError: the address is invalid.
    """

    def __init__(self, url: str, *, token: str, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the address must be like https://shop.example/delayq/, got {url!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"the address may have no query, fragment or password: {parts.hostname}; give a token")
        _ = parts.port  # raises ValueError if it is no port
        self.secure = parts.scheme == "https"
        self._name = parts.netloc
        self._root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
        self._headers = {"Accept": "application/json, application/problem+json", "Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Token {token}"
        self._timeout = timeout
        self._retries = retries

    async def exchange(
        self,
        sender: Sender,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        extra: float = 0.0,
        attempts: int | None = None,
        keyed: bool = True,
    ) -> Answer:
        """Return the response to a request, with retries where they can help.

        Every attempt of a POST carries the same Idempotency-Key, so that it is executed once.

        Args:
            sender: the client.
            method: HTTP method.
            path: address below the root, percent-encoded.
            body: converted to JSON; None = no body.
            query: names and values; None is left out.
            extra: seconds that the response may take in addition to the timeout.
            attempts: number of attempts; None = the client's retries.
            keyed: send an Idempotency-Key with a POST.

        Raises:
            ApiError: an error response, or none.
            ValueError: the body contains a value that JSON lacks: NaN, an infinite float, or half of a surrogate pair.
        """
        headers, seconds = dict(self._headers), self._timeout + extra
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if method == "POST" and keyed:
            headers["Idempotency-Key"] = uuid.uuid4().hex
        sent = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        request = {
            "method": method,
            "url": f"{self._root}{path}?{urlencode(sent)}" if sent else self._root + path,
            "headers": headers,
            "content": content,
            "timeout": httpx.Timeout(seconds, connect=self._timeout, pool=None),
            "follow_redirects": False,  # the token is for this server only
        }
        retries = _Retries(self._retries if attempts is None else attempts - 1, seconds)
        while True:
            try:
                return self._read(await self._reply(sender, request))
            except TryLater as error:
                pause = retries.next_pause(error)
                if pause is None:
                    raise
            await sender._sleep(pause)

    async def _reply(self, sender: Sender, request: Mapping[str, Any]) -> httpx.Response:
        try:
            return await sender._send(**request)
        except httpx.RequestError as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(0, "no_answer", f"{self._name} did not answer: {reason}") from error

    def _read(self, reply: httpx.Response) -> Answer:
        status, retry_after = reply.status_code, _seconds(reply.headers.get("Retry-After"))
        data = _json_of(reply)
        if status == 204 or (200 <= status < 300 and isinstance(data, dict)):
            return Answer(data, retry_after)
        if status < 400:
            text = "this is not the answer of the API; is the address that of the include, with its https?"
            raise ApiError(status, f"http_{status}", text)
        raise error_of(status, data, retry_after)


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


def path_of(*parts: str) -> str:
    """Return a path below the root. Dots alone are quoted too, or they would be removed as relative steps."""
    return "/".join(part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="") for part in parts)


def http_options(secure: bool) -> dict[str, Any]:
    """Return the arguments of an httpx client that ignores the environment, and sends and stores no cookies.

    With a session's cookie the server would ask for a CSRF token. Certificates are the system's; loading them takes
    time, and plain HTTP needs none.
    """
    return {
        "verify": ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        "limits": httpx.Limits(keepalive_expiry=_IDLE_SECONDS),
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        "trust_env": False,
    }


class Blocking:
    """Base of classes whose verbs block until they are performed."""

    __slots__ = ()

    def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    @staticmethod
    def _method(steps: Callable[..., Steps[T]]) -> Callable[..., T]:
        @functools.wraps(steps)
        def method(self: Blocking, *args: Any, **kwargs: Any) -> T:
            return self._run(steps(self, *args, **kwargs))

        return method


class Asynchronous:
    """Base of classes whose verbs are awaited."""

    __slots__ = ()

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    @staticmethod
    def _method(steps: Callable[..., Steps[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        @functools.wraps(steps)
        async def method(self: Asynchronous, *args: Any, **kwargs: Any) -> T:
            return await self._run(steps(self, *args, **kwargs))

        return method


class verb(Generic[P, T]):
    """Method that performs the steps of a generator and returns its result."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._steps = steps

    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        function = owner._method(self._steps)
        return function if instance is None else function.__get__(instance)


def _json_of(reply: httpx.Response) -> Any:
    """Return the JSON of a response; None if it has none."""
    kind = str(reply.headers.get("Content-Type", "")).partition(";")[0].strip().lower()
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
