"""The fixtures of the plugin, as a project gets them, whether or not the entry point is installed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.testing.plugin import delayq_fake, delayq_immediate, pytest_configure

from . import works

__all__ = ["delayq_fake", "delayq_immediate", "pytest_configure"]


@pytest.fixture
def done() -> Iterator[list[Any]]:
    """List of what the tasks of ``works`` did in this test."""
    works.done.clear()
    yield works.done
    works.done.clear()
