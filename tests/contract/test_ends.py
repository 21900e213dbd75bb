"""Ends of jobs on both brokers: settled, cancelled, buried, kicked; pauses, limits, and completion marks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_delayq.core.errors import IdTaken, InvalidJob, QueueFull, QueueNotEmpty, QueuePaused
from django_delayq.core.job import STARTED, UNRENEWED, Payload, new_key
from django_delayq.core.settlement import Settlement, bury, fail

from .stand import LEASE, T0, Make, Stand

# -- settle ----------------------------------------------------------------------------------------------------------


def test_a_failure_is_counted_and_waits(stand: Stand) -> None:
    stand.put("a", at=-10)
    job = stand.take_one()
    assert stand.failed(job, 3000, outcome="timeout")
    world = stand.world()
    live = world["lives"]["a"]
    assert (live["due"], live["failures"], live["crashes"], live["failed at"], live["error"]) == (
        3000,
        1,
        0,
        0,
        {"message": "no"},
    )
    in_all = {"timeouts": 1, "buries": 0, "kicks": 0}
    assert live["history"] == {"reserves": 1, "failures": 1, "crashes": 0, "releases": 0, **in_all}
    assert world["counters"] == {"created": 1, "reserved": 1, "timeout": 1}


def test_a_release_is_not_counted_and_keeps_its_place(stand: Stand) -> None:
    for ident in ("a", "b"):
        stand.put(ident)
    stand.released(stand.batch(1).jobs[0])
    assert [job.id for job in stand.take()] == ["a", "b"]


def test_a_release_may_change_the_priority(stand: Stand) -> None:
    for ident in ("a", "b"):
        stand.put(ident)
    stand.released(stand.batch(1).jobs[0], priority=7)
    assert [job.id for job in stand.take()] == ["b", "a"]


def test_who_lost_the_lease_changes_nothing(stand: Stand) -> None:
    stand.put("a")
    job = stand.take_one()
    stand.wait(LEASE + 1)
    (lost,) = stand.queue.expired(0)
    assert stand.settle(replace(fail(lost, 0, 0, delay_ms=0, outcome="crashed"), guard="expired")) == [True]
    before = stand.world()
    assert (stand.done(job), stand.failed(job), stand.buried(job)) == ([False], False, False)
    assert stand.queue.touch([job]) == ["lost"]
    after = stand.world()
    assert after["counters"].pop("late") == 3
    assert after == before


def test_an_early_ack_is_counted_when_its_run_ends(stand: Stand) -> None:
    for ident in ("a", "b", "c"):
        stand.put(ident)
    jobs = stand.take()
    assert stand.settle(*(Settlement(job, "ack_early", event=False) for job in jobs)) == [True] * 3
    assert stand.world()["counters"] == {"created": 3, "reserved": 3}
    done, failed, lost = jobs
    assert stand.settle(Settlement(done, "record"), Settlement(failed, "record", outcome="failed")) == [True, True]
    found = [Settlement(job, "record", outcome="crashed", guard="expired") for job in (done, lost)]
    assert stand.settle(*found) == [False, True]
    assert stand.world()["counters"] == {"created": 3, "reserved": 3, "acked": 1, "failed": 1, "crashed": 1, "late": 1}


def test_a_touch_extends_and_marks_the_start(stand: Stand) -> None:
    stand.put("a")
    job = stand.take_one()
    stand.wait(1000)
    assert stand.queue.touch([job], {(job.id, job.token)}) == ["held"]
    live = stand.world()["lives"]["a"]
    assert (live["deadline"], live["flags"]) == (1000 + LEASE, STARTED)
    stand.queue.touch([job], ttr_ms=100)
    assert stand.world()["lives"]["a"]["deadline"] == 1100


def test_an_exhausted_merged_job_gives_up_its_oldest_payload(stand: Stand) -> None:
    for data, score in ((b"old", "1"), (b"mid", "2"), (b"new", "3")):
        stand.add("a", data, score)
    job = stand.take_one()
    stand.settle(replace(bury(job, 1, 2, reason="exhausted", outcome="exhausted"), oldest=True))
    assert stand.short() == {"waiting": ["a +0"], "payloads": ["a: mid new"], "morgue": ["a exhausted"]}
    assert stand.world()["lives"]["a"]["failures"] == 0


def test_ack_and_reserve_in_one(stand: Stand) -> None:
    stand.put("a")
    job = stand.take_one()
    stand.put("b")
    counted, batch = stand.queue.settle_reserve(0, [fail(job, 1, 2, delay_ms=500)], 5, worker="w")
    assert (counted, [one.id for one in batch.jobs], batch.next_due_ms) == ([True], ["b"], 500)


def test_one_job_by_its_id(stand: Stand) -> None:
    stand.put("a", at=1000)
    assert stand.queue.reserve_id("a", worker="w").jobs == []
    assert [job.id for job in stand.queue.reserve_id("a", worker="w", early=True, started=True).jobs] == ["a"]
    assert stand.queue.reserve_id("a", worker="w", early=True).jobs == []
    assert stand.world()["lives"]["a"]["flags"] == STARTED | UNRENEWED


def test_what_expired_is_not_handed_out(stand: Stand) -> None:
    stand.put("a", options=b'{"expires_in_ms":500}')
    stand.put("b", options=b'{"expires_ms":%d}' % (T0 + 2000))
    stand.wait(1000)
    batch = stand.batch()
    assert ([job.id for job in batch.jobs], batch.expired, batch.taken) == (["b"], 1, 2)
    assert stand.world()["counters"]["expired"] == 1


def test_time_until_the_next_one(stand: Stand) -> None:
    assert stand.batch().next_due_ms is None
    stand.put("a", delay_ms=700)
    assert stand.batch().next_due_ms == 700
    tick = stand.queue.tick(0)
    assert (tick.now_ms, tick.next_due_ms, tick.next_deadline_ms, tick.expired, tick.held_back) == (
        T0,
        T0 + 700,
        None,
        False,
        False,
    )


def test_a_reaper_hold_spares_the_holders(stand: Stand) -> None:
    stand.put("a")
    stand.take_one()
    stand.wait(LEASE)
    assert stand.queue.tick(0, hold=True).held_back
    assert stand.queue.expired(0) == []
    stand.wait(LEASE)
    tick = stand.queue.tick(0)
    assert (tick.expired, tick.held_back, [job.id for job in stand.queue.expired(0)]) == (True, False, ["a"])


# -- cancel, reschedule, run now -------------------------------------------------------------------------------------


def test_cancel(stand: Stand) -> None:
    stand.put("a")
    stand.put("b")
    held = next(job for job in stand.take() if job.id == "b")
    stand.released(next(job for job in stand.queue.leases(0) if job.id == "a"))
    stand.put("b", args=b"[2]")
    with pytest.raises(IdTaken):
        stand.queue.cancel("a", task="other")
    assert [stand.queue.cancel(ident) for ident in ("a", "b", "c")] == ["cancelled", "stopping", ""]
    assert stand.queue.touch([held]) == ["stopping"]
    stand.failed(held)
    assert stand.short() == {}
    assert stand.world()["counters"]["cancelled"] == 2


def test_reschedule_and_run_now(stand: Stand) -> None:
    queue = stand.queue
    stand.put("a", at=9000)
    stand.put("b", at=-50)
    assert queue.reschedule("a", due_ms=T0 + 100)
    assert queue.reschedule("a", delay_ms=200, task="work")
    assert stand.short() == {"waiting": ["b -50", "a +200"]}
    assert (queue.run_now("a"), queue.run_now("b"), queue.run_now("c")) == (True, True, False)
    assert stand.short() == {"waiting": ["b -50", "a +0"]}
    with pytest.raises(InvalidJob):
        queue.reschedule("a")
    stand.take()
    assert not queue.reschedule("a", delay_ms=0)
    stand.put("a", at=9000)
    assert queue.run_now("a")
    assert stand.world()["lives"]["a"]["gated"][3] == 0


# -- the morgue ------------------------------------------------------------------------------------------------------


def test_kick_brings_back_and_forgets_failures(stand: Stand) -> None:
    key = stand.in_morgue("a", args=b"[1]")
    assert stand.queue.kick("a", key=new_key()) == ""
    assert stand.queue.kick("a", key=key, delay_ms=700) == "kicked"
    assert stand.short() == {"waiting": ["a +700"]}
    assert stand.world()["lives"]["a"]["failures"] == 0
    assert stand.queue.kick("a") == ""


def test_kick_onto_a_live_plain_job_is_refused_unless_it_replaces(stand: Stand) -> None:
    stand.in_morgue("a", args=b"[1]")
    stand.put("a", args=b"[2]", at=5000)
    assert stand.queue.kick("a") == "live"
    assert stand.queue.kick("a", replace=True) == "kicked"
    assert (stand.short(), stand.world()["lives"]["a"]["args"]) == ({"waiting": ["a +0"]}, b"[1]")


def test_kick_onto_a_merged_job_merges(stand: Stand) -> None:
    stand.add("a", b"old", "1")
    stand.buried(stand.take_one())
    stand.add("a", b"new", "2", at=5000)
    assert stand.queue.kick("a", delay_ms=9000) == "kicked"
    assert stand.short() == {"waiting": ["a +5000"], "payloads": ["a: old new"]}


def test_kick_behind_a_run(stand: Stand) -> None:
    stand.in_morgue("a", args=b"[1]")
    stand.put("a", args=b"[2]")
    job = stand.take_one()
    assert stand.queue.kick("a", replace=True) == "kicked"
    stand.done(job)
    assert stand.world()["lives"]["a"]["args"] == b"[1]"


def test_graves_are_per_generation(stand: Stand) -> None:
    keys = []
    for n in range(2):
        keys.append(stand.in_morgue("a", args=b"[%d]" % n))
        stand.wait(1)
    assert [
        view.job.key for view in sorted(stand.broker.inspector.graves("q", "a"), key=lambda v: v.buried_ms or 0)
    ] == keys
    assert stand.broker.inspector.get("q", "a").job.key == keys[1]  # type: ignore[union-attr]
    assert stand.queue.discard("a", key=keys[0])
    assert not stand.queue.discard("a", key=keys[0])
    assert stand.queue.discard("a")
    assert (stand.short(), stand.broker.inspector.get("q", "a")) == ({}, None)


def test_a_limited_morgue_forgets_the_oldest(stand: Stand) -> None:
    stand.broker.limit("q", morgue_max=2, morgue_ttl_ms=5000)
    for n in range(4):
        stand.in_morgue(f"j{n}")
        stand.wait(1)
    assert stand.short() == {"morgue": ["j2 buried", "j3 buried"]}
    stand.wait(5000)
    stand.queue.tick(0)
    assert (stand.short(), stand.world()["counters"]["trimmed"]) == ({}, 4)


# -- pauses, limits, queues ------------------------------------------------------------------------------------------


def test_a_pause(stand: Stand) -> None:
    stand.put("a")
    stand.broker.pause("q", "out")
    assert (stand.take(), stand.queue.reserve_id("a", worker="w").jobs, stand.batch().next_due_ms) == ([], [], None)
    stand.broker.pause("q", "in")
    for new in (stand.new("b"), stand.new("a")):
        with pytest.raises(QueuePaused):
            stand.queue.schedule(new)
    stand.broker.resume("q")
    assert stand.put("b") == "created"
    assert [job.id for job in stand.take()] == ["a", "b"]
    with pytest.raises(InvalidJob):
        stand.broker.pause("q", "sideways")
    with pytest.raises(InvalidJob):
        stand.broker.pause("nowhere")


def test_a_limited_queue_is_full(stand: Stand) -> None:
    stand.broker.limit("q", max_length=1)
    stand.put("a")
    with pytest.raises(QueueFull, match="max_length"):
        stand.put("b")
    assert stand.put("a") == "replaced"
    assert stand.queue.schedule_many([stand.new("c")]) == ["full"]
    assert stand.world()["counters"] == {"created": 1, "changed": 1, "refused": 2}


def test_a_deleted_queue_comes_back_empty(stand: Stand) -> None:
    stand.put("a")
    with pytest.raises(QueueNotEmpty):
        stand.broker.delete_queue("q")
    assert stand.broker.delete_queue("q", force=True)
    assert (stand.broker.delete_queue("q"), stand.broker.queue_names()) == (False, [])
    assert stand.broker.known_queue("q") is None
    again = stand.broker.queue("q", shards=1)
    stand.wait(0)  # its new shards have the clock too
    assert again.schedule(stand.new("b")) == "created"
    assert stand.broker.queue_names() == ["q"]


def test_queues_and_shards(make_stand: Make) -> None:
    stand = make_stand(shards=4, name="wide")
    for n in range(20):
        stand.put(f"j{n}")
    assert (stand.queue.shards, stand.queue.numbers) == (4, (0, 1, 2, 3))
    for number in stand.queue.numbers:
        mine = [f"j{n}" for n in range(20) if stand.queue.shard_of(f"j{n}") == number]
        assert [job.id for job in stand.batch(number=number).jobs] == mine
    stand.broker.queue("feed", kind="pull")
    assert [(queue.name, queue.kind) for queue in stand.broker.queues()] == [("feed", "pull"), ("wide", "python")]
    assert [queue.name for queue in stand.broker.served(["wide", "new"])] == ["new", "wide"]


def test_workers_say_that_they_live(stand: Stand) -> None:
    stand.broker.announce("w1", {"pid": 1})
    (said,) = stand.broker.workers()
    assert (said["name"], said["pid"]) == ("w1", 1)
    stand.broker.forget("w1")
    assert stand.broker.workers() == []


# -- durable generations ---------------------------------------------------------------------------------------------


def ends(stand: Stand) -> dict[bytes, str]:
    return {mark.key: mark.end for mark in stand.queue.marks(0)}


def test_a_durable_job_is_put_in_once(stand: Stand) -> None:
    new = stand.new("a", key=new_key(durable=True))
    assert stand.queue.schedule(new) == "created"
    assert stand.queue.schedule(replace(new)) == "known"
    assert stand.queue.knows([("a", new.key), ("a", new_key(durable=True))]) == [True, False]
    stand.done(stand.take_one())
    assert (stand.queue.schedule(replace(new)), ends(stand)) == ("known", {new.key: "done"})
    stand.queue.marks(0, forget=stand.queue.marks(0))
    assert (ends(stand), stand.queue.knows([("a", new.key)])) == ({}, [False])


def test_who_comes_too_late_changes_nothing(stand: Stand) -> None:
    new = stand.new("a", key=new_key(durable=True))
    stand.wait(10)
    assert stand.queue.schedule_many([new], not_after_ms=T0 + 9) == ["late"]
    assert stand.queue.schedule_many([new], not_after_ms=T0 + 10) == ["created"]
    assert stand.queue.cancel("a", not_after_ms=T0 + 9) == "late"
    assert stand.queue.cancel("a", not_after_ms=T0 + 10) == "cancelled"


def test_the_ends_of_durable_jobs_are_marked(stand: Stand) -> None:
    keys = {name: new_key(durable=True) for name in ("buried", "replaced", "cancelled", "live", "absorbed", "kept")}
    for name in ("buried", "live"):
        stand.put(name, key=keys[name])
        stand.buried(stand.take_one())
    stand.queue.kick("live")
    stand.put("replaced", key=keys["replaced"])
    stand.put("replaced")
    stand.put("cancelled", key=keys["cancelled"])
    stand.queue.cancel("cancelled")
    stand.add("m", b"same", "1", key=keys["kept"])
    stand.add("m", b"same", "2", key=keys["absorbed"])
    wanted = {"buried": "buried", "replaced": "done", "cancelled": "done", "live": "live", "absorbed": "done"}
    assert ends(stand) == {keys[name]: end for name, end in wanted.items()}
    assert stand.queue.tick(0).marks == 5


def test_a_payload_is_known_too(stand: Stand) -> None:
    key = new_key(durable=True)
    new = stand.merged("a", b"1", key=key)
    assert [stand.queue.schedule(new), stand.queue.schedule(replace(new, payload=Payload(b"1", "0", key)))] == [
        "created",
        "known",
    ]
    stand.buried(stand.take_one())
    assert stand.queue.knows([("a", key)]) == [True]
    assert ends(stand) == {key: "buried"}
