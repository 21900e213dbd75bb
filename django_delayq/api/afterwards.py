"""Background retries of Redis calls that failed at the end of a request. The thread ends when none is left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ..core.errors import DelayQError

logger: Final = logging.getLogger("django_delayq.api")

#: seconds between two retries
PACE: Final = 0.5
#: maximum number of pending calls; further ones are dropped, and what they would have freed expires in Redis
MOST: Final = 1000


class Afterwards:
    """Retry queue for calls that must succeed twice before their deadline.

    Twice, because a command sent to a stalled Redis is executed when Redis resumes, perhaps after our first successful
    call. So each call must be idempotent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: (call, deadline on the monotonic clock, number of successes)
        self._waiting: list[tuple[Callable[[], None], float, int]] = []
        self._thread: threading.Thread | None = None

    def add(self, deed: Callable[[], None], seconds: float) -> None:
        """Retry ``deed`` in the background until it has succeeded twice, for at most ``seconds``."""
        with self._lock:
            if len(self._waiting) >= MOST:
                return
            self._waiting.append((deed, time.monotonic() + seconds, 0))
            if self._thread is None or not self._thread.is_alive():  # also in a forked child, which has no threads
                self._thread = threading.Thread(target=self._live, name="delayq-afterwards", daemon=True)
                self._thread.start()

    def _live(self) -> None:
        while True:
            time.sleep(PACE)
            with self._lock:
                waiting, self._waiting = self._waiting, []
            left = [again for one in waiting if (again := self._after(*one)) is not None]
            with self._lock:
                self._waiting += left
                if not self._waiting:
                    self._thread = None
                    return

    def _after(
        self, deed: Callable[[], None], give_up: float, times: int
    ) -> tuple[Callable[[], None], float, int] | None:
        try:
            deed()
        except DelayQError:
            return None if time.monotonic() > give_up else (deed, give_up, times)
        except Exception:
            logger.exception("what was to be told to Redis after a request failed")
            return None
        return None if times else (deed, give_up, 1)


afterwards: Final = Afterwards()
