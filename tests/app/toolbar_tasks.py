"""Tasks of the tests of the toolbar."""

from __future__ import annotations

from typing import Any

from django_delayq import task


@task(name="toolbar.pack", queue="parcels")
def pack(number: int) -> None:
    """Never run here."""


@task(name="toolbar.sync", merge=True)
def sync(payloads: dict[str, list[Any]]) -> None:
    """Never run here."""
