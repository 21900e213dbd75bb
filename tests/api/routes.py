"""Every route of the HTTP API, walked from its URL configuration, and a picture of all that is in Redis."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver

from django_delayq.api import urls as api_urls
from django_delayq.core.broker import Broker
from tests.support.api_caller import ROOT, Caller

from .errands import keys_of

#: what stands in an address in the place of its arguments
SAMPLES = {"queue": "mail", "worker": "host.example:4711", "id": "7", "task": "T"}
#: the only ones without credentials
OPEN = {"healthz", "readyz"}
#: catch-alls: who may come in is told that there is nothing
NOTHING = {"nothing"}
#: views that are functions, so that they cannot say themselves what they ask for
FUNCTIONS = {"metrics": {"GET": "view"}}
#: what a route has to be asked before it looks at who may
BODIES = {
    "reserve_from_many": {"queues": ["mail"]},
    "watch_queue": {"queue": "mail"},
    "ignore_queue": {"queue": "mail"},
}


@dataclass(frozen=True)
class Route:
    """One address, named by its only handler, that of POST or of GET; ``actions``: HTTP method → what it requires."""

    name: str
    path: str
    actions: Mapping[str, str]
    has_queue: bool = False


def all_routes() -> list[Route]:
    """Those of the API, without the open ones and the catch-all."""
    return [route for route in _walk(api_urls.urlpatterns, "") if route.name not in OPEN | NOTHING]


def calls() -> list[tuple[str, Route, str]]:
    """(method, route, action) of everything that there is to call."""
    return [(method, route, action) for route in all_routes() for method, action in route.actions.items()]


def ask(who: Caller, method: str, route: Route) -> int:
    """The status of a request that says as little as it can; ``who.response`` is the answer, whatever its type."""
    headers = {"Authorization": f"Token {who.token}"} if who.token else {}
    body = b"" if method in ("GET", "HEAD") else json.dumps(BODIES.get(route.name, {})).encode()
    who.response = who.client.generic(method, ROOT + route.path, body, "application/json", headers=headers)
    return int(who.response.status_code)


def _walk(patterns: list[Any], stem: str) -> Iterator[Route]:
    for entry in patterns:
        path = stem + _filled(str(entry.pattern))
        if isinstance(entry, URLResolver):
            yield from _walk(entry.url_patterns, path)
        else:
            yield _route(entry, path)


def _route(entry: URLPattern, path: str) -> Route:
    handlers = getattr(entry.callback, "actions", None) or {}
    name = str(entry.name or handlers.get("post") or handlers.get("get"))
    actions = {
        method.upper(): getattr(entry.callback.cls, handler).operation.permission
        for method, handler in handlers.items()
        if method != "head"
    } or dict(FUNCTIONS.get(name, {}))
    assert actions or name in OPEN | NOTHING, f"{path}: nobody knows whom it is open to"
    return Route(name, path, actions, "<queue>" in _bare(str(entry.pattern)))


def _bare(pattern: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", r"<\1>", pattern)


def _filled(pattern: str) -> str:
    bare = _bare(re.sub(r"\(\?P(<\w+>)[^()]*\)", r"\1", pattern)).removeprefix("^").removesuffix("$")
    return re.sub(r"<(\w+)>", lambda match: SAMPLES.get(match[1], "x"), bare)


def picture(broker: Broker) -> dict[bytes, bytes]:
    """All that is in Redis under this prefix, byte for byte."""
    client = broker.client
    return {key: client.dump(key) for key in keys_of(broker)}
