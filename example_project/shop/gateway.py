"""Payment gateway that is as unreliable as real ones, but predictable.

The response depends only on the seed, the payment's reference and the number of earlier requests. A test, or a second
run of the demo with the same seed, therefore meets the same outages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import conf


class GatewayDown(ConnectionError):
    """Error for a gateway that did not respond."""


class GatewayBusy(Exception):
    """Error for a pending payment; ``retry_after`` is the number of seconds to wait before the next request."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"payment is still being processed; check again in {retry_after:g} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class FakeGateway:
    """Gateway that fails for ``failure_rate`` of the requests for a payment's state (half of them "busy").

    Args:
        seed: changes all responses at once.
        failure_rate: share of the requests that fail, 0 … 1.
        refusal_rate: share of the payments that are refused in the end, 0 … 1.
    """

    seed: str = "shop"
    failure_rate: float = 0.5
    refusal_rate: float = 0.1

    def is_paid(self, reference: str, asked_before: int) -> bool:
        """Return True if the payment went through, False if it was refused.

        Raises:
            GatewayDown: no response; retry later.
            GatewayBusy: no decision yet; retry after ``retry_after`` seconds.
        """
        dice = random.Random(f"{self.seed}/{reference}/{asked_before}")
        if dice.random() < self.failure_rate:
            if dice.random() < 0.5:
                raise GatewayBusy(retry_after=2)
            raise GatewayDown("gateway.example did not answer within 3 s")
        return random.Random(f"{self.seed}/{reference}").random() >= self.refusal_rate


def get_gateway() -> FakeGateway:
    """Return the gateway of the settings."""
    seed = str(conf.value("GATEWAY_SEED", "shop"))
    return FakeGateway(seed, conf.number("GATEWAY_FAILURE_RATE", 0.5), conf.number("GATEWAY_REFUSAL_RATE", 0.1))


class PartnerDown(ConnectionError):
    """Error that :func:`tell_partner` always raises."""


def tell_partner(message: str) -> None:
    """Call the webhook of a partner whose server has been switched off for years."""
    raise PartnerDown(f"https://partner.example/hook refused the connection; not delivered: {message}")
