"""The dispatchers fire each tick once, whatever happens to them, to Redis and to the runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.core import (
    Broker,
    InvalidJob,
    Misconfigured,
    QueueUnavailable,
    RedisConfig,
    Registry,
    Task,
    TaskOptions,
    connect,
)
from django_delayq.worker.recurring import LONGEST_REST_SECONDS, RecurringTicker, resume, run_now, work_of
from tests.support.core_stored import last_tick
from tests.support.duty_stage import EVERY, ID, T0, Changes, Loop, RedisHealth, Tower, recurring, work
from tests.support.older_copy import OlderCopy
from tests.support.worker_stage import config, eventually, working

# --- a tick


def test_a_task_seen_for_the_first_time_waits_for_its_next_tick(tower: Tower) -> None:
    tower.wait(30_000)
    dispatcher = tower.dispatcher()
    assert dispatcher.run() == LONGEST_REST_SECONDS
    assert tower.picture() == {}
    tower.wait(EVERY - 30_000 - 10_000)
    assert dispatcher.run() == pytest.approx(10, abs=0.01)
    tower.wait(10_000)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_a_restart_before_the_first_tick_does_not_begin_anew(tower: Tower) -> None:
    tower.started()
    tower.wait(EVERY)
    tower.dispatcher().run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_three_dispatchers_fire_each_tick_once(tower: Tower) -> None:
    dispatchers = [tower.started() for _ in range(3)]
    dues = []
    for _ in range(4):
        tower.wait(EVERY)
        for dispatcher in dispatchers:
            dispatcher.run()
        jobs = tower.take()
        dues.append([int(job.due_ms - T0) for job in jobs])
        tower.done(*jobs)
        for dispatcher in dispatchers:
            dispatcher.run()
    assert dues == [[EVERY], [2 * EVERY], [3 * EVERY], [4 * EVERY]]
    assert tower.picture() == {}
    assert tower.counters()["created"] == 4


def test_the_job_of_a_tick_has_the_priority_and_the_limit_of_its_task(tower: Tower) -> None:
    dispatcher = tower.started(priority=1, expires=7)
    tower.wait(EVERY)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY} p1"]}
    (job,) = tower.take()
    assert (job.task, job.args, job.options) == ("work", b"", {"expires_ms": T0 + EVERY + 7000, "tick_ms": T0 + EVERY})


# --- runs that take longer than the interval


def test_a_tick_that_meets_a_waiting_run_is_that_run(tower: Tower) -> None:
    dispatcher = tower.started()
    for _ in range(3):
        tower.wait(EVERY)
        dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_a_run_longer_than_the_interval_is_followed_by_one_run_and_never_overlapped(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.wait(EVERY)
    dispatcher.run()
    running = tower.take_one()
    for _ in range(3):
        tower.wait(EVERY)
        dispatcher.run()
        assert tower.take() == []
    assert tower.picture()["gated"] == [f"{ID} +{2 * EVERY}"]
    tower.done(running)
    assert tower.picture() == {"waiting": [f"{ID} +{2 * EVERY}"]}
    tower.done(*tower.take())
    dispatcher.run()
    assert tower.picture() == {}


def test_a_failed_run_that_waits_for_its_next_attempt_runs_at_the_next_tick(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.wait(EVERY)
    dispatcher.run()
    tower.failed(tower.take_one(), delay_ms=10 * EVERY)
    tower.wait(EVERY)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{2 * EVERY}"]}


def test_a_tick_after_a_failed_run_does_not_put_its_earlier_attempt_off(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.wait(EVERY)
    dispatcher.run()
    tower.wait(EVERY - 1000)
    tower.failed(tower.take_one(), delay_ms=500)
    tower.wait(1000)
    dispatcher.run()
    assert tower.picture()["waiting"] == [f"{ID} +{2 * EVERY - 500}"]


# --- missed ticks


def test_of_many_missed_ticks_the_latest_is_fired_at_once(tower: Tower) -> None:
    tower.started()
    tower.wait(7 * EVERY + 40_000)
    back = [tower.dispatcher() for _ in range(2)]
    for dispatcher in back:
        dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{7 * EVERY}"]}
    tower.done(*tower.take())
    for dispatcher in (*back, tower.dispatcher()):
        dispatcher.run()
    assert tower.picture() == {}


def test_a_skipped_tick_is_logged_once_whoever_skips_it_and_however_often_they_start(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    tower.started(missed="skip")
    tower.wait(7 * EVERY + 40_000)
    with caplog.at_level(logging.INFO, "django_delayq.worker.recurring"):
        dispatchers = [tower.dispatcher(missed="skip") for _ in range(3)]
        for dispatcher in (*dispatchers, tower.dispatcher(missed="skip")):
            dispatcher.run()
    assert [one.getMessage().endswith("was missed and is skipped") for one in caplog.records] == [True]
    assert last_tick(tower.queue, ID) is None, "it was not fired"
    tower.wait(EVERY - 40_000)
    tower.dispatcher(missed="skip").run()
    assert tower.picture() == {"waiting": [f"{ID} +{8 * EVERY}"]}


def test_a_tick_that_is_a_little_late_is_not_missed(tower: Tower) -> None:
    tower.started(missed="skip")
    tower.wait(EVERY + 9_000)
    tower.dispatcher(missed="skip").run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_a_new_schedule_has_missed_nothing(tower: Tower) -> None:
    tower.started()
    tower.wait(30 * 60_000)
    changed = tower.started(cron="*/10 * * * *")
    assert tower.picture() == {}
    tower.wait(10 * 60_000)
    changed.run()
    (waiting,) = tower.picture()["waiting"]
    assert (T0 + int(waiting.split()[1])) % 600_000 == 0


def test_ticks_of_a_paused_queue_come_when_it_goes_on(tower: Tower) -> None:
    dispatcher = tower.started()
    number = tower.queue.numbers[0]
    tower.queue.rule(number, {"paused_in": 0})
    tower.wait(3 * EVERY)
    assert dispatcher.run() == pytest.approx(5, abs=0.01)
    assert tower.picture() == {}
    tower.queue.rule(number, {})
    tower.wait(5_000)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{3 * EVERY}"]}


def test_a_tick_waits_for_room_in_a_full_queue(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.put("other", at=9 * EVERY)
    tower.broker.limit("default", max_length=1)
    tower.wait(EVERY)
    assert dispatcher.run() == pytest.approx(5, abs=0.01)
    tower.queue.cancel("other")
    tower.wait(5_000)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


# --- trouble


def test_a_clock_that_was_put_back_by_little_more_than_an_hour_does_not_silence_the_task(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.wait(40 * EVERY)
    dispatcher.run()
    tower.done(*tower.take())
    tower.wait(-38 * EVERY)
    dispatcher.run()
    tower.wait(EVERY)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{3 * EVERY}"]}


def test_an_id_that_belongs_to_another_task_is_reported_and_left_alone(
    tower: Tower, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = tower.started()
    tower.put(ID, task="other", at=9 * EVERY)
    tower.wait(EVERY)
    with caplog.at_level(logging.ERROR, "django_delayq.worker"):
        assert dispatcher.run() == LONGEST_REST_SECONDS
    assert "a job of another task lives under the id 'recurring:work'" in caplog.text
    assert tower.picture() == {"waiting": [f"{ID} +{9 * EVERY}"]}


@pytest.mark.broken_on_purpose
def test_a_queue_that_is_broken_does_not_stop_the_others(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    registry = recurring()
    registry.add(Task(work, name="broken", options=TaskOptions(queue="broken", every=EVERY / 1000)))
    now = [broker.now_ms()]
    broker.now_ms = lambda: now[0]  # type: ignore[method-assign]
    dispatcher = RecurringTicker(broker, registry)
    dispatcher.run()
    broken = broker.queue("broken")
    meta = broken.shard(broken.numbers[0]).names["meta"]
    broker.client.delete(meta)
    broker.client.set(meta, "not a hash")
    now[0] += EVERY
    with caplog.at_level(logging.ERROR, "django_delayq.worker"):
        dispatcher.run()
    assert "recurring-ticker: broken failed and is retried; the rest goes on" in caplog.messages
    assert broker.inspector.get("default", ID) is not None
    broker.client.delete(meta)


def test_redis_may_go_and_come_back(redis_factory: Callable[..., Any], proxy_factory: Callable[..., Any]) -> None:
    proxy = proxy_factory(redis_factory(tcp=True).address)
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection)
    registry = recurring(every=1)
    dispatcher = RecurringTicker(broker, registry)
    dispatcher.run()
    proxy.refuse()
    with pytest.raises(QueueUnavailable):
        eventually(lambda: dispatcher.run() is None, "a tick that cannot be fired")
    health = RedisHealth()
    loop = Loop("recurring-ticker", dispatcher, health)
    loop.start()
    eventually(lambda: health.lasting() > 0)
    proxy.passing()
    eventually(lambda: broker.inspector.get("default", ID))
    loop.close()
    connection.close()


# --- what Redis lost


def test_a_tick_that_was_lost_with_its_job_is_fired_again(tower: Tower) -> None:
    changes = Changes()
    dispatcher = tower.dispatcher(changes=changes)
    rings: list[int] = []
    dispatcher.attach(lambda: rings.append(1))
    dispatcher.run()
    copy = OlderCopy(tower.broker.client)
    tower.wait(EVERY)
    dispatcher.run()
    copy.put_back()
    tower.wait(10)
    dispatcher.run()
    assert tower.picture() == {}, "nobody has noticed it yet"
    changes.note("default", 0, "lost")
    assert rings == [1]
    assert dispatcher.run() == LONGEST_REST_SECONDS
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_a_tick_that_was_not_lost_is_not_fired_again_when_something_else_was(tower: Tower) -> None:
    changes = Changes()
    dispatcher = tower.dispatcher(changes=changes)
    dispatcher.run()
    tower.wait(EVERY)
    dispatcher.run()
    tower.done(*tower.take())
    changes.note("default", 0, "lost")
    dispatcher.run()
    assert tower.picture() == {}


class AskedForTheTime(Broker):
    """Broker that knows how often Redis's clock was read."""

    reads = 0

    def now_ms(self) -> float:
        self.reads += 1
        return super().now_ms()


