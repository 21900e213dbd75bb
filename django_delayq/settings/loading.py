"""Import of objects that the settings name by dotted paths."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from ..core.errors import Misconfigured


def load(where: str, path: str) -> Any:
    """Return the object at ``path``.

    Raises:
        Misconfigured: it cannot be imported; the message begins with ``where``.
    """
    try:
        return import_string(path)
    except ImportError as error:
        raise Misconfigured(f"{where}: {path} cannot be imported: {error}") from error


def load_function(where: str, path: str) -> Callable[..., Any]:
    """Return the function or class at ``path``.

    Raises:
        Misconfigured: there is none.
    """
    loaded = load(where, path)
    if not callable(loaded):
        raise Misconfigured(f"{where}: {path} is not callable")
    function: Callable[..., Any] = loaded
    return function


def load_plain_function(where: str, path: str) -> Callable[..., Any]:
    """Return the plain function at ``path``, whose calls return their results directly.

    Raises:
        Misconfigured: there is none, or it is an ``async def`` or a generator.
    """
    function = load_function(where, path)
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    for code in (called, type(called).__call__):
        if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
            raise Misconfigured(
                f"{where}: {path} is async or a generator, so its result would come too late; make it a plain function"
            )
    return function
