"""``METRICS["scripts"]``: how long callers of this process wait for each script goes into the figures in Redis."""

from __future__ import annotations

from ..core.broker import Broker


def observe(broker: Broker) -> None:
    """Measure every call of a script from now on. Redis is told about a second later, in any process."""
    from ..pull import figures

    tally = broker.tally

    def heard(script: str, seconds: float, failed: bool) -> None:
        figures.see_to(tally)  # each time: after a fork nobody does any more
        tally.waited(script, seconds, failed)

    broker.observe(heard)
