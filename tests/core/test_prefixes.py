"""Two deployments with PREFIXes of their own on one Redis: no verb of one touches a key of the other (row 68)."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, Connection
from tests.support.core_stored import assert_invariants

from .deployment_stage import Deployment

#: PREFIXes of which one is the other's beginning, is part of a name of the other's keys, or differs in its case
PAIRS = [("north", "south"), ("shop", "shop2"), ("shop", "shop:wake"), ("shop", "SHOP"), ("shop:1", "shop:1.2")]


def contents(broker: Broker, other: Broker) -> dict[bytes, bytes]:
    """Each key of the deployment, whatever its name; those of the other one are known by their beginnings."""
    forms = ("{%s}:", "%s:{", "%s:wake:orders", "%s:result:")
    foreign = tuple((form % other.prefix).encode() for form in forms)
    return {key: broker.client.dump(key) for key in broker.client.scan_iter("*") if not key.startswith(foreign)}


@pytest.mark.one_server("every key of the server is looked at")
@pytest.mark.parametrize("pair", [*PAIRS, *(pair[::-1] for pair in PAIRS)], ids="-".join)
def test_every_verb_under_one_prefix_leaves_the_keys_of_another_as_they_are(
    connection: Connection, pair: tuple[str, str]
) -> None:
    one, other = (Deployment(Broker(connection, prefix=prefix)) for prefix in pair)
    before = contents(other.broker, one.broker)
    assert len(before) > 20
    one.use_every_verb()
    assert contents(other.broker, one.broker) == before
    assert other.broker.queue_names() == ["orders"]
    other.use_every_verb()
    for broker in (one.broker, other.broker):
        assert_invariants(broker)
