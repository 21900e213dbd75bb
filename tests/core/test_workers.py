"""Reading of workers' announcements, including malformed ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.core import Broker
from django_delayq.core.workers import runs_jobs_of
from tests.support.core_stored import workers_key


def stored(broker: Broker, said: bytes) -> dict[str, Any]:
    broker.client.hset(workers_key(broker.prefix), b"w", b"1700000000000:" + said)
    (found,) = broker.workers()
    return found


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (b'{"threads": NaN, "running": -Infinity}', {"threads": None, "running": None}),
        (b"not json", {}),
        (b'{"host": "\xff"}', {}),
        (b"[" * 5_000, {}),
        (b"[1]", {}),
        (b"", {}),
    ],
)
def test_what_somebody_announced_is_plain_text_that_can_be_sent_on(
    broker: Broker, said: bytes, known: dict[str, Any]
) -> None:
    found = stored(broker, said)
    assert found == {**known, "name": "w", "seen_ms": 1_700_000_000_000}
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()


def test_halves_of_surrogate_pairs_are_announced_as_question_marks(broker: Broker) -> None:
    broker.announce("w", {"host": "h\ud800", "jobs": [{"id": "\udfffx"}], "\ud8ff": 1, "more": "\N{GRINNING FACE} ä"})
    (found,) = broker.workers()
    known = {"host": "h?", "jobs": [{"id": "?x"}], "?": 1, "more": "\N{GRINNING FACE} ä"}
    assert found == {**known, "name": "w", "seen_ms": found["seen_ms"]}
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    ("said", "alive_ms"),
    [
        ({}, 15_000),
        ({"heartbeat_ms": 100}, 15_000),
        ({"heartbeat_ms": 20_000}, 60_000),
    ],
)
def test_a_worker_is_counted_on_for_three_of_its_heartbeats(said: dict[str, Any], alive_ms: int) -> None:
    worker = {"queues": ["q"], "threads": 1, "seen_ms": 1_000_000, **said}
    assert runs_jobs_of(worker, "q", 1_000_000 + alive_ms - 1)
    assert not runs_jobs_of(worker, "q", 1_000_000 + alive_ms)


def test_what_a_worker_announced_before_the_clock_was_put_back_does_not_make_it_live_longer() -> None:
    worker = {"queues": ["q"], "threads": 1, "seen_ms": 3_600_000}
    assert runs_jobs_of(worker, "q", 3_600_000 - 14_999), "a small step"
    assert not runs_jobs_of(worker, "q", 0)


def test_a_new_worker_is_not_told_what_was_meant_for_another_one_of_its_name(broker: Broker) -> None:
    broker.announce("w:1", {}, done=None)
    assert broker.tell_worker("w:1", "stop")
    assert list(broker.announce("w:1", {}, done=[]).commands) == ["stop"]
    assert broker.announce("w:1", {}, done=None).commands == {}
    assert broker.announce("w:1", {}, done=[]).commands == {}