def test_the_dispatcher_of_a_worker_is_told_what_was_lost(broker: Broker) -> None:
    """It reads Redis's clock again, as it does at its start and then once a minute."""
    changes, asked = Changes(), AskedForTheTime(broker.connection, prefix=broker.prefix)
    with working(asked, recurring(every=86_400), changes=changes):
        eventually(lambda: asked.reads == 1)
        changes.note("default", 0, "lost")
        eventually(lambda: asked.reads == 2)


# --- costs and wiring


def test_without_recurring_tasks_no_command_is_sent_and_no_thread_runs(broker: Broker) -> None:
    registry = Registry()
    registry.add(Task(work, name="work"))
    no_broker: Any = None
    assert RecurringTicker(no_broker, registry).run() == LONGEST_REST_SECONDS
    with working(broker, registry):
        assert "delayq-recurring-ticker" not in {thread.name for thread in threading.enumerate()}
    with working(broker, recurring()):
        assert "delayq-recurring-ticker" in {thread.name for thread in threading.enumerate()}
    with working(broker, recurring(), config(dispatcher=False)):
        assert "delayq-recurring-ticker" not in {thread.name for thread in threading.enumerate()}


def test_waiting_for_a_tick_costs_one_look_at_the_clock_a_turn(broker: Broker) -> None:
    def commands() -> dict[str, int]:
        said = broker.client.info("commandstats")
        return {name: said[f"cmdstat_{name}"]["calls"] for name in ("time", "evalsha") if f"cmdstat_{name}" in said}

    dispatcher = RecurringTicker(broker, recurring(every=86_400))
    dispatcher.run()
    before = commands()
    for _ in range(50):
        assert dispatcher.run() == LONGEST_REST_SECONDS
    assert commands() == {**before, "time": before["time"] + 50}


