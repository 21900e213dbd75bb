"""Pytest fixtures. Without using them a project only imports this file.

    delayq_fake         the in-memory queue, a new one for each test
    delayq_immediate    the same, with jobs that run when they are scheduled

The ini option ``delayq`` decides for tests that use neither: ``fake`` (default): they have an in-memory queue, too;
``real``: the Redis of the settings; ``off``: none, its use is an error.

``@pytest.mark.delayq(at=…)`` freezes the clock of both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from .kit import Fake


MODES: Final = ("fake", "real", "off")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini option."""
    parser.addini("delayq", "queue of tests that ask for none: fake (default), real or off", default="fake")


def pytest_configure(config: pytest.Config) -> None:
    """Check the ini option and register the marker."""
    if config.getini("delayq") not in MODES:
        raise pytest.UsageError(
            f"the ini option delayq is {config.getini('delayq')!r}; write one of {', '.join(MODES)}, or leave it out"
        )
    config.addinivalue_line(
        "markers", "delayq(at=None): time at which the clock of the fixtures delayq_fake and delayq_immediate is frozen"
    )


@pytest.fixture(scope="session", autouse=True)
def _delayq_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the set-up of classes and modules what the ini option says."""
    mode = request.config.getini("delayq")
    if not _is_used():
        yield
    elif mode == "fake":
        with _fake():
            yield
    else:
        from ..connections import permit_in_tests

        permit_in_tests(mode == "real")
        yield
        permit_in_tests(False)


@pytest.fixture(autouse=True)
def _delayq_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give each test an in-memory queue of its own, unless the ini option says otherwise."""
    with _fake() if request.config.getini("delayq") == "fake" and _is_used() else nullcontext():
        yield


def _is_used() -> bool:
    """Return True if the project under test uses this package."""
    if "django.apps" not in sys.modules:
        return False
    from django.apps import apps

    return apps.ready and apps.is_installed("django_delayq")


def _fake() -> AbstractContextManager[object]:
    """Return a block with an in-memory queue; without fakeredis one that does nothing, so the queue is refused."""
    if find_spec("fakeredis") is None or find_spec("lupa") is None:
        return nullcontext()
    from .kit import Fake

    return Fake()


@pytest.fixture
def delayq_fake(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """In-memory queue of ``django_delayq.testing`` in place of Redis, with a clock that moves only on request."""
    from .kit import Fake

    marker = request.node.get_closest_marker("delayq")
    with Fake() if marker is None else Fake(*marker.args, **marker.kwargs) as fake:
        yield fake


@pytest.fixture
def delayq_immediate(delayq_fake: Fake) -> Iterator[Fake]:
    """``delayq_fake`` with jobs that run when they are scheduled."""
    with delayq_fake.immediate():
        yield delayq_fake
