"""Workers as Redis knows them: announcements, malformed ones included, commands, dumps and tasks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.core import Broker, InvalidJob
from django_delayq.core.workers import DUMP_KEPT, MOST_DUMP_BYTES, runs_jobs_of
from tests.support.core_stored import workers_key

from .stage import T0, Stage


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


# -- commands and dumps of workers, the tasks that they announce, and figures ------------------------------------------


def words(stage: Stage, name: str = "w", done: tuple[str, ...] | None = ()) -> dict[str, str]:
    """Return the commands that a worker gets with an announcement: word -> id."""
    return dict(stage.broker.announce(name, {}, done=done).commands)


def test_a_worker_hears_what_it_was_told_until_it_has_done_so(stage: Stage) -> None:
    broker = stage.broker
    broker.announce("w", {})
    broker.announce("x", {})
    assert broker.tell_worker("w", "dump")
    assert broker.tell_worker("w", "stop")
    first = words(stage)
    assert list(first) == ["stop", "dump"]
    assert words(stage) == first, "the reply may have been lost"
    assert words(stage, "x") == {}
    assert words(stage, done=(first["dump"],)) == {"stop": first["stop"]}
    assert broker.tell_worker("w", "dump")
    again = words(stage, done=tuple(first.values()))
    assert list(again) == ["dump"]
    assert again["dump"] != first["dump"]


def test_nobody_is_told_who_is_not_there(stage: Stage) -> None:
    assert not stage.broker.tell_worker("w", "stop")
    assert words(stage) == {}


def test_a_forgotten_worker_leaves_nothing_that_it_was_told(stage: Stage) -> None:
    words(stage)
    stage.broker.tell_worker("w", "drain")
    stage.broker.forget("w")
    assert words(stage) == {}
    assert not stage.broker.client.exists(f"{{{stage.broker.prefix}}}:commands:w")


def test_a_task_is_known_while_a_live_worker_of_the_queue_announces_it(stage: Stage) -> None:
    broker = stage.broker
    at_work = {"queues": ["q"], "threads": 2, "stopping": False}
    now_ms = broker.announce("w", at_work, tasks=["work", "grüße"]).now_ms

    def known(queue: str = "q", task: str = "work", later: float = 0) -> bool:
        return broker.knows_task(queue, task, now_ms + later)

    assert known() and known(task="grüße")
    assert not known(task="wor") and not known(task="other") and not known("r")
    assert known(later=14_000) and not known(later=20_000), "it was not heard of for three heartbeats"
    broker.announce("w", at_work)
    assert known(), "the names stay from one announcement to the next"
    for change in ({"stopping": True}, {"threads": 0}, {"queues": ["r"]}, {"queues": []}, {"threads": None}):
        broker.announce("w", {**at_work, **change})
        assert not known(), change
    broker.announce("w", {"all_queues": True, "threads": 1})
    assert known("r")
    broker.announce("w", {**at_work}, tasks=["other"])
    assert known(task="other") and not known()
    broker.forget("w")
    broker.announce("w", at_work)
    assert not known(task="other")


def test_one_of_many_workers_is_enough(stage: Stage) -> None:
    for number in range(40):
        info = {"queues": ["q"], "threads": 1}
        now_ms = stage.broker.announce(f"w{number}", info, tasks=["new"] if number == 39 else ["old"]).now_ms
    assert stage.broker.knows_task("q", "new", now_ms)
    assert not stage.broker.knows_task("q", "newest", now_ms)


def test_what_no_worker_understands_is_refused(stage: Stage) -> None:
    words(stage)
    with pytest.raises(InvalidJob, match="stop, drain, dump"):
        stage.broker.tell_worker("w", "dance")


def test_stacks_are_kept_for_a_while_and_never_without_measure(stage: Stage) -> None:
    broker = stage.broker
    assert broker.dump_of("w") is None
    broker.keep_dump("w", "thread one: \u20ac", T0)
    assert broker.dump_of("w") == (T0, "thread one: \u20ac")
    broker.keep_dump("w", "\u20ac" * MOST_DUMP_BYTES, T0)
    found = broker.dump_of("w")
    assert found
    assert MOST_DUMP_BYTES - 3 <= len(found[1].encode()) <= MOST_DUMP_BYTES
    assert found[1].endswith("(cut here)")
    assert DUMP_KEPT - 5 < broker.client.ttl(f"{{{broker.prefix}}}:dump:w") <= DUMP_KEPT
