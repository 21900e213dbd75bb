"""Actions on failed jobs: each one reads Redis again, and reports the outcome of each job."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import FieldError, ValidationError

from django_delayq.core.broker import Broker
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.outcomes import ack
from django_delayq.models import FailedJob, MorgueJob
from django_delayq.repair.jobs import act
from django_delayq.repair.orders import matching

from .mirror_stage import Trouble, tables

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    """One queue with three shards."""
    return Trouble(delayq, shards=3)


def failed(*idents: str) -> list[FailedJob]:
    return list(FailedJob.objects.filter(job_id__in=idents).order_by("job_id"))


def buried(*idents: str) -> list[MorgueJob]:
    return list(MorgueJob.objects.filter(job_id__in=idents).order_by("job_id"))


def due_in(trouble: Trouble, ident: str) -> float:
    """Seconds until Redis has it due."""
    view = trouble.broker.inspector.get("q", ident)
    assert view is not None
    return (view.due_ms - trouble.broker.now_ms()) / 1000


# -- retry -----------------------------------------------------------------------------------------------------------


def test_failed_jobs_are_due_now_and_keep_their_failures(trouble: Trouble) -> None:
    trouble.fail("a", "b", "c")
    trouble.copied()
    assert act("retry", failed("a", "b")) == {"retried": 2}
    assert [trouble.state(ident) for ident in "abc"] == ["ready", "ready", "delayed"]
    assert tables()["failed"] == ["a x1", "b x1", "c x1"]
    row, view = failed("a")[0], trouble.broker.inspector.get("q", "a")
    assert view is not None
    assert row.due_at.timestamp() == pytest.approx(view.due_ms / 1000)


def test_failed_jobs_are_retried_after_a_delay_and_one_that_is_overdue_keeps_its_place(trouble: Trouble) -> None:
    trouble.fail("a", delay_ms=0)
    trouble.copied()
    before = due_in(trouble, "a")
    act("retry", failed("a"))
    assert due_in(trouble, "a") <= before <= 0
    assert act("retry", failed("a"), timedelta(minutes=5)) == {"retried": 1}
    assert 295 < due_in(trouble, "a") <= 300
    assert act("retry", failed("a"), 10) == {"retried": 1}
    assert 5 < due_in(trouble, "a") <= 10


def test_jobs_of_the_morgue_come_back_and_leave_it(trouble: Trouble) -> None:
    trouble.bury("a", "b", "c")
    trouble.copied()
    assert act("retry", buried("a")) == {"retried": 1}
    assert act("retry", buried("b"), 60) == {"retried": 1}
    assert [trouble.state(ident) for ident in "abc"] == ["ready", "delayed", "morgue"]
    assert tables()["morgue"] == ["c exhausted"]


def test_the_very_generation_is_kicked_and_no_other(trouble: Trouble) -> None:
    trouble.bury("a", args=b'["first"]')
    trouble.bury("a", args=b'["second"]')
    trouble.copied()
    first = next(row for row in buried("a") if bytes(row.args or b"") == b'["first"]')
    assert act("retry", [first]) == {"retried": 1}
    view = trouble.broker.inspector.get("q", "a")
    assert view is not None and view.job.args == b'["first"]'
    assert [bytes(row.args or b"") for row in buried("a")] == [b'["second"]']


def test_a_live_job_stands_in_the_way(trouble: Trouble) -> None:
    trouble.bury("a")
    trouble.put("a", args=b'["other"]', delay_ms=60_000)
    trouble.copied()
    assert act("retry", buried("a")) == {"live": 1}
    assert tables()["morgue"] == ["a exhausted"]


def test_a_merged_job_of_the_morgue_joins_the_live_one(trouble: Trouble) -> None:
    def put(value: bytes) -> None:
        payload = Payload(value, "1", new_key())
        trouble.queue.schedule(NewJob("m", "deeds.sync", on_conflict="merge", due_policy="keep", payload=payload))

    put(b"1")
    trouble.bury("m")
    put(b"2")
    trouble.copied()
    assert act("retry", buried("m")) == {"retried": 1}
    assert [payload.data for payload in trouble.broker.inspector.payloads("q", "m")] == [b"1", b"2"]


# -- what is not as it was -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["retry", "discard", "bury"])
def test_a_job_that_runs_now_is_left_alone(trouble: Trouble, verb: str) -> None:
    trouble.fail("a", "b")
    trouble.copied()
    (held,) = trouble.take("a")
    assert act(verb, failed("a", "b"))["running"] == 1
    assert trouble.state("a") == "reserved"
    assert trouble.queue.settle([ack(held, 1, 2)]) == [True]


@pytest.mark.parametrize("verb", ["retry", "discard", "bury"])
def test_a_job_that_is_gone_takes_its_row_with_it(trouble: Trouble, verb: str) -> None:
    trouble.fail("a", "b")
    trouble.copied()
    trouble.queue.cancel("a")
    assert act(verb, failed("a", "b"))["gone"] == 1
    assert not failed("a")


@pytest.mark.parametrize("verb", ["retry", "discard", "bury"])
def test_another_generation_of_the_id_is_not_touched(trouble: Trouble, verb: str) -> None:
    trouble.fail("a", "b")
    trouble.copied()
    rows = failed("a", "b")
    trouble.queue.cancel("a")
    trouble.put("a", delay_ms=60_000)
    trouble.queue.cancel("b")
    trouble.fail("b", args=b'["other"]')
    assert act(verb, rows) == {"gone": 2}
    views = [trouble.broker.inspector.get("q", ident) for ident in "ab"]
    assert [(view.state, view.job.failures) for view in views if view] == [("delayed", 0), ("delayed", 1)]
    assert 50 < due_in(trouble, "a") < 61
    # The row of b is that of its new generation now, for everybody to see.
    assert [row.key.bytes for row in failed("a", "b")] == [view.job.key for view in views if view and view.id == "b"]


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_grave_that_somebody_else_dug_up_is_gone(trouble: Trouble, verb: str) -> None:
    trouble.bury("a", "b")
    trouble.copied()
    trouble.queue.discard("a")
    counts = act(verb, buried("a", "b"))
    assert (counts["gone"], sum(counts.values())) == (1, 2)
    assert tables()["morgue"] == []


def test_rows_of_a_queue_that_is_no_more_are_gone(trouble: Trouble) -> None:
    trouble.fail("a")
    trouble.bury("b")
    trouble.copied()
    trouble.broker.delete_queue("q", force=True)
    assert act("retry", [*failed("a"), *buried("b")]) == {"gone": 2}
    assert tables() == {"failed": [], "morgue": []}


# -- discard and bury ------------------------------------------------------------------------------------------------


def test_discarded_jobs_leave_redis_and_the_tables(trouble: Trouble) -> None:
    trouble.fail("a", "b")
    trouble.bury("c", "d")
    trouble.copied()
    assert act("discard", [*failed("a"), *buried("c")]) == {"discarded": 2}
    assert [trouble.state(ident) for ident in "abcd"] == [None, "delayed", None, "morgue"]
    assert tables() == {"failed": ["b x1"], "morgue": ["d exhausted"]}


def test_a_failed_job_is_buried_and_its_row_changes_the_table_at_once(trouble: Trouble) -> None:
    trouble.fail("a", "b")
    trouble.copied()
    assert act("bury", failed("a")) == {"buried": 1}
    assert trouble.state("a") == "morgue"
    assert tables() == {"failed": ["b x1"], "morgue": ["a buried by an operator"]}
    assert buried("a")[0].error_class == "shop.GatewayDown"
    with pytest.raises(InvalidJob, match="for failed jobs"):
        act("bury", buried("a"))


def test_many_rows_of_several_queues_and_both_places_at_once(trouble: Trouble) -> None:
    other = Trouble(trouble.broker, name="other")
    trouble.fail(*[f"f{n}" for n in range(300)])
    other.bury(*[f"m{n}" for n in range(300)])
    trouble.copied(trouble.mirror(queues=[trouble.queue, other.queue]))
    assert act("retry", [*FailedJob.objects.all(), *MorgueJob.objects.all()]) == {"retried": 600}
    counts = [trouble.broker.inspector.counts(name) for name in ("q", "other")]
    assert [(count.ready, count.morgue) for count in counts] == [(300, 0), (300, 0)]
    assert (FailedJob.objects.count(), MorgueJob.objects.count()) == (300, 0)


def test_after_a_change_of_shards_jobs_are_found_where_they_lie(trouble: Trouble) -> None:
    trouble.fail("a", "b")
    trouble.bury("c", "d")
    trouble.copied()
    trouble.broker.reshard("q", 5)
    assert act("retry", [*failed("a"), *buried("c")]) == {"retried": 2}
    assert act("discard", [*failed("b"), *buried("d")]) == {"discarded": 2}
    assert [trouble.state(ident) for ident in "abcd"] == ["ready", None, "ready", None]
    assert tables() == {"failed": ["a x1"], "morgue": []}


@pytest.mark.parametrize("delay", ["soon", float("nan"), float("-inf"), timedelta(days=40_000)])
def test_a_delay_that_cannot_be_meant_changes_nothing(trouble: Trouble, delay: Any) -> None:
    trouble.fail("a")
    trouble.copied()
    with pytest.raises(InvalidJob):
        act("retry", failed("a"), delay=delay)
    assert trouble.state("a") == "delayed"


# -- which rows are meant --------------------------------------------------------------------------------------------


def test_rows_are_chosen_by_what_json_can_say(trouble: Trouble) -> None:
    trouble.fail("order-1", task="deeds.rest", error=b'{"class":"A","message":"no answer"}')
    trouble.fail("order-2", error=b'{"class":"B","message":"refused"}')
    trouble.fail("order-2")
    trouble.fail("other-3")
    trouble.copied()
    moments = dict(FailedJob.objects.values_list("job_id", "failed_at"))

    def ids(**filters: Any) -> str:
        return " ".join(matching(FailedJob, filters).order_by("job_id").values_list("job_id", flat=True))

    assert ids() == "order-1 order-2 other-3"
    assert ids(queue="q", task="deeds.rest") == "order-1"
    assert ids(error_class="A") == "order-1"
    assert ids(failures=2) == ids(failures__gte=2) == "order-2"
    assert ids(job_id__startswith="other", queue__in=["q", "r"]) == "other-3"
    assert ids(failed_at__gte=moments["other-3"].isoformat()) == "other-3"
    assert ids(failed_at__lt=moments["order-2"].isoformat()) == "order-1"
    trouble.bury("grave", reason="poison")
    trouble.copied()
    assert matching(MorgueJob, {"reason": "poison", "buried_at__gte": "2020-01-01T00:00:00+00:00"}).count() == 1


@pytest.mark.parametrize(
    "filters",
    [
        {"quue": "q"},
        {"reason": "poison"},
        {"buried_at__gte": "2020-01-01"},
        {"queue__x__y": 1},
        {"failures": "many"},
        {"failed_at__gte": "yesterday"},
        {"failed_at__gte": 5},
    ],
    ids=str,
)
def test_filters_that_nobody_can_mean_choose_nothing_at_all(filters: dict[str, Any]) -> None:
    with pytest.raises((FieldError, ValidationError, TypeError, ValueError)):
        matching(FailedJob, filters)


@pytest.mark.parametrize("verb", ["retry", "discard", "bury"])
def test_no_rows_are_nothing_to_do(delayq: Broker, verb: str) -> None:
    assert act(verb, []) == Counter()
