"""Fixtures of the tests of both clients: a live server, a token, and a client in a prepared world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.client import (
    Client,
)

from .awaiting import AwaitingClient
from .conftest import ALL, ROOT, Caller
from .world import World, tasks


@pytest.fixture
def token(caller: Callable[..., Caller]) -> str:
    return caller(*ALL).token


@pytest.fixture(params=[Client, AwaitingClient], ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Class of the client."""
    return request.param


@pytest.fixture
def client(delayq: Any, transactional_db: None, live_server: Any, token: str, kind: Any) -> Iterator[Any]:
    """Of somebody who may everything, in a world with something in every place."""
    with tasks():
        World().refresh()
        with kind(live_server.url + ROOT, token=token, retries=0) as made:
            yield made


blocking_only = pytest.mark.parametrize("kind", [Client], ids=["sync"], indirect=True)


@pytest.fixture
def url(live_server: Any) -> str:
    return str(live_server.url) + ROOT
