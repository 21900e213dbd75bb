"""Age of the mirror: time since everything that dispatchers had noticed was copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..core.redis.scripts import clear_errors

if TYPE_CHECKING:
    from ..core.broker import Broker

#: age in seconds above which the tables are behind: a dispatcher renews it twice a minute, also if nothing fails
LATE_SECONDS: Final = 90.0


def set_age(broker: Broker, seconds: float) -> None:
    """Record that the tables have everything that was noticed until so many seconds ago."""
    with clear_errors():
        broker.client.set(broker.key("mirror"), int(broker.now_ms() - seconds * 1000))


def age(broker: Broker) -> float | None:
    """Return the age of the mirror in seconds; None if nothing was copied yet.

    Raises:
        QueueUnavailable: Redis cannot be reached.
    """
    with clear_errors():
        copied_ms = broker.client.get(broker.key("mirror"))
    return None if copied_ms is None else max(0.0, (broker.now_ms() - float(copied_ms)) / 1000)