def test_a_slow_answer_of_the_clock_delays_the_next_tick_by_half_of_its_time_at_most(tower: Tower) -> None:
    dispatcher = tower.started()

    def slow() -> float:
        time.sleep(0.3)
        return tower.us / 1000

    tower.wait(EVERY - 10_000)
    tower.broker.now_ms = slow  # type: ignore[method-assign]
    assert 9.5 < dispatcher.run() < 9.9


def test_a_dispatcher_alone_fires_too_in_the_time_zone_of_its_project(broker: Broker) -> None:
    registry = recurring(cron="* * * * *")
    with working(broker, registry, config(consumer=False, timezone="Asia/Tokyo")):
        queue = broker.queue("default")
        sight = eventually(lambda: broker.client.hget(queue.shard(queue.numbers[0]).names["meta"], f"sight:{ID}"))
    assert sight.decode().endswith(" * * * * * Asia/Tokyo")


def test_a_worker_does_not_start_with_a_schedule_that_it_cannot_read(broker: Broker) -> None:
    with (
        pytest.raises(Misconfigured, match=r"task work: cron '61 \* \* \* \*'"),
        working(broker, recurring(cron="61 * * * *")),
    ):
        pass


# --- pauses of recurring tasks


def test_a_paused_task_fires_no_tick_and_the_latest_one_when_it_is_resumed(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.pause("work")
    tower.wait(3 * EVERY)
    assert dispatcher.run() == pytest.approx(5, abs=0.01)
    assert tower.picture() == {}
    tower.resume("work")
    tower.wait(5_000)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{3 * EVERY}"]}


def test_ticks_missed_during_a_pause_can_be_left_out(tower: Tower) -> None:
    dispatcher = tower.started(missed="skip")
    tower.pause("work")
    tower.wait(3 * EVERY)
    dispatcher.run()
    tower.wait(EVERY / 2)
    tower.resume("work")
    dispatcher.run()
    assert tower.picture() == {}
    tower.wait(EVERY / 2)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{4 * EVERY}"]}


def test_a_pause_survives_restarts_of_all_processes(tower: Tower) -> None:
    tower.started()
    tower.pause("work")
    since = tower.paused_since()
    tower.pause("work")
    assert tower.paused_since() == since, "it keeps its beginning"
    tower.wait(EVERY)
    for _ in range(3):
        tower.dispatcher().run()
    assert tower.picture() == {}
    assert tower.paused_since().keys() == {"work"}


def test_a_pause_concerns_one_task_only(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.pause("other")
    tower.wait(EVERY)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_run_now_adds_a_run_and_leaves_the_ticks_alone(tower: Tower) -> None:
    dispatcher = tower.started()
    work = work_of(recurring(), "work")
    assert run_now(tower.broker, work) == "created"
    assert run_now(tower.broker, work) == "replaced", "at most one waits"
    job = tower.take_one()
    assert job.id == ID
    assert run_now(tower.broker, work) == "gated", "at most one is active"
    tower.done(job)
    tower.done(tower.take_one())
    tower.wait(EVERY)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_what_is_no_recurring_task_is_refused() -> None:
    with pytest.raises(InvalidJob, match="'nightly' is no recurring task of this project; these are: work"):
        work_of(recurring(), "nightly")


def test_a_pause_holds_for_a_task_that_was_renamed(tower: Tower) -> None:
    dispatcher = tower.started(aliases=("shop.work",))
    tower.pause("shop.work")
    tower.wait(EVERY)
    dispatcher.run()
    assert tower.picture() == {}
    assert resume(tower.broker, recurring(aliases=("shop.work",)), "work") == "work"
    assert tower.paused_since() == {}
    tower.wait(5_000)
    dispatcher.run()
    assert tower.picture() == {"waiting": [f"{ID} +{EVERY}"]}


def test_a_pause_of_a_task_that_is_gone_can_be_ended(tower: Tower) -> None:
    tower.pause("shop.gone")
    assert resume(tower.broker, recurring(), "shop.gone") == "shop.gone"
    assert tower.paused_since() == {}
    with pytest.raises(InvalidJob, match=r"'shop\.gone' is no recurring task of this project"):
        resume(tower.broker, recurring(), "shop.gone")
