"""Scripts with timed calls. Without an observer the plain scripts are used, at no extra cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from .connection import Connection
from .scripts import Call, Scripts, SentCalls

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

    def call(
        self, name: str, keys: tuple[bytes, ...], *args: Any, until: float | None = None, confirm: bool = False
    ) -> Any:
        """See :meth:`Scripts.call`."""
        with self._timing(name, time.perf_counter()):
            return self._plain.call(name, keys, *args, until=until, confirm=confirm)

    def call_many(self, calls: Sequence[Call], *, partial: bool = False) -> list[Any]:
        """See :meth:`Scripts.call_many`. They count as one call."""
        with self._timing(calls[0].name, time.perf_counter()):
            return self._plain.call_many(calls, partial=partial)

    def send_many(self, calls: Sequence[Call]) -> SentCalls:
        """See :meth:`Scripts.send_many`. They count as one call, which ends when the replies are read."""
        sent = self._plain.send_many(calls)
        sent.timing = self._timing(calls[0].name, time.perf_counter())
        return sent

    async def call_async(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        """See :meth:`Scripts.call_async`."""
        with self._timing(name, time.perf_counter()):
            return await self._plain.call_async(name, keys, *args)

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
