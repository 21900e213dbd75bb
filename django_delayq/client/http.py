"""HTTP exchanges of the clients: addresses, retries, errors, and verbs that are defined once for both clients.

A verb is a coroutine function. :class:`verb` makes a method of it: on classes derived from :class:`Asynchronous` it
stays one; on those derived from :class:`Blocking` it is a function, which runs the coroutine to its end at once: there
requests and pauses block, so nothing suspends it. Each has the types that belong to it.
"""

from __future__ import annotations

import functools
import json
import random
import re
import ssl
import time
import uuid
from collections.abc import Callable, Coroutine, Generator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar, overload
from urllib.parse import quote, urlsplit

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
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")

#: verb that was called and has not run yet
Steps: TypeAlias = Coroutine[Any, Any, T]


class Answer(NamedTuple):
    """Successful response of the server."""

    data: Any
    retry_after: float | None


class Exchanges:
    """Exchanges of requests with one server: base of the clients, each of which sends, and pauses, in its own way.

    Args:
        url: address under which the project includes ``django_delayq.api.urls``.
        token: token of the user; "" = none.
        timeout: seconds for connecting, and for each response.
        retries: further attempts after a broken connection, 429, 502, 503 and 504.

    Raises:
        ValueError: the address or the token is invalid.
    """

    def __init__(self, url: str, *, token: str, timeout: float, retries: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the address must be like https://shop.example/delayq/, got {url!r}")
        if parts.query or parts.fragment or parts.username is not None:
            raise ValueError(f"the address may have no query, fragment or password: {parts.hostname}; give a token")
        if token and not _TOKEN.fullmatch(token):
            raise ValueError(
                "the token is invalid: it has a space, a line break or a non-ASCII character in it; strip it if it was "
                "read from a file"
            )
        _ = parts.port  # raises ValueError if it is no port
        self._secure = parts.scheme == "https"
        self._name = parts.netloc
        self._root = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"
        self._headers = {"Accept": "application/json, application/problem+json", "Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Token {token}"
        self._timeout = timeout
        self._retries = retries

    async def _send(self, **request: Any) -> httpx.Response:
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        extra: float = 0.0,
        retries: int | None = None,
        keyed: bool = True,
    ) -> Answer:
        """Return the response to a request, with retries where they can help.

        Every attempt of a POST carries the same Idempotency-Key, so that it is executed once.

        Args:
            method: HTTP method.
            path: address below the root, percent-encoded.
            body: converted to JSON; None = no body.
            query: names and values; None is left out.
            extra: seconds that the response may take in addition to the timeout.
            retries: further attempts; None = the client's.
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
        request = {
            "method": method,
            "url": self._root + path,
            "params": {name: value for name, value in (query or {}).items() if value is not None} or None,
            "headers": headers,
            "content": content,
            "timeout": httpx.Timeout(seconds, connect=self._timeout, pool=None),
            "follow_redirects": False,  # the token is for this server only
        }
        pauses = _pauses(self._retries if retries is None else retries, seconds)
        next(pauses)
        while True:
            try:
                return self._read(await self._send(**request))
            except httpx.RequestError as error:
                reason = str(error) or type(error).__name__
                trouble: TryLater = Unavailable(0, "no_answer", f"{self._name} did not answer: {reason}")
                trouble.__cause__ = error
            except TryLater as error:
                trouble = error
            if (pause := pauses.send(trouble)) is None:
                raise trouble
            await self._sleep(pause)

    def _read(self, reply: httpx.Response) -> Answer:
        status, retry_after = reply.status_code, _seconds(reply.headers.get("Retry-After"))
        data = _json_of(reply)
        if status == 204 or (200 <= status < 300 and isinstance(data, dict)):
            return Answer(data, retry_after)
        if status < 400:
            text = "this is not the answer of the API; is the address that of the include, with its https?"
            raise ApiError(status, f"http_{status}", text)
        raise error_of(status, data, retry_after)


def _pauses(retries: int, patience: float) -> Generator[float | None, TryLater, None]:
    """Yield the seconds before the next attempt for each error that is sent; None to raise it instead.

    If an earlier attempt is in progress, its response was lost, and it may have stored or reserved something, so it is
    polled for. The server's Retry-After is the maximum time that the attempt can take; usually the response is
    available much sooner.

    Args:
        retries: number of further attempts.
        patience: seconds for which an earlier attempt may still be running on the server.
    """
    done, polls, polls_end = 0, 0, 0.0
    error = yield None
    while True:
        if error.code == "idempotency_in_progress" and retries:
            now = time.monotonic()
            polls_end = polls_end or now + patience
            pause = min(_FIRST_PAUSE * 2.0**polls, _LONGEST_POLL_PAUSE, polls_end - now)
            polls += 1
            error = yield pause if pause > 0 else None
        else:
            # With jitter, so that many clients do not retry at the same time.
            usual = _FIRST_PAUSE * 2.0**done * random.uniform(0.5, 1.5)
            pause = usual if error.retry_after is None else error.retry_after * random.uniform(1.0, 1.1)
            done += 1
            error = yield None if done > retries or pause > LONGEST_PAUSE else pause


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


class Asynchronous:
    """Base of classes whose verbs are awaited."""

    __slots__ = ()

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError


class verb(Generic[P, T]):
    """Method that performs the steps of a coroutine function: its object runs them in its own way."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        self._steps = steps

    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Callable[..., Any]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        steps = self._steps

        async def awaited(client: Any, *args: Any, **kwargs: Any) -> Any:
            return await client._run(steps(client, *args, **kwargs))

        def blocking(client: Any, *args: Any, **kwargs: Any) -> Any:
            return client._run(steps(client, *args, **kwargs))

        method: Any = functools.wraps(steps)(awaited if issubclass(owner, Asynchronous) else blocking)
        return method if instance is None else method.__get__(instance)


def _json_of(reply: httpx.Response) -> Any:
    """Return the JSON of a response; None if it has none."""
    try:
        return json.loads(reply.content) if "json" in reply.headers.get("Content-Type", "").lower() else None
    except ValueError:
        return None


def _seconds(text: str | None) -> float | None:
    """Return Retry-After if it is a number; dates are not supported."""
    return float(text) if text is not None and text.isdecimal() else None
