"""A node of a cluster that keeps its connections open but does not answer any more."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker, QueueUnavailable
from tests.support.cluster_box import ClusterBox
from tests.support.core_calls import ChannelWaker, port_of

pytestmark = pytest.mark.one_server("it stops a master")


def test_a_wait_for_wake_ups_ends_with_an_error_when_its_node_falls_silent(
    cluster_box: ClusterBox, cluster_broker: Broker
) -> None:
    cluster_broker.queue("q")
    waker = ChannelWaker(cluster_broker.connection, cluster_broker.prefix, ["q"])
    port = port_of(waker)
    node = next(node for node in cluster_box.nodes if node.port == port)
    node.pause()
    try:
        with pytest.raises(QueueUnavailable, match="does not answer"):
            waker.wait(30.0)
    finally:
        node.resume()
        waker.close()


def test_a_wait_for_wake_ups_lasts_as_long_as_its_node_answers(cluster_broker: Broker) -> None:
    cluster_broker.queue("q")
    waker = ChannelWaker(cluster_broker.connection, cluster_broker.prefix, ["q"])

    assert waker.wait(8.0) == []

    waker.close()
