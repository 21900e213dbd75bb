"""Scripts with timed calls. Without an observer the plain scripts are used, at no extra cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from ..errors import NotConfirmed
from .connection import Connection
from .scripts import Reply, Scripts

#: ``observe(verb, seconds, failed)``: the script's name, the caller's waiting time including retries, and True if the
#: call raised. It runs in the thread of the call, so it should be short and must not block.
Observer: TypeAlias = Callable[[str, float, bool], object]

logger: Final = logging.getLogger("django_delayq.core.observed")


class ObservedScripts(Scripts):
    """:class:`Scripts` that report every call to ``observe``; its exceptions are only logged."""

    def __init__(self, connection: Connection, observe: Observer, *, test_clock: bool = False) -> None:
        super().__init__(connection, test_clock=test_clock)
        self._observe = observe
        # A repeated call counts as one call, so the second attempt must not be made by this object.
        self._plain = Scripts(connection, test_clock=test_clock)

    def call(self, name: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None) -> Any:
        """See :meth:`Scripts.call`."""
        began_at = time.perf_counter()
        with self._timing(name, began_at):
            return self._plain.call(name, keys, *args, until=until)

    def call_confirmed(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        """See :meth:`Scripts.call_confirmed`."""
        with self._timing(name, time.perf_counter()):
            return self._plain.call_confirmed(name, keys, *args)

    def call_all_confirmed(
        self, name: str, calls: Sequence[tuple[tuple[bytes, ...], tuple[Any, ...]]]
    ) -> tuple[list[Any], NotConfirmed | None]:
        """See :meth:`Scripts.call_all_confirmed`. They count as one call."""
        with self._timing(name, time.perf_counter()):
            return self._plain.call_all_confirmed(name, calls)

    async def call_on_loop(self, name: str, keys: tuple[bytes, ...], *args: Any, until: float) -> Any:
        """See :meth:`Scripts.call_on_loop`."""
        with self._timing(name, time.perf_counter()):
            return await self._plain.call_on_loop(name, keys, *args, until=until)

    def begin(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Reply:
        """Send a call, see :meth:`Scripts.begin`; the measured time ends when the reply is read."""
        began_at = time.perf_counter()
        reply = self._plain.begin(name, keys, *args)

        def finish(until: float | None = None) -> Any:
            with self._timing(name, began_at):
                return reply(until)

        return finish

    @contextmanager
    def _timing(self, name: str, began_at: float) -> Iterator[None]:
        failed = True
        try:
            yield
            failed = False
        finally:
            self._report(name, time.perf_counter() - began_at, failed)

    def _report(self, name: str, seconds: float, failed: bool) -> None:
        try:
            self._observe(name, seconds, failed)
        except Exception:
            logger.exception("the observer of calls to Redis failed")
