"""A payment gateway that is as unreliable as the real ones, but predictable.

The answer depends only on the seed, the payment's reference and how often it was asked before; so a test, or a second
run of the demo with the same seed, sees the same outages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import conf


class GatewayDown(ConnectionError):
    """The gateway did not answer."""


class GatewayBusy(Exception):
    """The gateway answered "not yet"; ``retry_after`` is how many seconds it asks us to wait."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"payment is still being processed, ask again in {retry_after:g} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class FakeGateway:
    """Asked for the state of a payment, it fails in ``failure_rate`` of the cases (half of them "busy").

    Args:
        seed: changes all the answers at once.
        failure_rate: share of the questions that get no answer, 0 … 1.
        refusal_rate: share of the payments that are refused in the end, 0 … 1.
    """

    seed: str = "shop"
    failure_rate: float = 0.5
    refusal_rate: float = 0.1

    def is_paid(self, reference: str, asked_before: int) -> bool:
        """Whether the payment went through (True) or was refused (False).

        Raises:
            GatewayDown: no answer; ask again later.
            GatewayBusy: no decision yet; ask again after ``retry_after`` seconds.
        """
        dice = random.Random(f"{self.seed}/{reference}/{asked_before}")
        if dice.random() < self.failure_rate:
            if dice.random() < 0.5:
                raise GatewayBusy(retry_after=2)
            raise GatewayDown("gateway.example did not answer within 3 s")
        return random.Random(f"{self.seed}/{reference}").random() >= self.refusal_rate


def get_gateway() -> FakeGateway:
    """The gateway of the settings."""
    return FakeGateway(**conf.gateway())


class PartnerDown(ConnectionError):
    """Raised by :func:`tell_partner`, always."""


def tell_partner(message: str) -> None:
    """Call the webhook of a partner whose server has been switched off for years."""
    raise PartnerDown(f"https://partner.example/hook refused the connection; not told: {message}")
