"""Fixtures for tests of both clients.

token     token of a user who may everything
kind      class of the client: the one that blocks, and the one for coroutines
client    a client in a world with something in every place
url       address of the API on the live server
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.client import Client
from tests.support.api_caller import ALL, ROOT, Caller

from ..awaiting import AwaitingClient
from ..world import World, tasks


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


@pytest.fixture
def url(live_server: Any) -> str:
    return str(live_server.url) + ROOT
