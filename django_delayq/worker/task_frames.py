"""Frames of a failed attempt: those of the task and of middlewares, without the worker's own above them."""

from __future__ import annotations

import sys
from functools import reduce
from types import FrameType, TracebackType
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0]
#: where the slot waits for a coroutine
_FUTURE: Final = "concurrent.futures._base"
#: modules whose frames are above the worker's own in a thread
_THREADS: Final = frozenset(("threading", "asyncio"))


def task_part(trace: TracebackType | None, caller: str) -> TracebackType | None:
    """Return a traceback without the worker's frames above the first frame of the task.

    Args:
        trace: the traceback of an exception that the worker caught.
        caller: name of the worker's function that calls the task.

    Returns:
        All of it, if the exception was raised in the worker's code.
    """
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    called_at = max((place for place, link in enumerate(links) if _is_call(link.tb_frame, caller)), default=-1)
    begins_at = next((place for place in range(called_at + 1, len(links)) if not _is_own(links[place].tb_frame)), None)
    if begins_at is None:
        return links[0] if links else None
    middlewares = [link for link in links[:begins_at] if not _is_own(link.tb_frame)]
    return reduce(_with_caller, reversed(middlewares), links[begins_at])


def frames_of_thread(ident: int) -> list[FrameType]:
    """Return what a thread runs now, the innermost frame last, without the worker's frames above the task's."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(ident)
    while frame is not None:
        frames.insert(0, frame)
        frame = frame.f_back
    begins_at = next((place for place, frame in enumerate(frames) if not _is_above_task(frame)), 0)
    return frames[begins_at:]


def _is_above_task(frame: FrameType) -> bool:
    return _is_own(frame) or str(frame.f_globals.get("__name__", "")).partition(".")[0] in _THREADS


def _with_caller(trace: TracebackType, caller: TracebackType) -> TracebackType:
    return TracebackType(trace, caller.tb_frame, caller.tb_lasti, caller.tb_lineno)


def _is_call(frame: FrameType, caller: str) -> bool:
    return frame.f_code.co_name == caller and _is_own(frame)


def _is_own(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module == _FUTURE or module.partition(".")[0] == _PACKAGE
