"""Payment gateway that is as unreliable as real ones, but predictable.

The response depends only on the seed, the payment's reference and the number of earlier requests. A test, or a second
run of the demo with the same seed, therefore meets the same outages.
"""

from __future__ import annotations

import random

from . import conf


class GatewayDown(ConnectionError):
    """Error for a gateway that did not respond."""


class GatewayBusy(Exception):
    """Error for a pending payment; ``retry_after`` is the number of seconds to wait before the next request."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"payment is still being processed; check again in {retry_after:g} s")
        self.retry_after = retry_after


def is_paid(reference: str, asked_before: int) -> bool:
    """Return True if the payment went through, False if it was refused.

    The gateway fails for a share of the requests (half of them "busy"), and refuses a share of the payments in the end.

    Raises:
        GatewayDown: no response; retry later.
        GatewayBusy: no decision yet; retry after ``retry_after`` seconds.
    """
    seed = conf.value("GATEWAY_SEED", "shop")
    dice = random.Random(f"{seed}/{reference}/{asked_before}")
    if dice.random() < conf.number("GATEWAY_FAILURE_RATE", 0.5):
        if dice.random() < 0.5:
            raise GatewayBusy(retry_after=2)
        raise GatewayDown("gateway.example did not answer within 3 s")
    return random.Random(f"{seed}/{reference}").random() >= conf.number("GATEWAY_REFUSAL_RATE", 0.1)


class PartnerDown(ConnectionError):
    """Error that :func:`tell_partner` always raises."""


def tell_partner(message: str) -> None:
    """Call the webhook of a partner whose server has been switched off for years."""
    raise PartnerDown(f"https://partner.example/hook refused the connection; not delivered: {message}")
