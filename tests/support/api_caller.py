"""Programs that call the HTTP API."""

from __future__ import annotations

import itertools
import json
from typing import Any

from django.test import Client

_numbers = itertools.count(1)
ROOT = "/delayq/"
#: permissions of the API
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
        sent: dict[str, Any] = {"content_type": "application/json"}
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


def make_caller(*actions: str, anonymous: bool = False) -> Caller:
    """Return a caller with just the permissions named."""
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
