"""The newest events of a shard stay in its stream although every consumer has read them."""

from __future__ import annotations

import pytest

from django_delayq.core import Broker

from .events_stage import (
    EventFilter,
    advance_cursor,
    advance_cursors,
    ids,
    lag_of,
    last_position,
    newest,
    run,
    run_singly,
)

pytestmark = pytest.mark.usefixtures("impatient")


def read_all(broker: Broker, keep: int) -> int:
    """Let a consumer read everything; return the number of events that stay."""
    end = last_position(broker, "q", 0)
    assert advance_cursor(broker, "q", 0, "history", end, keep=keep) == end
    assert lag_of(broker, "history")[0].events == 0, "nothing that stays is unread"
    return len(ids(broker))


def test_a_page_of_recent_events_keeps_a_thousand_of_them_behind_the_slowest_cursor(broker: Broker) -> None:
    queue = broker.queue("q")
    for _ in range(4):
        run(queue, 1500)
        end = last_position(broker, "q", 0)
        advance_cursors(broker, "history", {"q": {0: end}})
    # 10,000 of the cap divided by eight is how far the count may be wrong.
    assert 1000 <= len(ids(broker)) <= 1000 + 1250 + 50
    assert len(newest(broker, EventFilter(), limit=5000)) >= 1000


def test_the_count_may_be_wrong_by_an_eighth_of_the_cap(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=80)
    queue = small.queue("q")
    for _ in range(12):
        run_singly(queue, 7)
        # The cap removes the oldest, whatever is read.
        assert min(20, len(ids(small))) <= read_all(small, keep=20) <= 20 + 10
    assert ids(small)[-1] == last_position(small, "q", 0)


def test_a_slow_cursor_keeps_more(broker: Broker) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=80)
    run_singly(small.queue("q"), 60)
    first = ids(small)[10]
    advance_cursor(small, "q", 0, "slow", first, keep=20)
    assert read_all(small, keep=20) == 50 + 1
    assert ids(small)[0] == first


@pytest.mark.parametrize("keep", [80, 1000])
def test_the_cap_is_what_stays_if_more_is_kept(broker: Broker, keep: int) -> None:
    small = Broker(broker.connection, prefix=broker.prefix, event_cap=80)
    queue = small.queue("q")
    for _ in range(5):
        run_singly(queue, 60)
        assert 60 <= read_all(small, keep=keep) <= 80 + 12


def test_nothing_is_kept_if_none_are_wanted(broker: Broker) -> None:
    run_singly(broker.queue("q"), 30)
    assert read_all(broker, keep=0) == 1, "the entry at the cursor"
