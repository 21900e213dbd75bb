"""Jobs without the worker: any thread can reserve jobs from a queue, one call at a time, and settle them.

``django_delayq.Queue`` is the public entry. A :class:`Queue` serves two kinds of queues: ``python`` ones, next to the
workers or instead of them, and ``pull`` ones, whose jobs are raw bytes that workers never reserve.
"""

from __future__ import annotations

from .held import HeldJob
from .queue import Queue

__all__ = ["HeldJob", "Queue"]
