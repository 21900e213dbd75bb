"""Broker of the process, created from the settings on first use."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from django.core.signals import setting_changed

from . import signals
from .core import layouts
from .core.broker import Broker
from .core.queue import Queue
from .core.redis.connection import Connection, RedisConfig
from .core.task import registry
from .core.thread_lock import ThreadLock
from .servers import make_connection, refuse_in_tests
from .settings.conf import SETTING, Conf, check_installed, conf

#: seconds the site waits for one reply from Redis. A script takes milliseconds, but a Redis that writes its log to a
#: slow disk may stall for a second.
PATIENCE: Final = 3.0

_lock: Final = ThreadLock()
_broker: DjangoBroker | None = None
#: brokers with a shorter timeout, by their timeout in seconds
_hurried: Final[dict[float, DjangoBroker]] = {}
#: broker that tests substitute for the process's broker, which is set aside; see :func:`stand_in`
_stand_in: DjangoBroker | None = None
_kept: DjangoBroker | None = None


def broker() -> DjangoBroker:
    """Return the process's broker.

    The broker connects on first use, not here. The embedded Redis, however, is started here.

    Raises:
        Misconfigured: the settings name no usable Redis; the message says what to do.
    """
    global _broker
    current = _broker  # another thread may close it
    if current is None:
        check_installed()
        refuse_in_tests()
        with _lock:
            current = _broker
            if current is None:
                current = _broker = make_broker(conf())
    return current


def refuse_unwanted() -> None:
    """Refuse a call that waits for a commit where a test may not use Redis: after the commit it would only be logged.

    Raises:
        Misconfigured: see :func:`broker`.
    """
    if _broker is None:
        refuse_in_tests()


def swift_broker() -> DjangoBroker:
    """Return a broker of the same deployment that waits ``OUTBOX["budget"]`` for a reply, for sending after a commit.

    Raises:
        Misconfigured: see :func:`broker`.
    """
    return hurried_broker(conf().outbox.budget)


def hurried_broker(seconds: float | None = None) -> DjangoBroker:
    """Return a broker of the same deployment that waits at most ``seconds`` (:data:`PATIENCE`) for each reply.

    So an unreachable Redis does not block the threads of a server. The same ``seconds`` return the same broker.

    Raises:
        Misconfigured: see :func:`broker`.
    """
    substitute = _stand_in
    if substitute is not None:
        return substitute
    seconds = PATIENCE if seconds is None else seconds
    hurried = _hurried.get(seconds)
    if hurried is None:
        refuse_in_tests()
        with _lock:
            hurried = _hurried.get(seconds)
            if hurried is None:
                settings = conf()
                hurried = _hurried[seconds] = make_broker(settings, make_connection(settings).hurried(seconds))
    return hurried


class DjangoBroker(Broker):
    """Broker whose queues get their shards, kind and limits from settings and tasks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.registry.new_queue = lambda name: (configured_shards(name), conf().queue(name).kind)
        self.on_unreadable = signals.notify_unreadable
        self._limited: set[str] = set()

    def queue(self, name: str, *, shards: int | None = None, kind: str | None = None) -> Queue:
        """Return the queue of this name.

        For an existing queue the values in Redis win, except for limits that the settings define.
        """
        if name in self._limited and (known := self.registry.believed(name)) is not None:
            return known
        opened = super().queue(name, shards=shards, kind=kind)
        self.limit_as_configured(name)
        return opened

    def served(self, names: Sequence[str], *, every: bool = False, awaited: Container[str] = ()) -> list[Queue]:
        """Return the queues that a process serves, with their limits from the settings. See :meth:`Broker.served`."""
        queues = super().served(names, every=every, awaited=awaited)
        for queue in queues:
            if queue.name not in self._limited:
                self.limit_as_configured(queue.name)
        return queues

    def limit_as_configured(self, name: str) -> None:
        """Write the limits of a queue from the settings to Redis, if Redis holds other values.

        The settings are authoritative for the limits of the queues that they name. The limits of other queues are kept
        in Redis only. Each process does this once, and a dispatcher after each loss of data: otherwise processes with
        different settings, as during a deploy, would overwrite each other's limits for ever.
        """
        if is_configured(name):
            entry = conf().queue(name)
            self.limit(name, **{word: getattr(entry, word) for word in layouts.LIMITS})
        self._limited.add(name)

    def existing(self, name: str) -> Queue | None:
        """Return the queue if it exists in Redis, else None."""
        return self.registry.believed(name) or self.known_queue(name)


def queue(name: str) -> Queue:
    """Return a queue of the process's broker."""
    return broker().queue(name)


def existing_queue(name: str) -> Queue | None:
    """Return the queue if the deployment has it, else None. Looking up a job must not create a queue."""
    return broker().existing(name)


def is_configured(name: str) -> bool:
    """Return True if ``DELAYQ["QUEUES"]`` names the queue, so that its limits can only be changed in the settings."""
    return name in conf().queues


def configured_shards(name: str) -> int | None:
    """Return the number of shards that the settings, or else a task, define for a queue; None if neither does."""
    named = (task.options.shards for task in registry if task.options.queue == name)
    return conf().queue(name).shards or next((shards for shards in named if shards is not None), None)


def other_shards(of: Broker) -> list[str]:
    """Return messages about queues whose number of shards in Redis differs from the settings."""
    messages = []
    for live in of.queues():
        shards = configured_shards(live.name)
        if shards is not None and shards != live.shards:
            messages.append(live.text_of_other_shards(shards))
    return messages


def close_broker() -> None:
    """Close the process's brokers, if there are any. The next use creates new ones."""
    global _broker, _kept
    with _lock:
        hurried = list(_hurried.values())
        _hurried.clear()
        old, _kept = (_broker, None) if _stand_in is None else (_kept, None)
        _broker = _stand_in
    for one in (old, *hurried):
        if one is not None:
            one.tally.close()
            one.connection.close()


def _close_after_change(*, setting: str, **_: object) -> None:
    if setting in (SETTING, "CACHES"):
        close_broker()


setting_changed.connect(_close_after_change, dispatch_uid="django_delayq.connections")


def stand_in(one: DjangoBroker | None) -> DjangoBroker | None:
    """Substitute ``one`` for the process's broker, whatever the settings say. For tests. None restores the real broker.

    Returns:
        The previous substitute, or None.
    """
    global _broker, _kept, _stand_in
    with _lock:
        before = _stand_in
        if before is None:
            _kept = _broker
        _stand_in = one
        _broker, _kept = (_kept, None) if one is None else (one, _kept)
    return before


def can_confirm() -> bool:
    """Return True if the settings name something that confirms writes; also for a substitute, which ignores it."""
    redis = conf().redis
    if _stand_in is not None:
        return True
    named = isinstance(redis, Mapping) or (isinstance(redis, str) and "://" in redis)
    return named and RedisConfig.parse(redis).confirmation is not None


def is_current(one: Broker) -> bool:
    """Return True if ``one`` is a broker of this process that has not been closed."""
    return one is _broker or one in _hurried.values()


def make_broker(settings: Conf, connection: Connection | None = None) -> DjangoBroker:
    """Return a separate broker for ``settings``, over ``connection`` if given. The caller closes its connection."""
    new = DjangoBroker(
        make_connection(settings) if connection is None else connection,
        prefix=settings.prefix,
        lease_ms=int(settings.lease * 1000),
        event_cap=settings.events.cap,
    )
    if settings.metrics.scripts:
        new.observe(new.tally.waited)
    return new
