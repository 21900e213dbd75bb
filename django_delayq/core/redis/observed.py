"""Scripts whose calls are timed. Whoever does not ask for it pays nothing: the plain ones stay as they are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from .connection import Connection
from .scripts import Reply, Scripts

#: ``observe(verb, seconds, failed)``: the script's name, how long the caller waited, re-sends and retries included, and
#: whether an exception came of it. Called in the thread of the call, so it should be short and wait for nothing.
Observer: TypeAlias = Callable[[str, float, bool], object]

logger: Final = logging.getLogger("django_delayq.core.observed")


class ObservedScripts(Scripts):
    """:class:`Scripts` that tell ``observe`` of every call; what it raises is logged and goes no further."""

    def __init__(self, connection: Connection, observe: Observer, *, test_clock: bool = False) -> None:
        super().__init__(connection, test_clock=test_clock)
        self._observe = observe
        # A call that has to be made again is one call, so the second attempt is not this object's.
        self._plain = Scripts(connection, test_clock=test_clock)

    def call(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        """See :meth:`Scripts.call`."""
        began_at = time.perf_counter()
        return self._timed(name, lambda: self._plain.call(name, keys, *args), began_at)

    def begin(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Reply:
        """See :meth:`Scripts.begin`; the time ends when the reply was read, which may be later than it came."""
        began_at = time.perf_counter()
        reply = self._plain.begin(name, keys, *args)
        return lambda until=None: self._timed(name, lambda: reply(until), began_at)

    def _timed(self, name: str, act: Callable[[], Any], began_at: float) -> Any:
        failed = True
        try:
            reply = act()
            failed = False
            return reply
        finally:
            self._tell(name, time.perf_counter() - began_at, failed)

    def _tell(self, name: str, seconds: float, failed: bool) -> None:
        try:
            self._observe(name, seconds, failed)
        except Exception:
            logger.exception("the observer of calls to Redis failed")
