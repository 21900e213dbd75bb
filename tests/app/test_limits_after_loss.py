"""Limits from the settings after Redis went back to an older copy of its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq.connections import DjangoBroker, make_broker
from django_delayq.core.broker import Broker
from django_delayq.runtime import bookkeeping
from django_delayq.settings.conf import conf
from django_delayq.worker.loop import Changes
from tests.worker.test_parts import damaged

from ..support.older_copy import OlderCopy


@pytest.fixture
def limited(delayq: DjangoBroker, settings: Any) -> Iterator[DjangoBroker]:
    """Return a broker whose settings name limits of two queues."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"q": {"max_length": 7}, "deleted": {"max_length": 1}}}
    made = make_broker(conf())
    yield made
    made.connection.close()


def plain(broker: Broker) -> Broker:
    """Return a broker that knows no settings and no queues."""
    return Broker(broker.connection, prefix=broker.prefix)


@pytest.mark.parametrize("queues", [["q"], ["deleted", "q"]])
def test_a_dispatcher_that_notices_the_loss_writes_them_again(limited: DjangoBroker, queues: list[str]) -> None:
    plain(limited).queue("q")
    copy, changes = OlderCopy(limited.client), Changes()
    duty = bookkeeping.duties(conf(), limited, changes, list)["limits"]
    assert limited.queue("q").layout["limits"] == {"max_length": 7}
    copy.put_back()
    assert not limited.served(["q"])[0].layout.get("limits"), "which the copy does not have"
    for queue in queues:
        changes.note(queue, 0, "lost")
    duty.run()
    for seen in (limited, plain(limited)):
        assert seen.queue("q").layout["limits"] == {"max_length": 7}
        assert seen.known_queue("deleted") is None


@pytest.mark.broken_on_purpose
def test_a_queue_whose_limits_cannot_be_written_keeps_no_other_from_it(delayq: DjangoBroker, settings: Any) -> None:
    names = ("first", "second")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {name: {"max_length": 7} for name in names}}
    changes = Changes()
    duty = bookkeeping.duties(conf(), delayq, changes, list)["limits"]
    first, _ = (plain(delayq).queue(name) for name in names)
    for name in names:
        changes.note(name, 0, "lost")
    with damaged(first, "meta"):
        duty.run()
    assert plain(delayq).queue("second").layout["limits"] == {"max_length": 7}


def test_without_a_loss_no_dispatcher_overwrites_what_other_settings_wrote(limited: DjangoBroker) -> None:
    """During a deploy, processes with different settings run side by side."""
    duty = bookkeeping.duties(conf(), limited, Changes(), list)["limits"]
    limited.queue("q")
    plain(limited).limit("q", max_length=9)
    duty.run()
    assert limited.served(["q"])[0].layout["limits"] == {"max_length": 9}
