"""immediate(): a job is run when it is scheduled, and only where that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from django_delayq import aschedule, schedule, schedule_many
from django_delayq.testing import Fake

from .works import again, chain, decide, in_transaction, note, sync, tell, write_group


def test_a_job_is_done_when_schedule_returns(delayq_fake: Fake, done: list[Any]) -> None:
    with delayq_fake.immediate():
        handle = schedule(note, "x", delay=3600)
        assert (done, handle.outcome, handle.state()) == (["x"], "created", None)


def test_debug_mode_switches_nothing_on(delayq_fake: Fake, settings: Any, done: list[Any]) -> None:
    settings.DEBUG = True
    schedule(note, "x")
    assert done == []


def test_what_it_raises_comes_at_the_end_of_the_block(delayq_fake: Fake, done: list[Any]) -> None:
    delayq_fake.fail_next(note, ValueError("no"))
    with pytest.raises(ValueError, match="no"), delayq_fake.immediate():
        schedule(note, "x")
        schedule(note, "y")
    (job,) = delayq_fake.scheduled_jobs(note)
    assert (job.args, job.state, job.failures, done) == (["x"], "delayed", 1, ["y"])


def test_a_verdict_is_no_error(delayq_immediate: Fake) -> None:
    schedule(decide, "release", id="1")
    assert [job.state for job in delayq_immediate.scheduled_jobs()] == ["delayed"]


def test_many_and_merged_jobs_and_those_of_jobs(delayq_immediate: Fake, done: list[Any]) -> None:
    schedule_many(note, [{"args": ["a"]}, {"args": ["b"], "delay": 60}])
    schedule(sync, id="1", payload=1)
    schedule(sync, id="1", payload=2)
    schedule(chain, 2)
    assert done == ["a", "b", {"1": [1]}, {"1": [2]}, 2, 1, 0]
    assert not delayq_immediate.scheduled_jobs()


def test_a_task_that_schedules_itself_for_ever_is_found_out(delayq_fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_delayq.testing.kit.SELF_SCHEDULING", 20)
    with pytest.raises(RuntimeError, match=r"has run 20 jobs .*if a task schedules itself"), delayq_fake.immediate():
        schedule(again)


def test_what_is_scheduled_outside_of_the_block_waits_on(delayq_fake: Fake, done: list[Any]) -> None:
    schedule(note, "before")
    with delayq_fake.immediate():
        schedule(note, "now")
    schedule(note, "behind")
    assert done == ["now"]
    delayq_fake.run_due()
    assert done == ["now", "before", "behind"]


def test_the_errors_of_a_block_inside_another_come_at_its_own_end(delayq_fake: Fake) -> None:
    delayq_fake.fail_next(note, ValueError("no"))
    with delayq_fake.immediate():
        with pytest.raises(ValueError, match="no"), delayq_fake.immediate():
            schedule(note, "x")
        schedule(note, "y")


@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_it_runs_on_the_commit(delayq_immediate: Fake, done: list[Any]) -> None:
    with transaction.atomic():
        schedule(note, "x")
        assert done == []
    assert done == ["x"]


@pytest.mark.django_db
def test_in_a_testcase_it_runs_with_the_captured_callbacks(
    delayq_immediate: Fake, django_capture_on_commit_callbacks: Callable[..., Any], done: list[Any]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(in_transaction, "x")
        assert done == []
    assert (done, Group.objects.count()) == (["x"], 1)


@pytest.mark.django_db
def test_what_it_raises_after_a_commit_comes_at_the_end_of_the_block(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any], done: list[Any]
) -> None:
    with pytest.raises(ZeroDivisionError), delayq_fake.immediate() as fake:
        fake.fail_next(note, ZeroDivisionError("one"))
        with django_capture_on_commit_callbacks(execute=True):
            first, second = schedule(note, "x"), schedule(note, "y")
        assert (first.outcome, second.outcome, done) == ("created", "created", ["y"])


@pytest.mark.django_db(transaction=True)
def test_several_errors_come_together(delayq_fake: Fake) -> None:
    with pytest.raises(BaseExceptionGroup) as group, delayq_fake.immediate() as fake:
        fake.fail_next(note, ValueError, times=2)
        with transaction.atomic():
            schedule(note, "x")
            schedule(note, "y")
    assert [type(error) for error in group.value.exceptions] == [ValueError, ValueError]


@pytest.mark.django_db
def test_an_error_of_what_a_job_schedules_on_its_commit_comes_at_the_end_too(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match="no"), delayq_fake.immediate() as fake:
        fake.fail_next(note, ValueError("no"))
        with django_capture_on_commit_callbacks(execute=True):
            schedule(in_transaction, "x")
        assert Group.objects.count() == 1


def test_what_a_job_schedules_runs_after_it_as_in_a_worker(
    delayq_fake: Fake, monkeypatch: pytest.MonkeyPatch, done: list[Any]
) -> None:
    def handler() -> None:
        schedule(note, "x")
        done.append("handler")

    monkeypatch.setattr(tell, "func", handler)
    delayq_fake.fail_next(note, ValueError("no"))
    with pytest.raises(ValueError, match="no"), delayq_fake.immediate():
        schedule(tell)
        assert done == ["handler"]
    assert [(job.task, job.failures) for job in delayq_fake.scheduled_jobs()] == [("works.note", 1)]


@pytest.mark.django_db(transaction=True)
def test_from_a_coroutine(delayq_immediate: Fake, done: list[Any]) -> None:
    async def go() -> None:
        await aschedule(note, "x")
        await aschedule(write_group, "y")

    async_to_sync(go)()
    assert done == ["x", 1]


@pytest.mark.filterwarnings("ignore:schedule.. was called on a running event loop:RuntimeWarning")
def test_a_coroutine_that_calls_schedule_itself_is_told(delayq_immediate: Fake) -> None:
    async def go() -> None:
        schedule(note, "x")

    with pytest.raises(SynchronousOnlyOperation, match="under immediate\\(\\) aschedule"):
        asyncio.run(go())
