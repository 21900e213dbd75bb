"""Calls that arrive in the order in which they are sent, without waiting for each other's replies."""

from __future__ import annotations

from typing import Any, cast

from redis import exceptions as redis_errors
from redis.exceptions import ResponseError

from .connection import Connection
from .faults import REDIS_ERRORS
from .link import Link
from .pool import BoundedPool, Pending
from .scripts import Reply, Scripts


def in_order(scripts: Scripts, connection: Connection) -> Scripts:
    """Return scripts for one sender: the calls that it begins go to each node over one connection.

    Replies have to be read in the order in which the calls were begun. If a connection was lost, its calls are repeated
    in order as their replies are read. Not for several threads.
    """
    return _OrderedScripts(scripts, connection)


class _OrderedScripts(Scripts):
    """Scripts whose ``begin`` shares connections. A lost call is repeated on a connection of its own."""

    def __init__(self, behind: Scripts, connection: Connection) -> None:
        self._nodes = _SharedConnections(connection)
        super().__init__(cast(Connection, self._nodes))
        self._behind = behind
        self.observer = behind.observer
        self._heads = behind._heads  # making them takes longer than the rest of a small call

    def begin(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Reply:
        """See :meth:`Scripts.begin`."""
        reply = super().begin(name, keys, *args)
        try:
            return self._nodes.pool(keys[0]).watched(reply)
        except REDIS_ERRORS:  # no node is known, so nothing was sent
            return reply

    def loaded(self, name: str) -> tuple[str, str]:
        """See :meth:`Scripts.loaded`."""
        return self._behind.loaded(name)

    def _repeat(self, name: str, keys: tuple[bytes, ...], args: tuple[Any, ...], until: float) -> Any:
        return self._behind._repeat(name, keys, args, until)


class _SharedConnections:
    """Part of the connection interface that :meth:`Scripts.begin` needs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shared: dict[int, _SharedLink] = {}
        self.patience = connection.patience
        self.confirmation = None  # chunks that are confirmed do not go this way

    def pool(self, key: bytes) -> _SharedLink:
        pool = self._connection.pool(key)
        shared = self._shared.get(id(pool))
        if shared is None:
            shared = self._shared[id(pool)] = _SharedLink(pool)
        return shared


class _SharedLink:
    """Connection to one node, shared by calls until all of them have their replies."""

    def __init__(self, pool: BoundedPool) -> None:
        self._pool = pool
        self._link: Link | None = None
        #: number of calls that use the connection
        self._users = 0
        self._lost = False
        #: True if the call that is being begun was sent
        self._sent = False
        #: number of calls that could not be sent, and are made when their replies are read
        self._later = 0

    def begin(self, packed: bytes, until: float) -> Pending | None:
        """See :meth:`BoundedPool.begin`."""
        # A call that begins after the connection was lost must not overtake those that were lost with it.
        if self._is_lost() or self._later:
            return None
        if self._link is None:
            self._link = self._pool.take_spare(until)
        if self._link is None:
            return None
        self._users += 1
        try:
            self._link.send_before(packed, until)
        except BaseException:
            self._lost = True
            self._release()
            raise
        self._sent = True
        return Pending(self._read, self._release)

    def watched(self, reply: Reply) -> Reply:
        """Return the reply of the call that was just begun."""
        sent, self._sent = self._sent, False
        if sent:
            return reply
        self._later += 1

        def late_reply(until: float | None = None) -> Any:
            self._later -= 1
            return reply(until)

        return late_reply

    def _is_lost(self) -> bool:
        if self._users and self._link is not None and not self._link.is_open:  # closed by another thread
            self._lost = True
        return self._lost

    def _read(self, until: float) -> Any:
        if self._link is None or self._is_lost():
            # The reply read here would be that of another call.
            raise redis_errors.ConnectionError("the connection was lost with an earlier call")
        try:
            return self._link.read_before(until)
        except ResponseError:
            raise
        except BaseException:
            self._lost = True
            raise

    def _release(self) -> None:
        self._users -= 1
        if self._users == 0 and self._link is not None:
            if self._lost:
                self._link.disconnect()
            self._pool.release(self._link)
            self._link, self._lost = None, False
