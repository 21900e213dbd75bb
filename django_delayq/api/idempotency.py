"""Answers that are given again to the same Idempotency-Key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.response import Response


class Replayed(Exception):
    """The request was answered before; ``response`` is that answer."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class Kept:
    """Where the answer of a request with a key is to be kept."""

    def keep(self, response: Response) -> None:
        """Keeps it."""


def begin(request: Request) -> Kept | None:
    """What is known of the request's key; None if it has none."""
    return None
