"""Pytest fixtures. Without using them a project only imports this file.

    delayq_fake         the in-memory queue, a new one for each test, with its functions as methods
    delayq_immediate    the same, with jobs that run when they are scheduled

``@pytest.mark.delayq(at=…, time_machine=True)`` passes arguments of ``fake_queue()`` to both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .fake import Fake


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "delayq(at=None, time_machine=False): start of the clock of the fixtures delayq_fake and delayq_immediate, "
        "and whether timezone.now() moves with it",
    )


@pytest.fixture
def delayq_fake(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """In-memory queue of ``django_delayq.testing`` in place of Redis, with a clock that moves only on request."""
    from .blocks import fake_queue

    with fake_queue(**_options(request)) as fake:
        yield fake


@pytest.fixture
def delayq_immediate(delayq_fake: Fake) -> Iterator[Fake]:
    """``delayq_fake`` with jobs that run when they are scheduled."""
    with delayq_fake.immediate():
        yield delayq_fake


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("delayq")
    return {} if marker is None else {**dict(zip(("at",), marker.args, strict=False)), **marker.kwargs}
