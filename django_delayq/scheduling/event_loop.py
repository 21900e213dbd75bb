"""Warning for verbs that block a running event loop."""

from __future__ import annotations

import sys
import warnings
from asyncio import _get_running_loop  # get_running_loop() raises without a loop, which costs ten times as much
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0]
_has_warned = False


def warn(verb: str) -> None:
    """Warn, once per process, if a verb is called on a running event loop, which it blocks until Redis has answered."""
    global _has_warned
    if _get_running_loop() is None or _has_warned:
        return
    _has_warned = True
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"{verb}() was called on a running event loop, which is blocked until Redis has answered. In a coroutine use "
        f"`await a{verb}(…)`, of a Django Task `await task.aenqueue(…)`. This warning is given once",
        RuntimeWarning,
        stacklevel=level,
    )
