"""The broker of requests: better an early word that Redis does not answer than a thread of the server held for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .. import connections

if TYPE_CHECKING:
    from ..connections import DjangoBroker

#: seconds that a request waits for one answer of Redis
PATIENCE: Final = connections.PATIENCE


def broker() -> DjangoBroker:
    """The same deployment as everybody's, with less patience.

    Raises:
        Misconfigured: the settings name no usable Redis.
    """
    return connections.hurried_broker(PATIENCE)
