"""Scheduling on both brokers: every policy of schedule, payloads, and gated jobs."""

from __future__ import annotations

import hashlib

import pytest

from django_delayq.core.errors import IdTaken, InvalidJob, QueueFull

from .stand import T0, Stand

# -- schedule: conflicts and due times -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "outcome", "args", "due"),
    [("replace", "replaced", b"[2]", 5000), ("ignore", "ignored", b"[1]", 9000), ("error", "exists", b"[1]", 9000)],
)
def test_an_id_that_waits(stand: Stand, policy: str, outcome: str, args: bytes, due: int) -> None:
    stand.put("a", args=b"[1]", at=9000)
    new = stand.new("a", args=b"[2]", at=5000, on_conflict=policy)
    assert stand.queue.schedule_many([new]) == [outcome]
    live = stand.world()["lives"]["a"]
    assert (live["args"], live["due"]) == (args, due)
    if outcome == "exists":
        with pytest.raises(IdTaken, match="already lives"):
            stand.queue.schedule(new)


@pytest.mark.parametrize(
    ("policy", "due"),
    [("keep", 9000), ("inherit", 9000), ("replace", 5000), ("earliest", 5000), ("latest", 9000)],
)
def test_the_due_time_of_an_id_that_waits(stand: Stand, policy: str, due: int) -> None:
    stand.add("a", b"1", at=9000)
    assert stand.add("a", b"2", at=5000, due_policy=policy) == "merged"
    assert stand.short() == {"waiting": [f"a {due:+d}"], "payloads": ["a: 1 2"]}


@pytest.mark.parametrize(("new_due", "due"), [(30_000, 30_000), (500, 1_000), (0, 1_000), (100_000, 60_000)])
def test_a_correction_does_not_wait_out_the_back_off(stand: Stand, new_due: int, due: int) -> None:
    stand.add("a", b"1")
    stand.failed(stand.take_one(), 60_000)
    stand.add("a", b"2", at=new_due)
    assert stand.world()["lives"]["a"]["due"] == due


@pytest.mark.parametrize("reset", [True, False])
def test_replacing_forgets_failures_or_keeps_them(stand: Stand, reset: bool) -> None:
    stand.put("a")
    stand.failed(stand.take_one(), 1000)
    assert stand.put("a", reset_retries=reset) == "replaced"
    world = stand.world()
    assert (world["failed"], world["lives"]["a"]["failures"]) == (([], 0) if reset else (["a"], 1))


def test_an_id_of_another_task_or_kind_is_taken(stand: Stand) -> None:
    stand.put("a")
    for new in (stand.new("a", task="other"), stand.merged("a", b"1", task="work")):
        with pytest.raises(IdTaken, match="another task"):
            stand.queue.schedule(new)
    assert stand.short() == {"waiting": ["a +0"]}


@pytest.mark.parametrize("ident", ["", "x" * 256, "a\0b"])
def test_an_id_that_cannot_be_one(stand: Stand, ident: str) -> None:
    with pytest.raises(InvalidJob, match="id"):
        stand.put(ident)


def test_what_falls_due_together_stays_in_the_order_of_the_calls(stand: Stand) -> None:
    for n in range(300):
        stand.put(f"j{n}", at=0)
    assert [job.id for job in stand.take(250)] == [f"j{n}" for n in range(250)]


def test_more_urgent_classes_go_first_and_a_changed_one_moves(stand: Stand) -> None:
    for ident, priority in (("late", 7), ("early", 0), ("usual", 4)):
        stand.put(ident, priority=priority)
    stand.put("late", priority=1)
    assert [job.id for job in stand.take()] == ["early", "late", "usual"]


def test_weighted_classes_do_not_starve(stand: Stand) -> None:
    stand.broker.limit("q", weighted=True)
    for n in range(200):
        stand.put(f"urgent-{n}", priority=0)
        stand.put(f"patient-{n}", priority=7)
    taken = []
    for _ in range(60):
        stand.wait(7)
        taken += [job.id.partition("-")[0] for job in stand.batch(1).jobs]
    assert 10 <= taken.count("patient") <= 30


