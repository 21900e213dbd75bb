"""Fixtures for tests of the HTTP API.

caller       ``caller("view", "produce")``: a :class:`Caller` with the token of a user with just these permissions;
             ``caller()`` may nothing, ``caller(anonymous=True)`` is nobody
api          a Caller who may everything
five         jobs a … e in queue errands, and two that are due
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

_numbers = itertools.count(1)
ROOT = "/delayq/"
#: modules and folders whose tests are about rows, or about database connections
OF_TABLES = {
    "test_door",
    "test_produce",
    "test_jobs",
    "test_job_verbs",
    "test_produce_rules",
    "test_morgue",
    "test_health",
    "test_long_poll",
    "test_sent_again",
}
ALL = ("view", "produce", "consume", "operate", "admin")


class Caller:
    """A program that talks to the API in JSON: ``api.post("v1/queues", {"name": "mail"})`` gives ``(status, body)``."""

    def __init__(self, token: str = "", user: Any = None) -> None:
        self.client = Client(raise_request_exception=True)
        self.token = token
        self.user = user
        #: the last response itself, for its headers
        self.response: Any = None

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        sent = {"content_type": "application/json"}
        if body is not None:
            sent["data"] = body if isinstance(body, (bytes, str)) else json.dumps(body)
        if self.token:
            headers = {"Authorization": f"Token {self.token}", **headers}
        self.response = self.client.generic(method, ROOT + path, headers=headers, **sent)
        content = self.response.content
        return self.response.status_code, json.loads(content) if content else None

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return self("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return self("PATCH", path, body, **headers)

    def delete(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        return self("DELETE", path, body, **headers)


@pytest.fixture
def caller(delayq: Any, db: None) -> Callable[..., Caller]:
    """Makes callers with just the permissions named."""

    def make(*actions: str, anonymous: bool = False) -> Caller:
        if anonymous:
            return Caller()
        from django.contrib.auth.models import Permission, User
        from rest_framework.authtoken.models import Token

        user = User.objects.create_user(f"program{next(_numbers)}")
        names = [f"api_{action}" for action in actions]
        found = list(Permission.objects.filter(codename__in=names, content_type__app_label="django_delayq"))
        assert len(found) == len(names), f"not all of {names} are permissions"
        user.user_permissions.set(found)
        return Caller(Token.objects.create(user=user).key, user)

    return make


@pytest.fixture
def api(caller: Callable[..., Caller]) -> Caller:
    """A caller who may everything."""
    return caller(*ALL)


@pytest.fixture
def five(delayq: Any) -> Any:
    """Jobs a … e, due 100 s to 500 s from now; and two that are due."""
    from .errands import carry, greet, put

    for place, ident in enumerate("abcde"):
        put(delayq, carry, place, id=ident, delay=100 * (place + 1))
    put(delayq, greet, "x", id="now1")
    put(delayq, greet, "y", id="now2")
    return delayq


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("DELAYQ_TEST_DB", "sqlite").startswith("sqlite"):
        return
    here = Path(__file__).parent
    left_out = [item for item in items if here in item.path.parents and item.path.stem not in OF_TABLES]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
