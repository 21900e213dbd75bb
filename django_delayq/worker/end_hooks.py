"""Hooks at the end of a worker process, also at an end by an error: ``process_stop`` and ``last_words``."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .child import EXIT_FATAL
from .hooks import Hooks

logger = logging.getLogger(__name__)

#: beginning of the names of the threads without which a worker cannot work
_OWN_THREADS: Final = "delayq-"


class EndHooks:
    """Hooks at the end of one worker process."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._fatal: BaseException | None = None
        self._called = False

    @contextmanager
    def at_fatal_errors(self, end: Callable[[int], None]) -> Iterator[None]:
        """Call ``last_words`` for an error of the block, and ``end`` when an error ends one of the worker's threads."""
        previous = threading.excepthook

        def died(args: Any) -> None:
            previous(args)
            if args.thread is not None and args.thread.name.startswith(_OWN_THREADS):
                logger.critical("thread %s died, so this process ends", args.thread.name, exc_info=args.exc_value)
                self._fatal = self._fatal or args.exc_value
                end(EXIT_FATAL)

        threading.excepthook = died
        try:
            yield
        except BaseException as error:
            self._last_words(error)
            raise
        finally:
            threading.excepthook = previous

    def call(self, clean: bool, running: int) -> None:
        """Call ``process_stop`` if no job runs any more, and ``last_words`` unless all went well."""
        if self._fatal is not None or not clean:
            self._last_words(self._fatal or TimeoutError(f"{running} jobs still ran at the end of the process"))
        if clean:
            try:
                self._hooks.process_stop()
            except Exception:
                logger.exception("the hook process_stop failed")

    def _last_words(self, error: BaseException) -> None:
        if self._called:
            return
        self._called = True
        hook = self._hooks.last_words
        try:
            hook(error) if _takes_error(hook) else hook()
        except Exception:
            logger.exception("the hook last_words failed")


def _takes_error(hook: Callable[..., object]) -> bool:
    try:
        inspect.signature(hook).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        return True
    return True