def test_due_jobs_that_wait_too_long_get_a_quarter(stand: Stand) -> None:
    stand.broker.limit("q", starve_after_ms=1000)
    for n in range(40):
        stand.put(f"urgent-{n}", priority=0)
        stand.put(f"patient-{n}", priority=7)
    assert {job.id.partition("-")[0] for job in stand.batch(8).jobs} == {"urgent"}
    stand.wait(1001)
    assert [job.id for job in stand.batch(8).jobs] == ["patient-0", "patient-1", *(f"urgent-{n}" for n in range(8, 14))]


def test_many_at_once(stand: Stand) -> None:
    stand.put("taken", task="other")
    news = [stand.new("a"), stand.new("a"), stand.new("taken"), stand.new("b", at=10)]
    assert stand.queue.schedule_many(news) == ["created", "replaced", "taken", "created"]
    assert stand.queue.count_many([stand.new("c"), stand.new("c"), stand.new("d")]) == {"created": 2, "replaced": 1}


def test_a_tick_is_fired_once(stand: Stand) -> None:
    assert stand.queue.schedule_tick(stand.new("t"), T0) == "created"
    assert stand.queue.schedule_tick(stand.new("t"), T0) == "fired"
    assert stand.queue.schedule_tick(stand.new("t"), T0 + 1) == "replaced"
    assert stand.queue.last_tick("t") == T0 + 1
    assert stand.queue.last_tick("u") is None
    assert stand.queue.first_sight("u", "* * * * *") == T0
    stand.wait(5000)
    assert stand.queue.first_sight("u", "* * * * *") == T0
    assert stand.queue.first_sight("u", "@daily") == T0 + 5000


def test_a_tick_is_skipped_once(stand: Stand) -> None:
    assert stand.queue.first_sight("t", "* * * * *") == T0
    stand.wait(60_000)
    assert stand.queue.skip_tick("t", "* * * * *", T0 + 30_000)
    assert not stand.queue.skip_tick("t", "* * * * *", T0 + 30_000)
    assert not stand.queue.skip_tick("t", "* * * * *", T0 + 20_000)
    assert stand.queue.first_sight("t", "* * * * *") == T0 + 30_000
    assert stand.queue.last_tick("t") is None
    assert stand.queue.schedule_tick(stand.new("t"), T0 + 60_000) == "created"
    assert not stand.queue.skip_tick("t", "* * * * *", T0 + 60_000)


# -- merged jobs -----------------------------------------------------------------------------------------------------


def test_payloads_run_in_the_order_of_their_scores_then_of_their_arrival(stand: Stand) -> None:
    for data, score in ((b"ten", "10"), (b"two", "2"), (b"first", "-1.5"), (b"two too", "2"), (b"large", "1e3")):
        stand.add("a", data, score)
    assert [payload.data for payload in stand.take_one().payloads] == [b"first", b"two", b"two too", b"ten", b"large"]


def test_without_a_score_it_is_the_time_of_arrival(stand: Stand) -> None:
    stand.add("a", b"1", "")
    assert [payload.score for payload in stand.take_one().payloads] == ["1700000000.000000"]


@pytest.mark.parametrize(("policy", "score"), [("min", "1"), ("max", "5"), ("first", "3"), ("last", "2")])
def test_of_equal_payloads_one_is_kept(stand: Stand, policy: str, score: str) -> None:
    for one in ("3", "1", "5", "2"):
        stand.add("a", b"same", one, score_policy=policy)
    assert stand.world()["lives"]["a"]["payloads"] == [(b"same", score)]


