"""Round trips to Redis of the thread of a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from redis.connection import AbstractConnection


@contextmanager
def round_trips() -> Iterator[list[int]]:
    """Collect an element for each time that this thread sends something to Redis."""
    sent: list[int] = []
    send: Any = AbstractConnection.send_packed_command
    here = threading.get_ident()

    def counted(self: Any, command: Any, check_health: bool = True) -> None:
        if threading.get_ident() == here:
            sent.append(1)
        send(self, command, check_health=check_health)

    with patch.object(AbstractConnection, "send_packed_command", counted):
        yield sent
