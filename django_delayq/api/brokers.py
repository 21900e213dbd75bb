"""Broker with short timeouts for API requests, so that an unreachable Redis does not block server threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .. import connections

if TYPE_CHECKING:
    from ..connections import DjangoBroker

#: seconds that a request waits for one reply from Redis
PATIENCE: Final = connections.PATIENCE


def broker() -> DjangoBroker:
    """Return the broker of this deployment with short timeouts.

    Raises:
        Misconfigured: the settings name no usable Redis.
    """
    return connections.hurried_broker(PATIENCE)