@pytest.mark.parametrize(
    ("policy", "outcomes", "kept"),
    [
        ("all", ["created", "merged", "full"], [b"2", b"3"]),
        ("last", ["created", "merged", "ignored"], [b"2", b"3"]),
        ("first", ["created", "merged", "merged"], [b"1", b"2"]),
    ],
)
def test_how_many_payloads_are_kept(stand: Stand, policy: str, outcomes: list[str], kept: list[bytes]) -> None:
    news = [stand.merged("a", data.encode(), data, payloads=policy, max_payloads=2) for data in ("2", "3", "1")]
    assert stand.queue.schedule_many(news) == outcomes
    assert [data for data, _ in stand.world()["lives"]["a"]["payloads"]] == kept
    if policy == "all":
        with pytest.raises(QueueFull, match="max_payloads"):
            stand.queue.schedule(stand.merged("a", b"4", payloads=policy, max_payloads=2))


def test_a_run_takes_250_payloads_and_the_rest_gets_a_run_of_its_own(stand: Stand) -> None:
    for n in range(260):
        stand.add("a", b"%03d" % n, str(n))
    job = stand.take_one()
    assert (len(job.payloads), stand.done(job)) == (250, [True])
    rest = stand.take_one()
    assert [payload.data for payload in rest.payloads] == [b"%03d" % n for n in range(250, 260)]
    digest = hashlib.sha1(job.key).digest()[:16]
    # The time of its creation stays, and nobody waits to hear of its end.
    assert rest.key == bytes((job.key[0] & 0x7F,)) + job.key[1:7] + digest[7:]


def test_a_merged_job_may_replace(stand: Stand) -> None:
    stand.add("a", b"1")
    assert stand.add("a", b"2", on_conflict="replace") == "replaced"
    assert stand.short() == {"waiting": ["a +0"], "payloads": ["a: 2"]}


# -- gated generations -----------------------------------------------------------------------------------------------


def test_what_comes_during_a_run_waits_behind_it(stand: Stand) -> None:
    stand.put("a", args=b"[1]")
    job = stand.take_one()
    assert stand.put("a", args=b"[2]", at=2000) == "gated"
    assert stand.short() == {"reserved": ["a"], "gated": ["a +2000"]}
    assert stand.take() == []
    assert stand.done(job) == [True]
    assert stand.short() == {"waiting": ["a +2000"]}
    stand.wait(2000)
    assert stand.take_one().args == b"[2]"


@pytest.mark.parametrize("verb", ["failed", "released"])
def test_newer_content_of_a_plain_job_takes_the_place_of_what_failed(stand: Stand, verb: str) -> None:
    stand.put("a", args=b"[1]")
    job = stand.take_one()
    stand.put("a", args=b"[2]")
    assert getattr(stand, verb)(job, 1000)
    live = stand.world()["lives"]["a"]
    assert (live["args"], live["failures"], live["due"]) == (b"[2]", 0, 0)


@pytest.mark.parametrize(("inherit", "due"), [(False, 500), (True, 60_000)])
def test_payloads_that_come_back_unite_with_those_that_came(stand: Stand, inherit: bool, due: int) -> None:
    stand.add("a", b"x", "2")
    job = stand.take_one()
    stand.add("a", b"y", "1", at=500)
    stand.add("a", b"x", "3")
    stand.failed(job, 60_000, inherit=inherit)
    assert stand.world()["lives"]["a"]["payloads"] == [(b"y", "1"), (b"x", "2")]
    assert stand.short()["waiting"] == [f"a {due:+d}"]


def test_a_buried_run_leaves_what_is_gated(stand: Stand) -> None:
    stand.put("a", args=b"[1]")
    job = stand.take_one()
    stand.put("a", args=b"[2]")
    assert stand.buried(job)
    assert stand.short() == {"waiting": ["a +0"], "morgue": ["a buried"]}


def test_a_second_schedule_acts_on_the_gated_content(stand: Stand) -> None:
    stand.put("a")
    stand.take_one()
    stand.put("a", args=b"[2]", at=9000)
    assert stand.put("a", args=b"[3]", at=5000, due_policy="keep") == "gated"
    assert stand.put("a", on_conflict="ignore") == "ignored"
    assert stand.world()["lives"]["a"]["gated"] == ("work", b"[3]", 4, 9000)
