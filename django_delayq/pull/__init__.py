"""Jobs without the worker: any thread takes them from a queue, one call at a time, and says how they ended.

``django_delayq.Queue`` is the door. A :class:`Queue` serves two kinds of queues: ``python`` ones, beside the workers or
instead of them, and ``pull`` ones, whose jobs are raw bytes that no worker touches.
"""

from __future__ import annotations

from .held import HeldJob
from .queue import Queue

__all__ = ["HeldJob", "Queue"]
