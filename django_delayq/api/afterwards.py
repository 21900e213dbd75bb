"""What could not be said to Redis at the end of a request is said when it answers again, by a thread that then ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ..core.errors import DelayQError

logger: Final = logging.getLogger("django_delayq.api")

#: seconds between two tries
PACE: Final = 0.5
#: deeds that wait at most; what is beyond them is left to the end of its time in Redis
MOST: Final = 1000


class Afterwards:
    """Deeds that are tried until they were done twice, or their time is over.

    Twice, because a command that was sent to a Redis that stood still is carried out when it goes on, perhaps after
    the first of ours. So a deed must be one that may be repeated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: deed, when it is given up (monotonic), how often it was done
        self._waiting: list[tuple[Callable[[], None], float, int]] = []
        self._thread: threading.Thread | None = None

    def add(self, deed: Callable[[], None], seconds: float) -> None:
        """Try it until it was done, for so many seconds."""
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
