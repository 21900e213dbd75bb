"""Warnings that name the line of the project which called this package."""

from __future__ import annotations

import sys
import warnings
from asyncio import _get_running_loop  # get_running_loop() raises without a loop, which costs ten times as much
from typing import Final

from django.db import DEFAULT_DB_ALIAS

from ..transactions import in_transaction, open_elsewhere

_PACKAGE: Final = __name__.partition(".")[0]
_has_warned = False


def warn_of_loop(verb: str) -> None:
    """Warn, once per process, if a verb is called on a running event loop, which it blocks until Redis has answered."""
    global _has_warned
    if _get_running_loop() is None or _has_warned:
        return
    _has_warned = True
    warn_caller(
        f"{verb}() was called on a running event loop, which is blocked until Redis has answered. In a coroutine use "
        f"`await a{verb}(…)`, of a Django Task `await task.aenqueue(…)`. This warning is given once",
        RuntimeWarning,
    )


def warn_of_other_transaction(verb: str, using: str | None) -> None:
    """Warn if a call that names no database is sent at once although a transaction is open on another one."""
    elsewhere = None if using is not None else open_elsewhere(None)
    if elsewhere is not None and not in_transaction(None):
        warn_caller(
            f"{verb}() is sent at once, and not with the transaction that is open on the database {elsewhere!r}: give "
            f"using_db={elsewhere!r} to wait for its commit, or using_db={DEFAULT_DB_ALIAS!r} if it shall not wait",
            RuntimeWarning,
        )


def warn_caller(text: str, category: type[Warning]) -> None:
    """Issue a warning that names the line of the project which called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
