"""Authentication: no access without credentials, and every error has the same form. What the API needs is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize("missing", ["rest_framework", "drf_spectacular"])
def test_a_missing_package_is_named_with_its_extra(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import django_delayq.api.urls"
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60, check=False
    )
    assert answer.returncode == 1
    assert "pip install 'django-delayq[api]'" in answer.stderr.splitlines()[-1]
