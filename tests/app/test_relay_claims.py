"""Claims of the relay: who tells Redis of a row, for how long, and what is said of it when it was told before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_delayq import signals
from django_delayq.connections import DjangoBroker
from django_delayq.outbox import rows
from django_delayq.outbox.push import MAX_TRIES

from .outbox_stage import QUEUE, Stage, State

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage(delayq: DjangoBroker) -> Stage:
    return Stage(delayq)


@pytest.fixture
def scheduled() -> Iterator[list[str]]:
    """Ids of which job_scheduled was sent."""
    found: list[str] = []

    def hear(*, id: str, **_: Any) -> None:
        found.append(id)

    signals.job_scheduled.connect(hear)
    yield found
    signals.job_scheduled.disconnect(hear)


def test_redis_may_be_told_only_while_the_claim_lasts(stage: Stage) -> None:
    row = stage.write("order-5")
    hand = stage.push()
    assert [claimed.pk for claimed in hand.take()] == [row.pk]
    row.refresh_from_db()
    assert row.claimed_until is not None
    assert hand.deadline_ms < row.claimed_until.timestamp() * 1000


def test_a_row_behind_one_that_another_relay_took_in_the_same_moment_is_given_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage.write("order-5"), stage.write("order-5")

    def meanwhile(*_: Any) -> list[int]:
        stage.hold(first)
        return [second.pk]

    monkeypatch.setattr(rows, "candidates", meanwhile)
    assert stage.push().take() == []
    second.refresh_from_db()
    assert second.claimed_until is None


def test_a_relay_gives_back_no_rows_but_its_own(stage: Stage) -> None:
    row = stage.write("order-5")
    late = stage.push()
    late.take()
    stage.hold(row)
    late.settle()
    row.refresh_from_db()
    assert row.claimed_until is not None


def test_a_job_that_is_sent_again_after_a_loss_is_not_signalled_again(stage: Stage, scheduled: list[str]) -> None:
    stage.sent("order-5")
    stage.lose_everything()
    stage.table.update(state=State.UNSENT)
    assert stage.relay().turn() == {"sent": 1}
    assert scheduled == ["order-5"]


@pytest.mark.broken_on_purpose
def test_the_time_in_which_a_queue_is_paused_is_not_counted_as_errors(stage: Stage) -> None:
    queue = stage.broker.queue(QUEUE, shards=1)
    stage.broker.pause(QUEUE, "in")
    row = stage.write("order-5")
    for _ in range(MAX_TRIES + 2):
        assert stage.relay().turn() == {"later": 1}
        stage.age(61, "claimed_until")
    stage.broker.resume(QUEUE)
    stage.broker.client.set(queue.shard(0).names["body"], b"not a hash")
    assert stage.relay().turn() == {"later": 1}
    row.refresh_from_db()
    assert (row.state, row.tries) == (State.UNSENT, 1)
