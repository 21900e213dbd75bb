"""Authentication: no access without credentials, and every error has the same form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.api_caller import Caller


def test_a_stranger_is_refused_at_an_address_that_there_is_not(caller: Callable[..., Caller]) -> None:
    stranger = caller(anonymous=True)
    status, body = stranger.get("v1/nothing-here")
    assert (status, body["code"]) == (401, "not_authenticated")
    assert stranger.response["WWW-Authenticate"] == "Token"
    assert stranger.response["Content-Type"] == "application/problem+json"


def test_an_address_that_there_is_not_is_a_problem(api: Caller) -> None:
    assert api.get("v1/nothing-here") == (
        404,
        {
            "type": "urn:django-delayq:problem:not_found",
            "title": "Not Found",
            "status": 404,
            "code": "not_found",
            "detail": "there is nothing at this address; GET v1/openapi.json lists the addresses",
        },
    )


def test_a_wrong_token_is_refused(caller: Callable[..., Caller], delayq: Any) -> None:
    liar = caller(anonymous=True)
    liar.token = "0123456789"
    status, body = liar.get("v1/nothing-here")
    assert (status, body["code"]) == (401, "not_authenticated")
