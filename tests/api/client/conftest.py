"""Fixtures for tests of the clients.

Both clients share their verbs, so most tests use the one that blocks. A story in ``test_client.py`` uses every verb of
the other one.

token     token of a user who may everything
client    the client that blocks, in a world with something in every place
url       address of the API on the live server
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_delayq.client import Client
from tests.support.api_caller import ALL, ROOT, Caller

from ..world import World, tasks


@pytest.fixture
def token(caller: Callable[..., Caller]) -> str:
    return caller(*ALL).token


@pytest.fixture
def client(delayq: Any, transactional_db: None, url: str, token: str) -> Iterator[Client]:
    """Of somebody who may everything, in a world with something in every place."""
    with tasks():
        World().refresh()
        with Client(url, token=token, retries=0) as made:
            yield made


@pytest.fixture
def url(live_server: Any) -> str:
    return str(live_server.url) + ROOT
