"""What a worker does in the database beside its jobs: each duty, and the connection that it needs for it.

Every duty has a thread, and so a database connection, of its own. It has the connection only while it works: one that
rests for long gives it back, so that a deployment without durable jobs holds none for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.utils import Error as DatabaseError

from .. import hygiene
from ..core.redis.faults import Backoff
from ..mirror import Mirror
from ..outbox.claims import Outbox
from ..outbox.door import declared
from ..outbox.inbox import remembering
from ..outbox.marks import Marks
from ..outbox.reconciler import Reconciler
from ..outbox.relay import Relay
from ..outbox.retention import Retention
from ..settings.conf import Conf, conf

if TYPE_CHECKING:
    from ..connections import DjangoBroker
    from ..core.queue import Queue
    from ..worker.changes import Changes
    from ..worker.loop import Duty

logger: Final = logging.getLogger("django_delayq.bookkeeping")

#: seconds until another look for tables that are missing
UNMIGRATED: Final = 60.0
#: a rest of so many seconds is worth a new connection
LONG_REST: Final = 5.0
#: tables whose absence was told: once, not by each duty
_told: Final[set[str]] = set()


def duties(
    settings: Conf, broker: DjangoBroker, changes: Changes, queues: Callable[[], Sequence[Queue]]
) -> dict[str, Duty]:
    """What a dispatcher does, by name.

    Args:
        settings: the project's.
        broker: the process's.
        changes: where the worker notes what has changed.
        queues: those that it looks after.
    """
    made: dict[str, Duty] = {}
    for alias in _databases(settings):
        outbox = Outbox(alias)
        relay = Relay(settings, outbox, broker)
        reconciler = Reconciler(settings, outbox, broker, changes.branch("lost"), relay.wake)
        named: dict[str, Duty] = {"relay": relay, "reconciler": reconciler, "retention": Retention(settings, alias)}
        suffix = "" if alias == DEFAULT_DB_ALIAS else f"-{alias}"
        made |= {f"{name}{suffix}": WithDatabase(name, duty, [alias]) for name, duty in named.items()}
    for alias in sorted(set(filter(_is_usable, remembering())) - set(_databases(settings))):
        suffix = "" if alias == DEFAULT_DB_ALIAS else f"-{alias}"
        made[f"retention{suffix}"] = WithDatabase("retention", Retention(settings, alias), [alias])
    if _is_usable(DEFAULT_DB_ALIAS):
        mirror = Mirror(settings, broker, changes.branch("failed", "morgue", "lost"), queues)
        made["mirror"] = WithDatabase("mirror", mirror, [DEFAULT_DB_ALIAS])
    return made


def always(settings: Conf, broker: DjangoBroker, changes: Changes) -> dict[str, Duty]:
    """What every worker process does, by name. Arguments as for :func:`duties`."""
    aliases = _databases(settings)
    if not aliases:
        return {}
    marks = Marks([Outbox(alias) for alias in aliases], broker, changes.branch("settled"))
    return {"marks": WithDatabase("marks", marks, aliases)}


def _databases(settings: Conf) -> list[str]:
    return [alias for alias in settings.outbox.databases if _is_usable(alias)]


def _is_usable(alias: str) -> bool:
    """Whether the project has such a database at all."""
    return alias in connections and connections[alias].vendor != "unknown"


class WithDatabase:
    """A duty whose trouble with the database is its own: Redis is not blamed for it, and it never ends for good.

    Args:
        name: for the log.
        duty: what is to be done.
        aliases: of the databases that it works in.
    """

    #: its good turns say nothing about Redis (see Loop)
    silent = True

    def __init__(self, name: str, duty: Duty, aliases: Iterable[str]) -> None:
        self._name = name
        self._duty = duty
        self._aliases = tuple(aliases)
        self._pause = Backoff()

    def attach(self, ring: Callable[[], None]) -> None:
        """``ring`` ends the rest of the loop."""
        attach = getattr(self._duty, "attach", None)
        if attach is not None:
            attach(ring)

    def run(self) -> float:
        """One turn of the duty on sound connections."""
        hygiene.house_thread()
        try:
            hygiene.before_job()
            rest = self._duty.run()
        except DatabaseError as error:
            rest = self._rest_after(error)
        except Exception:
            self.close()
            raise
        else:
            if self._pause.failures:
                logger.warning("%s works with the database again", self._name)
                self._pause.reset()
        if rest > LONG_REST:
            self.close()
        return rest

    def close(self) -> None:
        """Gives the thread's connections back."""
        hygiene.thread_end()

    def _rest_after(self, error: DatabaseError) -> float:
        missing = self._missing_tables()
        self.close()
        if missing:
            if missing not in _told:
                _told.add(missing)
                # Who uses none of it may leave the tables out.
                logger.log(
                    logging.WARNING if declared(conf()) else logging.INFO,
                    "durable jobs, mirrors and their like rest: there is no table %s; run manage.py migrate",
                    missing,
                )
            return UNMIGRATED
        if not self._pause.failures:
            logger.error(
                "%s cannot work with the database, and goes on trying: %s: %s", self._name, type(error).__name__, error
            )
        return self._pause.next()

    def _missing_tables(self) -> str:
        """The name of a table of ours that is not there; "" if all are, or nobody can tell."""
        try:
            for alias in self._aliases:
                connection = connections[alias]
                there = set(connection.introspection.table_names())
                for model in apps.get_app_config("django_delayq").get_models():
                    if model._meta.managed and model._meta.db_table not in there:
                        return f"{model._meta.db_table} ({alias})"
        except DatabaseError:
            pass
        return ""
