"""Calls that arrive in the order in which they are sent, although none of them waits for the answer to another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

from redis import exceptions as redis_errors

from .connection import Connection, Lines
from .faults import REDIS_ERRORS
from .observed import ObservedScripts
from .scripts import Scripts


def in_order(scripts: Scripts, connection: Connection) -> Scripts:
    """Scripts of one sender: what it begins goes to a node over one line.

    The answers have to be read in the order in which the calls were begun. A call that has to be made again, because
    its line was lost, is made when its answer is read, and those behind it after it. Not for several threads.
    """
    if isinstance(scripts, ObservedScripts):
        watched = copy.copy(scripts)
        watched._plain = _OrderedScripts(scripts._plain, connection)
        return watched
    return _OrderedScripts(scripts, connection)


class _OrderedScripts(Scripts):
    """``begin`` takes the shared lines; ``call``, by which a lost call is made again, one of its own."""

    def __init__(self, behind: Scripts, connection: Connection) -> None:
        self._nodes = _OneLineEach(connection)
        super().__init__(cast(Connection, self._nodes))
        self._behind = behind
        self._heads = behind._heads  # which take longer to make than the rest of a small call

    def begin(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Callable[[], Any]:
        """See :meth:`Scripts.begin`."""
        reply = super().begin(name, keys, *args)
        try:
            return self._nodes.lines(keys[0]).watched(reply)
        except REDIS_ERRORS:  # no node is known, so nothing was sent
            return reply

    def call(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Any:
        """See :meth:`Scripts.call`."""
        return self._behind.call(name, keys, *args)

    def loaded(self, name: str) -> tuple[str, str]:
        """See :meth:`Scripts.loaded`."""
        return self._behind.loaded(name)


class _OneLineEach:
    """As much of a connection as :meth:`Scripts.begin` asks for."""

    def __init__(self, connection: Connection) -> None:
        self._lines: Callable[[bytes], Lines] = connection.lines
        self._shared: dict[int, _SharedLine] = {}
        self.patience = connection.patience

    def lines(self, key: bytes) -> _SharedLine:
        lines = self._lines(key)
        shared = self._shared.get(id(lines))
        if shared is None:
            shared = self._shared[id(lines)] = _SharedLine(lines)
        return shared


class _SharedLine:
    """One line of a node, lent to every call until all of them have their answers."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._line: Any = None
        #: calls on the line
        self._users = 0
        self._lost = False
        #: whether the call that is being begun went out
        self._sent = False
        #: calls that could not be sent, and are made when their answers are asked for
        self._later = 0

    def watched(self, reply: Callable[[], Any]) -> Callable[[], Any]:
        """The reply of the call that was begun just now."""
        sent, self._sent = self._sent, False
        if sent:
            return reply
        self._later += 1

        def made() -> Any:
            self._later -= 1
            return reply()

        return made

    # -- as Lines

    def take(self) -> _SharedLine:
        # Who comes when it is lost must not go before those whose calls were lost with it: it is made after them.
        self._check()
        if self._later:
            raise redis_errors.ConnectionError("calls wait to be made again before this one")
        if self._line is None:
            self._line = self._lines.take()
        self._users += 1
        return self

    def put_back(self, line: object, *, clean: bool) -> None:
        self._users -= 1
        if not clean:
            self._lost = True  # for the others too: what they read would be the answer to another call
        if self._users == 0:
            self._lines.put_back(self._line, clean=not self._lost)
            self._line, self._lost = None, False

    # -- as a line

    def connect(self) -> None:
        self._line.connect()

    def send_packed_command(self, command: Sequence[bytes]) -> None:
        self._line.send_packed_command(command)
        self._sent = True

    def can_read(self, seconds: float) -> bool:
        self._check()
        return bool(self._line.can_read(seconds))

    def read_response(self) -> Any:
        self._check()
        return self._line.read_response()

    def _check(self) -> None:
        if self._lost:
            raise redis_errors.ConnectionError("the line was lost with an earlier call")
