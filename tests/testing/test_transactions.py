"""In transactions of tests: TestCase, its captureOnCommitCallbacks, pytest-django's, and what jobs do in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_delayq import LeakedTransaction, schedule
from django_delayq.testing import Fake

from .works import in_transaction, leak, note, once, tell, write_group


@pytest.mark.django_db
def test_in_a_testcase_jobs_wait_for_a_commit_that_never_comes_and_are_told_of(delayq_fake: Fake) -> None:
    schedule(note, "x", id="1")
    schedule(tell, id="2")
    with pytest.raises(AssertionError) as failed:
        delayq_fake.assert_scheduled(note)
    assert str(failed.value).splitlines()[-1] == (
        "2 jobs wait for the commit (schedule works.note 1, schedule works.tell 2); wrap the call in "
        "captureOnCommitCallbacks(execute=True), or in pytest-django's "
        "django_capture_on_commit_callbacks(execute=True)"
    )


@pytest.mark.django_db
def test_running_nothing_because_of_a_missing_commit_is_warned_of(delayq_fake: Fake, done: list[Any]) -> None:
    pending = "immediate\\(\\) did not run every job: 1 job waits for the commit"
    with pytest.warns(UserWarning, match=pending) as of_immediate, delayq_fake.immediate():
        schedule(note, "x")
    nothing = r"run_due\(\) ran no job: 1 job waits for the commit \(schedule works.note"
    with pytest.warns(UserWarning, match=nothing) as of_run_due:
        assert not delayq_fake.run_due()
        assert not delayq_fake.run_due()
    assert done == []
    assert [warning.filename for warning in (*of_immediate, *of_run_due)] == [__file__] * 3


@pytest.mark.django_db(transaction=True)
def test_the_error_of_a_job_is_raised_rather_than_the_warning_of_another(delayq_fake: Fake) -> None:
    delayq_fake.fail_next(note, ValueError("no"))
    with ExitStack() as stack, pytest.raises(ValueError, match="no"), delayq_fake.immediate():
        with transaction.atomic():
            schedule(note, "x")
        stack.enter_context(transaction.atomic())
        schedule(tell)


@pytest.mark.django_db
def test_captured_callbacks_send_them(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(note, "x", delay=60)
        delayq_fake.refute_scheduled(note)
    delayq_fake.assert_scheduled(note, args=["x"], delay=60)
    with pytest.raises(AssertionError) as failed:
        delayq_fake.assert_scheduled(tell)
    assert "wait for the commit" not in str(failed.value)


@pytest.mark.django_db
def test_what_a_job_schedules_is_sent_when_it_ends_as_in_a_worker(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any], done: list[Any]
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(in_transaction, "x")
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        delayq_fake.run_due()
    assert (done, callbacks, Group.objects.get().name) == (["x"], [], "x")


@pytest.mark.django_db
def test_what_a_job_rolled_back_is_not_sent(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half() -> None:
        schedule(note, "before")
        with transaction.atomic():
            schedule(note, "inside")
            raise ZeroDivisionError

    monkeypatch.setattr(tell, "func", half)
    with django_capture_on_commit_callbacks(execute=True):
        schedule(tell)
    with pytest.raises(ZeroDivisionError):
        delayq_fake.run_due()
    assert [job.args for job in delayq_fake.scheduled_jobs(note)] == [["before"]]


@pytest.mark.django_db
def test_a_transaction_that_is_left_open_is_found(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    Group.objects.create(name="of the test")
    with django_capture_on_commit_callbacks(execute=True):
        schedule(leak, "x")
    with pytest.raises(LeakedTransaction, match="entered and not left"):
        delayq_fake.run_due()
    assert list(Group.objects.values_list("name", flat=True)) == ["of the test"]
    (buried,) = delayq_fake.scheduled_jobs(leak, state="morgue")
    assert buried.error["class"] == "django_delayq.core.errors.LeakedTransaction"


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_left_open_is_found_without_a_testcase_too(delayq_fake: Fake) -> None:
    schedule(leak, "x")
    with pytest.raises(LeakedTransaction, match="entered and not left"):
        delayq_fake.run_due()
    assert not Group.objects.exists()


@pytest.mark.django_db
def test_a_coroutine_task_sees_the_rows_of_the_test(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any], done: list[Any]
) -> None:
    Group.objects.create(name="of the test")
    with django_capture_on_commit_callbacks(execute=True):
        schedule(write_group, "of the job")
    delayq_fake.run_due()
    assert done == [2]


@pytest.mark.django_db
def test_exactly_once_is_once(
    delayq_fake: Fake, django_capture_on_commit_callbacks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        schedule(once, "x", id="1")
    queue = delayq_fake.broker.queue("notes")
    monkeypatch.setattr(queue, "settle", lambda settlements: [False for _ in settlements])  # the acks are lost
    assert [ran.outcome for ran in delayq_fake.run_due().runs] == ["lost"]
    monkeypatch.undo()
    assert [ran.outcome for ran in delayq_fake.run_due(until=60).runs] == ["succeeded"]
    assert Group.objects.count() == 1
