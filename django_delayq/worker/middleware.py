"""Middleware: code around every attempt, in the manner of Django's middleware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .attempt import Attempt

#: calls the rest of the chain, at its end the handler; returns the handler's result, raises what it raised
Call: TypeAlias = Callable[["Attempt"], Any]
#: built once per process with the next call: ``def timing(next): def call(attempt): ...; return call``
Middleware: TypeAlias = Callable[[Call], Call]


def compose(middlewares: Sequence[Middleware], innermost: Call) -> Call:
    """Return one call composed of the middlewares and the innermost call; the first middleware is the outermost."""
    return reduce(lambda inner, middleware: middleware(inner), reversed(middlewares), innermost)
