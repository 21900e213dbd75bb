"""Database duties of a worker beside its jobs, each with the database connection that it needs.

Every duty has its own thread, and so its own database connection. It holds the connection only while it works: a duty
that rests for long closes it, so that a deployment without durable jobs holds no connections for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import ProgrammingError

from .. import hygiene
from ..mirror import Mirror
from ..outbox.durability import declared
from ..outbox.duties import Marks, Reconciler, Relay, Retention
from ..outbox.inbox import remembering
from ..settings.conf import Conf, conf
from ..worker.loop import Parts

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.queue import Queue
    from ..worker.loop import Changes, Duty

logger: Final = logging.getLogger("django_delayq.bookkeeping")

#: seconds until a duty whose tables are missing tries again
UNMIGRATED: Final = 60.0
#: seconds of rest of a duty that a change wakes
UNTIL_WOKEN: Final = 60.0
#: seconds until limits that could not be written are tried again
_AGAIN: Final = 5.0
#: seconds of rest from which closing the connection pays off
LONG_REST: Final = 5.0
#: set after missing tables were logged: once, not by each duty
_logged: Final = threading.Event()


def duties(
    settings: Conf,
    broker: DjangoBroker,
    changes: Changes,
    queues: Callable[[], Sequence[Queue]],
    *,
    dispatcher: bool = True,
) -> dict[str, Duty]:
    """Return the duties of a worker process that need the database or the settings, by name.

    Args:
        settings: the project's settings.
        broker: the broker of this process.
        changes: mailbox in which the worker notes changes.
        queues: returns the queues that the process serves.
        dispatcher: True if the process has a dispatcher.
    """
    with_outbox = [alias for alias in settings.outbox.databases if _is_usable(alias)]
    by_name: dict[str, Duty] = {"marks": WithDatabase(Marks(with_outbox, broker, changes))}
    if not dispatcher:
        return by_name
    for alias in sorted({*with_outbox, *filter(_is_usable, remembering())}):
        named: dict[str, Duty] = {"retention": Retention(settings, alias)}
        if alias in with_outbox:
            reconciler = Reconciler(alias, broker, changes)
            named |= {"relay": Relay(settings, alias, broker), "reconciler": reconciler}
        suffix = "" if alias == DEFAULT_DB_ALIAS else f"-{alias}"
        by_name |= {f"{name}{suffix}": WithDatabase(duty) for name, duty in named.items()}
    by_name["limits"] = ConfiguredLimits(broker, changes)
    if settings.is_mirrored and _is_usable(DEFAULT_DB_ALIAS):
        by_name["mirror"] = WithDatabase(Mirror(broker, changes, queues))
    return by_name


def _is_usable(alias: str) -> bool:
    """Return True if the project has such a database."""
    return alias in connections and connections[alias].vendor != "unknown"


class ConfiguredLimits:
    """Duty that writes the limits of the settings to Redis again, after it went back to an older copy of its data."""

    def __init__(self, broker: DjangoBroker, changes: Changes) -> None:
        self._broker = broker
        self._losses = changes.reader("lost")
        self._pending: set[str] = set()
        self._parts = Parts("limits", broker)

    def attach(self, ring: Callable[[], None]) -> None:
        """Let a loss of data end the rest of the loop."""
        self._losses.ring = ring

    def run(self) -> float:
        """Write the limits of the queues that lost data since the last turn."""
        self._pending |= {name for name, _ in self._losses.take("lost")}
        for name in sorted(self._pending):
            if self._parts.attempt(name, partial(self._write, name)):
                self._pending.discard(name)
        return _AGAIN if self._pending else UNTIL_WOKEN

    def _write(self, name: str) -> None:
        if self._broker.known_queue(name) is not None:
            self._broker.limit_as_configured(name)


class WithDatabase:
    """Duty on working database connections, which it closes after an error and for a long rest.

    Without the tables it rests until they may be there.
    """

    def __init__(self, duty: Duty) -> None:
        self._duty = duty

    def attach(self, ring: Callable[[], None]) -> None:
        """Pass ``ring``, which ends the rest of the loop, to the duty."""
        if hasattr(self._duty, "attach"):
            self._duty.attach(ring)

    def run(self) -> float:
        """Run one turn of the duty on working connections."""
        try:
            hygiene.before_job()
            rest = self._duty.run()
        except Exception as error:
            self.close()
            if not (isinstance(error, ProgrammingError) or "no such table" in str(error)):  # that of SQLite
                raise
            if not _logged.is_set():
                _logged.set()
                level = logging.ERROR if declared(conf()) else logging.INFO  # a project that uses neither omits them
                logger.log(level, "duties of durable jobs and mirrors are paused: %s; run manage.py migrate", error)
            return UNMIGRATED
        if rest > LONG_REST:
            self.close()
        return rest

    def close(self) -> None:
        """Close the connections of this thread."""
        hygiene.thread_end()
