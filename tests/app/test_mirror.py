"""The mirrors: what Redis has of failed and buried jobs, and nothing else, is in the tables."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection as database, connections as databases
from django.test.utils import CaptureQueriesContext

from django_delayq import connections, schedule, task
from django_delayq.core import bulk, layouts, reading
from django_delayq.core.broker import Broker
from django_delayq.core.errors import Misconfigured
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.outcomes import ack
from django_delayq.core.task import registry
from django_delayq.mirror import duty, rebuild
from django_delayq.mirror.duty import IndexMirror
from django_delayq.mirror.rows import FAILED
from django_delayq.models import FailedJob, MorgueJob
from django_delayq.repair.jobs import act
from django_delayq.runtime import wiring
from django_delayq.settings.conf import Conf, conf
from django_delayq.worker.loop import Changes
from tests.support.processes import wait_until

from .mirror_stage import Trouble, finish, tables

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    """One queue with three shards."""
    return Trouble(delayq, shards=3)


def test_a_failed_job_and_a_buried_one_are_rows_with_all_that_people_ask_for(trouble: Trouble) -> None:
    trouble.fail("one", priority=2, options=b'{"context":{"trace":"t"}}')
    trouble.fail("one")
    trouble.bury("two", task="deeds.rest", args=b"")
    before = datetime.now(UTC)
    trouble.copied()
    one, two = FailedJob.objects.get(), MorgueJob.objects.get()
    view = trouble.broker.inspector.get("q", "one")
    assert view is not None
    assert (one.queue, one.job_id, one.task, one.key.bytes) == ("q", "one", "deeds.note", view.job.key)
    assert (one.priority, one.merged, one.failures, one.crashes, one.payload_count) == (2, False, 2, 0, 0)
    assert (one.error_class, one.error_message, one.error_traceback) == ("shop.GatewayDown", "no answer", "line 1")
    assert (bytes(one.args or b""), bytes(one.options)) == (b'["x"]', b'{"context":{"trace":"t"}}')
    assert one.due_at == datetime.fromtimestamp(view.due_ms / 1000, UTC)
    assert one.shard == trouble.queue.shard_of("one")
    assert timedelta(0) <= before - one.failed_at < timedelta(seconds=30)
    assert (two.reason, two.outcome, two.error_class, two.failures) == ("exhausted", "exhausted", "shop.GatewayDown", 1)
    assert timedelta(0) <= before - two.buried_at < timedelta(seconds=30)
    assert before - timedelta(seconds=30) < two.seen_at


def test_what_left_redis_in_whatever_way_leaves_the_tables(trouble: Trouble) -> None:
    trouble.fail("succeeds", "cancelled", "replaced", "buried", "stays")
    trouble.bury("kicked", "discarded", "remains")
    mirror = trouble.mirror()
    assert [len(rows) for rows in trouble.copied(mirror).values()] == [5, 3]
    queue = trouble.queue
    queue.settle([ack(job, 1, 2) for job in trouble.take("succeeds")])
    queue.cancel("cancelled")
    trouble.put("replaced")
    trouble.bury("buried")
    queue.kick("kicked")
    queue.discard("discarded")
    trouble.note()
    assert trouble.copied(mirror) == {"failed": ["stays x1"], "morgue": ["buried exhausted", "remains exhausted"]}


def test_a_job_that_fails_again_is_one_row_with_its_last_error(trouble: Trouble) -> None:
    mirror = trouble.mirror()
    trouble.fail("one")
    trouble.copied(mirror)
    first = FailedJob.objects.get()
    trouble.fail("one", error=b'{"class":"Other","message":"second"}')
    trouble.note()
    assert trouble.copied(mirror) == {"failed": ["one x2"], "morgue": []}
    second = FailedJob.objects.get()
    assert (second.pk, second.error_class, second.error_traceback) == (first.pk, "Other", "")
    assert second.updated_us > first.updated_us


def test_graves_of_several_generations_of_an_id_are_rows_of_their_own(trouble: Trouble) -> None:
    trouble.bury("one")
    trouble.bury("one", reason="poison")
    trouble.fail("one")
    assert trouble.copied() == {"failed": ["one x1"], "morgue": ["one exhausted", "one poison"]}


def test_a_merged_job_has_the_number_of_its_payloads_and_large_arguments_are_left_out(trouble: Trouble) -> None:
    news = [
        NewJob("m", "deeds.sync", on_conflict="merge", payload=Payload(b"%d" % n, str(n), new_key())) for n in range(3)
    ]
    trouble.queue.schedule_many(news)
    trouble.fail("m")
    trouble.copied()
    row = FailedJob.objects.get()
    assert (row.merged, row.payload_count, row.args) == (True, 3, b"")
    trouble.fail("large", args=b'["' + b"x" * 65_536 + b'"]')
    trouble.fail("fits", args=b'["' + b"x" * 65_532 + b'"]')
    trouble.copied()
    assert FailedJob.objects.get(job_id="large").args is None
    assert len(bytes(FailedJob.objects.get(job_id="fits").args or b"")) == 65_536


# -- when ------------------------------------------------------------------------------------------------------------


def test_an_idle_mirror_asks_neither_redis_nor_the_database(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble.fail("one")
    mirror = trouble.mirror()
    trouble.copied(mirror)
    monkeypatch.setattr(mirror, "_next_turn", 0.0)
    commands = trouble.broker.server_info()["total_commands_processed"]
    with CaptureQueriesContext(database) as queries:
        rests = [mirror.run() for _ in range(5)]
    assert trouble.broker.server_info()["total_commands_processed"] - commands <= 2
    assert len(queries) == 0
    assert all(rest > 0 for rest in rests)


def test_the_loop_is_rung_and_what_failed_is_a_row_at_once(trouble: Trouble) -> None:
    mirror, rung = trouble.mirror(), threading.Event()
    mirror.attach(rung.set)
    finish(mirror)
    mirror._next_turn = 0.0
    trouble.fail("one")
    trouble.changes.note("q", trouble.queue.shard_of("one"), "failed")
    assert rung.is_set()
    assert 0 < mirror.run() <= duty.FULL_CHECK_SECONDS
    assert tables() == {"failed": ["one x1"], "morgue": []}
    trouble.note()
    assert 0 < mirror.run() <= duty._BUSY_SECONDS, "a storm of failures is copied in turns with pauses"


def test_without_any_word_a_full_look_finds_everything(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = trouble.mirror()
    trouble.fail("one", "two")
    trouble.copied(mirror)
    trouble.fail("three")
    trouble.queue.cancel("one")
    assert trouble.copied(mirror)["failed"] == ["one x1", "two x1"]
    monkeypatch.setattr(mirror, "_next_full", 0.0)
    assert trouble.copied(mirror)["failed"] == ["three x1", "two x1"]


def test_a_turn_ends_in_time_and_a_large_shard_keeps_no_other_waiting(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = Trouble(delayq), Trouble(delayq, name="small")
    large.bury(*map(str, range(600)))
    small.bury("one")
    monkeypatch.setattr(duty, "_TURN_SECONDS", 0.0)
    mirror = large.mirror(queues=[large.queue, small.queue])
    assert mirror.run() == 0.0
    counts = [MorgueJob.objects.filter(queue=name).count() for name in ("q", "small")]
    assert 0 < counts[0] < 600
    assert counts[1] == 1
    assert len(large.copied(large.mirror(queues=[large.queue, small.queue]))["morgue"]) == 601, "another one goes on"


# -- pages and positions ---------------------------------------------------------------------------------------------


def test_many_rows_are_copied_in_pages_and_a_second_mirror_begins_behind_them(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(delayq)
    trouble.fail(*map(str, range(600)))
    asked: list[int] = []
    page = IndexMirror._page

    def spy(index: IndexMirror, low: int) -> Any:
        asked.append(low)
        return page(index, low)

    monkeypatch.setattr(IndexMirror, "_page", spy)
    mirror = IndexMirror(trouble.queue, 0, FAILED)
    assert len(list(mirror.copy())) >= 2
    assert FailedJob.objects.count() == 600
    assert asked[0] == 0
    newest = FailedJob.objects.latest("updated_us").updated_us
    asked.clear()
    list(mirror.copy())
    assert asked == [newest // 1000 * 1000 - 1]


def test_two_mirrors_at_once_make_the_same_rows_once(delayq: Broker) -> None:
    trouble = Trouble(delayq, shards=2)
    trouble.fail(*[f"f{n}" for n in range(120)])
    trouble.bury(*[f"m{n}" for n in range(120)])
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                finish(trouble.mirror(changes=Changes()))
        except BaseException as error:
            errors.append(error)
        finally:
            database.close()

    def stir() -> None:
        for n in range(0, 120, 2):
            trouble.queue.cancel(f"f{n}")
            trouble.queue.kick(f"m{n}")

    threads = [threading.Thread(target=target) for target in (work, work, stir)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    world = trouble.copied(trouble.mirror(changes=Changes()))
    assert world["failed"] == sorted(f"f{n} x1" for n in range(1, 120, 2))
    assert world["morgue"] == sorted(f"m{n} exhausted" for n in range(1, 120, 2))


def test_a_failure_behind_the_cursor_in_time_is_found_by_counting(trouble: Trouble) -> None:
    """A clock that was set back, or a replica whose clock lags, gives scores that lie before the cursor."""
    trouble.fail("old", "now")
    mirror = trouble.mirror()
    trouble.copied(mirror)
    trouble.fail("late")
    number = trouble.queue.shard_of("late")
    key = trouble.queue.shard(number).names["failed"]
    trouble.broker.client.zadd(key, {"late": 1_600_000_000_000_000})
    trouble.note()
    assert trouble.copied(mirror)["failed"] == ["late x1", "now x1", "old x1"]
    assert FailedJob.objects.get(job_id="late").updated_us == 1_600_000_000_000_000


def test_one_row_of_many_that_is_wrong_is_found_without_reading_the_jobs(
    delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(delayq)
    trouble.fail(*map(str, range(1200)))
    mirror = trouble.mirror()
    trouble.copied(mirror)
    trouble.queue.cancel("700")
    views: list[int] = []
    read = reading.jobs_of

    def spy(deployment: Any, members: Any, **options: Any) -> Any:
        views.extend(map(len, members.values()))
        return read(deployment, members, **options)

    monkeypatch.setattr("django_delayq.mirror.duty.jobs_of", spy)
    trouble.note()
    assert len(trouble.copied(mirror)["failed"]) == 1199
    assert not FailedJob.objects.filter(job_id="700").exists()
    assert sum(views) == 0


# -- the queues ------------------------------------------------------------------------------------------------------


def test_flushall_empties_the_tables_and_what_fails_later_is_copied(redis_client: Any, trouble: Trouble) -> None:
    trouble.fail("one", "two")
    trouble.bury("three")
    mirror = trouble.mirror()
    trouble.copied(mirror)
    redis_client.flushall()
    trouble.fail("two", "four")
    trouble.note()
    assert trouble.copied(mirror) == {"failed": ["four x1", "two x1"], "morgue": []}


def test_rows_follow_a_queue_through_a_change_of_its_shards(trouble: Trouble) -> None:
    trouble.fail(*[f"f{n}" for n in range(20)])
    trouble.bury(*[f"m{n}" for n in range(20)])
    mirror = trouble.mirror()
    trouble.copied(mirror)
    trouble.broker.reshard("q", 5)
    trouble.fail("f1", "g1", "g2")
    trouble.queue.cancel("f2")
    trouble.queue.kick("m1")
    trouble.bury("m2")
    trouble.note()
    world = trouble.copied(mirror)
    assert world["failed"] == sorted(["f1 x2", "g1 x1", "g2 x1", "f0 x1", *[f"f{n} x1" for n in range(3, 20)]])
    assert world["morgue"] == sorted(["m0 exhausted", "m2 exhausted", *[f"m{n} exhausted" for n in range(2, 20)]])
    for n in range(20):
        trouble.queue.cancel(f"f{n}")
        trouble.queue.discard(f"m{n}")
    trouble.queue.discard("m2")
    trouble.queue.cancel("m1")
    # What the caretaker does when nobody sends a call to the old epoch again any more.
    trouble.broker.registry.change_layout("q", lambda layout: layouts.without_epoch(layout, 0))
    world = trouble.copied(mirror)
    assert world == {"failed": ["g1 x1", "g2 x1"], "morgue": []}


def test_a_deleted_queue_loses_its_rows_and_others_keep_theirs(trouble: Trouble) -> None:
    other = Trouble(trouble.broker, name="other")
    other.fail("kept")
    trouble.fail("one")
    trouble.bury("two")
    both = trouble.mirror(queues=[trouble.queue, other.queue])
    trouble.copied(both)
    mirror = trouble.mirror(changes=Changes())
    finish(mirror)
    trouble.broker.delete_queue("q", force=True)
    assert trouble.copied(mirror) == {"failed": ["kept x1"], "morgue": []}


def test_rebuild_makes_the_tables_anew(trouble: Trouble) -> None:
    trouble.fail("one", "two")
    trouble.bury("three")
    other = Trouble(trouble.broker, name="other")
    other.fail("four")
    wrong = {
        "task": "?",
        "key": uuid.uuid4(),
        "shard": 7,
        "priority": 4,
        "failures": 1,
        "crashes": 0,
        "due_at": datetime.now(UTC),
        "updated_us": 1,
    }
    FailedJob.objects.create(queue="gone", job_id="ghost", failed_at=datetime.now(UTC), **wrong)
    FailedJob.objects.create(queue="q", job_id="ghost", failed_at=datetime.now(UTC), **wrong)
    assert rebuild(["q"]) == {"failed": 2, "morgue": 1}
    assert tables()["failed"] == ["ghost x1", "one x1", "two x1"]
    assert rebuild() == {"failed": 3, "morgue": 1}
    assert tables() == {"failed": ["four x1", "one x1", "two x1"], "morgue": ["three exhausted"]}


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.fixture
def keep(settings: Any, delayq: Broker) -> Callable[..., Trouble]:
    """``keep(max_rows=…, keep_days=…)``: a queue whose mirror is limited."""

    def limited(shards: int = 1, **limits: Any) -> Trouble:
        settings.DELAYQ = {**settings.DELAYQ, "MIRROR": limits}
        return Trouble(connections.broker(), shards=shards)

    return limited


def test_of_too_many_rows_the_newest_are_kept(keep: Callable[..., Trouble]) -> None:
    trouble = keep(max_rows=10)
    trouble.bury(*[f"m{n:02}" for n in range(30)])
    mirror = trouble.mirror()
    assert trouble.copied(mirror)["morgue"] == [f"m{n} exhausted" for n in range(20, 30)]
    trouble.bury("m30")
    trouble.note()
    assert trouble.copied(mirror)["morgue"] == [f"m{n} exhausted" for n in range(21, 31)]
    trouble.queue.discard("m25")
    trouble.note()
    assert trouble.copied(mirror)["morgue"] == sorted(f"m{n} exhausted" for n in range(20, 31) if n != 25)


def test_the_shards_of_a_queue_together_keep_at_least_as_many_rows_as_are_to_be_kept(
    keep: Callable[..., Trouble],
) -> None:
    trouble = keep(shards=3, max_rows=5)
    trouble.bury(*[f"m{number:02}" for number in range(30)])
    assert 5 <= len(trouble.copied()["morgue"]) <= 7


def test_what_is_too_old_for_the_tables_stays_in_redis_only(keep: Callable[..., Trouble]) -> None:
    trouble = keep(keep_days=30)
    trouble.bury("old", "new")
    key = trouble.queue.shard(0).names["morgue"]
    (old,) = [member for member in trouble.broker.client.zrange(key, 0, -1) if member.startswith(b"old\0")]
    mirror = trouble.mirror()
    assert len(trouble.copied(mirror)["morgue"]) == 2
    day_us = 86_400_000_000
    trouble.broker.client.zincrby(key, -31 * day_us, old)
    trouble.note()
    assert trouble.copied(mirror)["morgue"] == ["new exhausted"]
    assert trouble.state("old") == "morgue"


@pytest.mark.parametrize("wrong", [{"keep_days": 0}, {"max_rows": 0}, {"max_rows": "many"}, {"keep": 3}], ids=str)
def test_limits_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="MIRROR"):
        Conf.read("DELAYQ", {"MIRROR": wrong})


# -- reviews ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(delayq: Broker) -> Trouble:
    """One queue with one shard."""
    return Trouble(delayq)


def reviewed(alone: Trouble, *, fully: bool = False) -> list[str]:
    """The rows of failed jobs after one review."""
    for _ in IndexMirror(alone.queue, 0, FAILED).review(fully=fully):
        pass
    return tables()["failed"]


def test_a_full_look_finds_one_row_too_many_beside_one_too_few(alone: Trouble) -> None:
    alone.fail("a", "b", "c")
    finish(alone.mirror())
    FailedJob.objects.filter(job_id="b").update(job_id="nobody")
    assert reviewed(alone) == ["a x1", "c x1", "nobody x1"], "the numbers are equal"
    assert reviewed(alone, fully=True) == ["a x1", "b x1", "c x1"]


def test_a_row_that_was_stored_anew_meanwhile_is_not_deleted(alone: Trouble) -> None:
    """It had an old score when it was read; another dispatcher has copied the last failure since."""
    alone.fail("a", "b", "c")
    finish(alone.mirror())
    alone.queue.cancel("b")
    last = FailedJob.objects.get(job_id="c").updated_us + 1_000_000

    def meanwhile(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith("DELETE") and not done:
            done.append(sql)
            FailedJob.objects.filter(job_id="b").update(updated_us=last)
        return execute(sql, *args)

    done: list[str] = []
    with database.execute_wrapper(meanwhile):
        assert "b x1" in reviewed(alone)
    assert done


def test_a_review_that_broke_off_is_made_again(alone: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    alone.fail("old")
    alone.fail("new")
    mirror = alone.mirror()
    finish(mirror)
    FailedJob.objects.filter(job_id="old").delete()
    alone.note()
    mirror._next_turn = 0.0
    for shadow in mirror._mirrors.values():
        shadow.review_at = 0.0

    review = IndexMirror.review

    def broken(shadow: IndexMirror, **options: Any) -> Iterator[None]:
        if shadow.place is FAILED:
            raise ConnectionError("the database went away")
        return review(shadow, **options)

    with monkeypatch.context() as patch:
        patch.setattr(IndexMirror, "review", broken)
        with pytest.raises(ConnectionError):
            mirror.run()
    assert alone.copied(mirror)["failed"] == ["new x1", "old x1"]


def test_more_entries_of_one_moment_than_a_page_are_all_rows(alone: Trouble) -> None:
    idents = [f"j{number}" for number in range(2500)]
    alone.fail("first", "last", *idents)
    key = alone.queue.shard(0).names["failed"]
    moment = alone.broker.client.zscore(key, "j0")
    alone.broker.client.zadd(key, {**dict.fromkeys(idents, moment), "first": moment - 5, "last": moment + 5})
    assert len(reviewed(alone, fully=True)) == 2502
    alone.queue.cancel("j300")
    FailedJob.objects.filter(job_id="j400").delete()
    FailedJob.objects.filter(job_id="first").delete()
    assert set(reviewed(alone, fully=True)) == {f"{ident} x1" for ident in ("first", "last", *idents)} - {"j300 x1"}


def test_thousands_of_rows_without_jobs_go_in_batches_beside_one_that_stays(alone: Trouble) -> None:
    alone.fail(*[f"j{number}" for number in range(2500)])
    finish(alone.mirror())
    bulk.change(alone.queue, bulk.DELETE_FAILED)
    alone.fail("new")
    deletions: list[str] = []

    def count(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        deletions.extend([sql] * sql.startswith("DELETE"))
        return execute(sql, *args)

    with database.execute_wrapper(count):
        assert reviewed(alone) == ["new x1"]
    assert len(deletions) == 3


def test_a_row_that_another_dispatcher_stores_meanwhile_is_kept(alone: Trouble, monkeypatch: Any) -> None:
    alone.fail("old")
    finish(alone.mirror())
    page = IndexMirror._page

    def meanwhile(index: IndexMirror, low: int) -> Any:
        found = page(index, low)
        if not others:
            others.append(1)
            alone.fail("new")
            list(IndexMirror(alone.queue, 0, FAILED).copy())
        return found

    others: list[int] = []
    monkeypatch.setattr(IndexMirror, "_page", meanwhile)
    assert reviewed(alone, fully=True) == ["new x1", "old x1"]
    assert others


def test_a_job_that_left_the_index_while_it_was_read_is_no_row(alone: Trouble) -> None:
    alone.fail("gone", "replaced", "stays")
    shadow = IndexMirror(alone.queue, 0, FAILED)
    entries, _ = shadow._page(0)
    alone.queue.cancel("gone")
    alone.put("replaced", on_conflict="replace", due_policy="replace")
    assert shadow.store(entries) == {b"stays"}


# -- in a worker -----------------------------------------------------------------------------------------------------


@pytest.fixture
def worker(delayq: Broker) -> Iterator[Callable[[], None]]:
    """A worker of the queue "mills", in this process."""
    made = []

    def start() -> None:
        made.append(wiring.make_worker(wiring.make_config(conf(), queues=("mills",), threads=1)))
        made[0].start()

    yield start
    for one in made:
        one.stop(2.0)
    databases.close_all()


def test_what_a_worker_fails_is_a_row_within_a_second_and_goes_when_it_is_done(
    worker: Callable[[], None], request: pytest.FixtureRequest
) -> None:
    fate = {"good": False}

    @task(name="mills.grind", queue="mills", retry_in=3600, max_attempts=2)
    def grind() -> None:
        if not fate["good"]:
            raise ZeroDivisionError("no corn")

    request.addfinalizer(lambda: registry.remove(grind))
    worker()
    wait_until(lambda: FailedJob.objects.count() == 0, what="the table")
    schedule(grind, id="one")
    began_at = time.monotonic()
    wait_until(FailedJob.objects.exists, 20, what="the row of the failure")
    assert time.monotonic() - began_at < 5  # about 0.3 s; the machine of the tests may be busy
    row = FailedJob.objects.get()
    assert (row.job_id, row.error_class, row.error_message) == ("one", "ZeroDivisionError", "no corn")
    fate["good"] = True
    assert act("retry", [row]) == {"retried": 1}
    wait_until(lambda: not FailedJob.objects.exists(), 20, what="the end of the row")
    fate["good"] = False
    schedule(grind, id="two", max_attempts=1)
    wait_until(MorgueJob.objects.exists, 20, what="the row of the burial")
    assert (MorgueJob.objects.get().job_id, FailedJob.objects.exists()) == ("two", False)
