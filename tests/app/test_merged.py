"""Merged tasks as a Django developer calls them: what is stored, what is refused, what the policies do."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from django_delayq import InvalidJob, cancel, connections, get_job, reschedule, run_now, schedule, schedule_many
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode
from django_delayq.core.job_view import JobView
from django_delayq.core.records.frames import unpack_payload

from .deeds import newest, note, sync


@pytest.fixture(autouse=True)
def _on_redis(delayq: Broker) -> None:
    """Every test here has a Redis of its own."""


def job(ident: object, queue: str = "deeds.sync") -> JobView:
    found = get_job(str(ident), queue=queue)
    assert found is not None
    return found


def payloads(ident: object, queue: str = "deeds.sync") -> list[tuple[Any, str]]:
    """(value, score) of each payload of an id as Redis has them, in order."""
    opened = connections.queue(queue)
    names, mine = opened.shard(opened.shard_of(str(ident))).names, f"{ident}\0".encode()
    client = connections.broker().client
    members = [member for member in client.zrange(names["order"], 0, -1) if member.startswith(mine)]
    found = [unpack_payload(client.hget(names["payload"], mine + member[len(mine) + 16 :])) for member in members]
    return [(decode(payload.data), payload.score) for payload in found]


def test_payloads_of_one_id_are_united_in_the_order_of_their_scores() -> None:
    first = schedule(sync, id=7, payload={"v": 3}, score=3, delay=60)
    assert (first.outcome, first.queue, first.id) == ("created", "deeds.sync", "7")
    assert schedule(sync, id="7", payload={"v": 1}, score=1).outcome == "merged"
    assert schedule(sync, id=7, payload={"v": 2}, score="2.5").outcome == "merged"
    assert schedule(sync, id=8, payload="other", score=Decimal("1E+1")).outcome == "created"
    assert payloads(7) == [({"v": 1}, "1"), ({"v": 2}, "2.5"), ({"v": 3}, "3")]
    assert payloads(8) == [("other", "1E+1")]


def test_the_first_due_time_is_kept_unless_another_policy_is_asked_for(delayq: Broker) -> None:
    schedule(sync, id=1, payload="a", delay=timedelta(hours=1))
    due = job(1).due_ms
    schedule(sync, id=1, payload="b")
    assert job(1).due_ms == due
    schedule(sync, id=1, payload="c", due_policy="latest", delay=7200)
    assert job(1).due_ms > due + 3_500_000
    schedule(sync, id=1, payload="d", due_policy="earliest", delay=1800)
    assert job(1).due_ms < due
    schedule(sync, id=1, payload="e", due_policy="replace", delay=10)
    assert job(1).due_ms < delayq.now_ms() + 11_000
    assert [value for value, _ in payloads(1)] == ["a", "b", "c", "d", "e"]


def test_without_payload_and_score_it_is_null_at_the_moment_of_its_arrival(delayq: Broker) -> None:
    before = delayq.now_ms() / 1000
    schedule(sync, id=1)
    ((value, score),) = payloads(1)
    assert value is None
    assert before - 0.001 <= float(score) <= delayq.now_ms() / 1000 + 0.001


def test_the_tasks_policies_decide_which_payloads_are_kept() -> None:
    for number in (2, 3, 1):
        schedule(newest, id="x", payload=number, score=number, delay=60)
    assert payloads("x", "newest") == [(3, "3")]
    schedule(newest, id="x", payload=3, score=8)
    assert payloads("x", "newest") == [(3, "8")]
    assert job("x", "newest").job.priority == 2


def test_equal_payloads_count_once_whatever_the_order_of_their_keys() -> None:
    schedule(sync, id=1, payload={"a": 1, "b": 2}, score=5)
    schedule(sync, id=1, payload={"b": 2, "a": 1}, score=4)
    assert payloads(1) == [({"a": 1, "b": 2}, "4")]


def test_the_method_and_using_name_id_payload_and_score() -> None:
    sync.schedule(1, {"n": 1}, score=1)
    handle = sync.using(delay=60, context={"trace": "t"}).schedule(2, "two", score="2")
    sync.using(priority=1).schedule(id=3)
    assert (handle.state(), job(2).job.options) == ("delayed", {"context": {"trace": "t"}})
    assert (payloads(1), payloads(2)) == ([({"n": 1}, "1")], [("two", "2")])
    assert job(3).job.priority == 1


def test_many_are_counted_by_outcome_and_need_no_arguments(delayq: Broker) -> None:
    schedule(sync, id=0, payload="before", score=0, delay=60)
    entries = ({"id": n % 500, "payload": {"n": n}, "score": n, "delay": 5} for n in range(1000))
    assert schedule_many(sync, entries) == {"created": 499, "merged": 501}
    assert payloads(0) == [("before", "0"), ({"n": 0}, "0"), ({"n": 500}, "500")]
    assert schedule_many(sync, [{"id": "x"}, {"id": "y", "priority": 1}], delay=60, score=5) == {"created": 2}
    assert (payloads("x"), job("y").job.priority) == ([(None, "5")], 1)
    assert schedule_many(sync, [{"id": "x"}], on_conflict="error") == {"exists": 1}


def test_jobs_of_a_merged_task_are_found_by_task_and_id(delayq: Broker) -> None:
    schedule(sync, id=5, payload="x", delay=3600)
    assert reschedule(sync, 5, delay=60) is True
    assert job(5).due_ms < delayq.now_ms() + 61_000
    assert run_now(sync, id=5) is True
    assert job(5).state == "ready"
    assert cancel(sync, 5) == "cancelled"
    assert (cancel(sync, 5), run_now(sync, 5), get_job(sync, 5)) == (False, False, None)
    assert delayq.client.hlen(delayq.queue("deeds.sync").shard(0).names["payload"]) == 0


GOOD = {"id": 1, "payload": "x"}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: schedule(sync, payload={}), InvalidJob, "deeds.sync: a job of a merged task needs an id="),
        (lambda: schedule(sync, {"v": 1}, id=5), TypeError, r"deeds.sync is merged.*payload=…"),
        (lambda: schedule(sync, id=5, customer=7), TypeError, r"payload=…"),
        (lambda: schedule(sync, id=5, payloads=[7]), TypeError, "'payloads': Did you mean 'payload'"),
        (lambda: schedule(sync, args=[1], id=5), TypeError, r"payload=…"),
        (lambda: schedule(sync, kwargs={"a": 1}, id=5), TypeError, r"payload=…"),
        (lambda: schedule(sync, id=5, payload={1, 2}), InvalidJob, "deeds.sync: payload: a set has no order"),
        (lambda: schedule(sync, id=5, payload=object()), InvalidJob, "has no stored form"),
        (lambda: schedule(sync, id=5, payload="x" * 2_000_000), InvalidJob, "payload takes 2000002 bytes"),
        (lambda: schedule(sync, id="", payload=1), InvalidJob, "1 to 255 bytes"),
        (lambda: schedule(sync, id=5, score=True), InvalidJob, "score must be a number"),
        (lambda: schedule(sync, id=5, score=[1]), InvalidJob, "score must be a number"),
        (lambda: schedule(sync, id=5, score="new"), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score=""), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score="1_000"), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score=" 1"), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score="٣"), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score=float("inf")), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score=Decimal("NaN")), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score=10**400), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, score="1" * 300), InvalidJob, "score must be a finite number"),
        (lambda: schedule(sync, id=5, expires=60), InvalidJob, "expires is for plain tasks"),
        (lambda: schedule(sync, id=5, on_conflict="merg"), InvalidJob, "Did you mean 'merge'"),
        (lambda: schedule(sync, id=5, due_policy="kep"), InvalidJob, "Did you mean 'keep'"),
        (lambda: schedule(sync, id=5, delay=True), InvalidJob, "not bool"),
        (lambda: schedule(sync, id=5, delay=1, at=9_999), InvalidJob, "give one of them"),
        (lambda: sync.using(expires=60), InvalidJob, "expires is for plain tasks"),
        (lambda: note.using(payload={}), InvalidJob, "'payload' is for merged tasks"),
        (lambda: schedule_many(sync, [GOOD, {"payload": 1}]), InvalidJob, "entry 1: .*needs an id="),
        (lambda: schedule_many(sync, [GOOD, {"id": 2, "args": [1]}]), TypeError, "entry 1: .*payload=…"),
        (lambda: schedule_many(sync, [GOOD, {"id": 2, "scor": 1}]), InvalidJob, "entry 1: .*Did you mean 'score'"),
        (lambda: schedule_many(sync, [GOOD, {"id": 2, "score": "x"}]), InvalidJob, "entry 1: score must be"),
        (lambda: schedule_many(sync, [GOOD, {"id": 2, "expires": 5}]), InvalidJob, "entry 1: .*expires is for plain"),
        (lambda: schedule_many(sync, [GOOD, 5]), InvalidJob, "entry 1: expected a dict with id, payload"),
        (lambda: schedule_many(sync, [GOOD], id=5), InvalidJob, "an id belongs to one job"),
        (lambda: schedule_many(note, [{"args": ["x"], "score": 5}]), InvalidJob, "entry 0: .*'score' is for merged"),
        (lambda: schedule_many(note, [{"args": ["x"]}], payload=5), InvalidJob, "'payload' is for merged tasks"),
    ],
)
def test_bad_input_is_refused_at_the_call_and_nothing_is_stored(
    delayq: Broker, call: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert len(str(caught.value)) < 600
    assert job_count(delayq) == 0


def job_count(broker: Broker) -> int:
    return sum(counts.delayed + counts.ready for counts in broker.inspector.all_counts())
