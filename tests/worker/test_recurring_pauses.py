"""Operators pause recurring tasks: no tick fires, and what was missed meanwhile follows the option ``missed``."""

from __future__ import annotations

import pytest

from django_delayq.core import InvalidJob
from django_delayq.worker.recurring import resume, run_now, work_of
from tests.support.duty_stage import EVERY, ID, Tower, recurring


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


def test_a_job_of_an_earlier_tick_runs_during_a_pause(tower: Tower) -> None:
    dispatcher = tower.started()
    tower.wait(EVERY)
    dispatcher.run()
    tower.pause("work")
    assert tower.take_one().id == ID


def test_run_now_adds_a_run_and_leaves_the_ticks_alone(tower: Tower) -> None:
    dispatcher = tower.started()
    work = work_of(recurring(), "work")
    now_ms = tower.us // 1000
    tower.broker.now_ms = lambda: now_ms  # type: ignore[method-assign]
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


def test_a_run_is_possible_during_a_pause(tower: Tower) -> None:
    tower.pause("work")
    assert run_now(tower.broker, work_of(recurring(), "work")) == "created"


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


def test_a_task_is_found_by_its_alias() -> None:
    assert work_of(recurring(aliases=("shop.work",)), "shop.work").task.name == "work"
