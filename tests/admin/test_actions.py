"""Retry now, retry in, discard and bury: for chosen rows and for all that match, on real jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.test import Client
from django.utils import timezone

from django_delayq.core.broker import Broker
from django_delayq.models import BulkAction, FailedJob, MorgueJob
from tests.admin.mirrors import (
    FAILED,
    MORGUE,
    buried_jobs,
    confirm,
    failed_jobs,
    failed_row,
    ids,
    messages_of,
    press,
)
from tests.admin.support import Yard, tags_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def boss(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff(superuser=True))
    return client


def states(broker: Broker, queue: str = "orders") -> dict[str, str]:
    found = {}
    for place in ("waiting", "reserved", "morgue"):
        for view in broker.inspector.page(queue, place, limit=250).jobs:
            found[view.id] = view.state
    return found


def few(settings: Any, **admin: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": admin}


def test_retry_now_asks_first_and_then_makes_the_chosen_jobs_due(delayq: Broker, boss: Client) -> None:
    rows = failed_jobs(delayq, 3)
    asked = press(boss, FAILED, "retry_now", *rows[:2])
    assert asked.status_code == 200
    tags_of(asked.content)
    assert states(delayq) == dict.fromkeys(("job-0", "job-1", "job-2"), "delayed")
    page = asked.content.decode()
    assert "2 jobs" in page and "shop.cancel_order" in page and "They become due at once" in page
    answer = confirm(boss, asked)
    assert messages_of(answer) == [("success", "2 jobs will be retried.")]
    assert states(delayq) == {"job-0": "ready", "job-1": "ready", "job-2": "delayed"}


def test_retry_in_makes_them_due_after_the_delay(delayq: Broker, boss: Client) -> None:
    (row,) = failed_jobs(delayq, 1)
    asked = press(boss, FAILED, "retry_in", row)
    answer = confirm(boss, asked, delay="3", unit="hours")
    assert messages_of(answer) == [("success", "1 job will be retried.")]
    (view,) = delayq.inspector.page("orders", "waiting").jobs
    assert abs(view.due_ms - delayq.now_ms() - 3 * 3_600_000) < 60_000


@pytest.mark.parametrize(
    ("delay", "unit"),
    [("", "hours"), ("-1", "hours"), ("x", "hours"), ("5", "years"), ("4000", "days"), ("9" * 400, "days")],
)
def test_a_delay_that_cannot_be_meant_is_asked_for_again(delayq: Broker, boss: Client, delay: str, unit: str) -> None:
    (row,) = failed_jobs(delayq, 1)
    answer = confirm(boss, press(boss, FAILED, "retry_in", row), delay=delay, unit=unit)
    assert answer.context["form"].errors
    assert states(delayq) == {"job-0": "delayed"}


def test_discard_and_bury_end_failed_jobs(delayq: Broker, boss: Client) -> None:
    rows = failed_jobs(delayq, 3)
    asked = press(boss, FAILED, "discard", rows[0])
    assert "cannot be undone" in asked.content.decode()
    assert messages_of(confirm(boss, asked)) == [("success", "1 job was discarded.")]
    assert messages_of(confirm(boss, press(boss, FAILED, "bury", rows[1]))) == [("success", "1 job was buried.")]
    assert states(delayq) == {"job-1": "morgue", "job-2": "delayed"}
    assert ids(boss.get(FAILED)) == ["job-2"]
    page = boss.get(MORGUE)
    assert ids(page) == ["job-1"]
    assert "<h2>Dead jobs, kept for a decision ·" in page.content.decode()


def test_the_morgue_gives_jobs_back_or_loses_them(delayq: Broker, boss: Client) -> None:
    rows = buried_jobs(delayq, 3)
    assert messages_of(confirm(boss, press(boss, MORGUE, "retry_now", rows[0]))) == [
        ("success", "1 job will be retried.")
    ]
    assert messages_of(confirm(boss, press(boss, MORGUE, "discard", rows[1]))) == [("success", "1 job was discarded.")]
    assert states(delayq) == {"dead-0": "ready", "dead-2": "morgue"}
    assert ids(boss.get(MORGUE)) == ["dead-2"]


def test_what_became_of_each_job_is_told(delayq: Broker, boss: Client) -> None:
    rows = failed_jobs(delayq, 3)
    yard = Yard(delayq)
    yard.queue.cancel("job-0")
    yard.queue.run_now("job-1")
    yard.take_one()
    answer = confirm(boss, press(boss, FAILED, "discard", *rows))
    assert messages_of(answer) == [
        (
            "warning",
            "1 job was discarded. 1 job was not changed, because it is running. "
            "1 job no longer existed: it was run, changed or removed in the meantime.",
        )
    ]
    assert states(delayq) == {"job-1": "reserved"}


def test_a_live_job_in_the_way_is_told_too(delayq: Broker, boss: Client) -> None:
    (row,) = buried_jobs(delayq, 1)
    Yard(delayq).put("dead-0", 7)
    answer = confirm(boss, press(boss, MORGUE, "retry_now", row))
    assert messages_of(answer) == [("warning", "1 job was not changed, because another job with its id is live.")]


def test_all_that_match_are_meant_not_only_the_page(delayq: Broker, boss: Client, monkeypatch: Any) -> None:
    failed_jobs(delayq, 7, mark="a")
    failed_jobs(delayq, 2, mark="b", queue="crm")
    from django_delayq.admin.mirrored import FailedJobAdmin

    monkeypatch.setattr(FailedJobAdmin, "list_per_page", 3)
    shown = boss.get(f"{FAILED}?queue=orders")
    assert len(ids(shown)) == 3
    asked = press(boss, f"{FAILED}?queue=orders", "discard", *shown.context["cl"].result_list[:1], across=True)
    assert "All 7 jobs that match the filters" in asked.content.decode()
    answer = confirm(boss, asked)
    assert messages_of(answer) == [("success", "7 jobs were discarded.")]
    assert answer.redirect_chain == [(f"{FAILED}?queue=orders", 302)]
    assert FailedJob.objects.count() == 2


def test_all_may_be_a_single_one(delayq: Broker, boss: Client) -> None:
    asked = press(boss, FAILED, "discard", *failed_jobs(delayq, 1), across=True)
    assert "The 1 job that matches the filters" in asked.content.decode()


def test_what_failed_after_the_question_is_not_meant(delayq: Broker, boss: Client) -> None:
    rows = failed_jobs(delayq, 2)
    asked = press(boss, FAILED, "discard", *rows, across=True)
    later = failed_jobs(delayq, 1, mark="later")
    FailedJob.objects.filter(job_id="later-0").update(failed_at=timezone.now() + timedelta(seconds=5))
    assert len(later) == 3
    assert messages_of(confirm(boss, asked)) == [("success", "2 jobs were discarded.")]
    assert states(delayq) == {"later-0": "delayed"}


def test_more_than_the_threshold_are_left_to_a_worker(delayq: Broker, boss: Client, settings: Any) -> None:
    few(settings, bulk_threshold=2)
    rows = failed_jobs(delayq, 3)
    failed_jobs(delayq, 1, queue="crm", mark="crm")
    asked = press(boss, f"{FAILED}?queue=orders&q=job", "discard", *rows[:1], across=True)
    assert "a worker carries out the action in the background" in asked.content.decode()
    answer = confirm(boss, asked)
    order = BulkAction.objects.get()
    assert answer.redirect_chain == [(f"/admin/django_delayq/bulkaction/{order.pk}/change/", 302)]
    assert (order.action, order.target, order.total) == ("discard", "FailedJob", 3)
    assert order.ordered_by != ""
    assert states(delayq) == dict.fromkeys(("job-0", "job-1", "job-2"), "delayed")

    from django_delayq.repair import orders

    orders.carry_out(str(order.pk))
    assert states(delayq) == {}
    assert states(delayq, "crm") == {"crm-0": "delayed"}
    page = boss.get(f"/admin/django_delayq/bulkaction/{order.pk}/change/").content.decode()
    assert "3 of 3" in page and "3 jobs were discarded." in page
    assert "<progress" in page


def test_a_selection_is_done_at_once_whatever_the_threshold(delayq: Broker, boss: Client, settings: Any) -> None:
    few(settings, bulk_threshold=0)
    rows = failed_jobs(delayq, 2)
    assert messages_of(confirm(boss, press(boss, FAILED, "retry_now", *rows))) == [
        ("success", "2 jobs will be retried.")
    ]


def test_who_did_what_is_in_the_log(delayq: Broker, boss: Client, settings: Any) -> None:
    rows = failed_jobs(delayq, 2)
    confirm(boss, press(boss, FAILED, "retry_now", rows[0]))
    confirm(boss, press(boss, FAILED, "discard", rows[1]))
    few(settings, bulk_threshold=0)
    confirm(boss, press(boss, FAILED, "bury", rows[0], across=True))
    log = [
        (entry.content_type.model, entry.object_repr, entry.action_flag, entry.get_change_message())
        for entry in LogEntry.objects.order_by("id")
    ]
    assert log == [
        ("failedjob", "orders/job-0", CHANGE, "Retry now: retried 1"),
        ("failedjob", "orders/job-1", DELETION, "Discard: discarded 1"),
        ("bulkaction", "bury FailedJob", CHANGE, "Bury: 1"),
    ]


def test_the_question_names_queues_and_tasks_by_their_number(delayq: Broker, boss: Client) -> None:
    for place in range(12):
        for n in range(place + 1):
            failed_row(f"{place}-{n}", queue=f"q{place:02}").save()
    asked = press(boss, FAILED, "discard", FailedJob.objects.first(), across=True)
    kinds = [(str(number), queue) for number, queue, _task in asked.context["kinds"]]
    assert kinds == [(str(place + 1), f"q{place:02}") for place in range(11, 3, -1)]
    assert asked.context["others"] == 1 + 2 + 3 + 4


def test_nothing_left_is_said(delayq: Broker, boss: Client) -> None:
    (row,) = failed_jobs(delayq, 1)
    FailedJob.objects.all().delete()
    assert "None of these jobs exists any longer." in press(boss, FAILED, "discard", row).content.decode()


def test_no_selection_and_a_damaged_one_do_nothing(delayq: Broker, boss: Client) -> None:
    failed_jobs(delayq, 1)
    answer = boss.post(FAILED, {"action": "discard", "_selected_action": ["x", "1 OR 1=1"]}, follow=True)
    assert messages_of(answer) == [("error", "The selection could not be read. Nothing was done.")]
    answer = boss.post(FAILED, {"action": "discard", "index": "0"}, follow=True)
    assert [level for level, _text in messages_of(answer)] == ["warning"]
    assert states(delayq) == {"job-0": "delayed"}


@pytest.mark.parametrize("until", ["", "x", "-5", "1.5", "9" * 15, "9" * 400])
def test_a_changed_moment_in_the_form_means_no_more_than_now(delayq: Broker, boss: Client, until: str) -> None:
    (row,) = failed_jobs(delayq, 1)
    failed_row("future", ago=timedelta(days=-9)).save()
    answer = boss.post(
        FAILED,
        {"action": "bury", "_selected_action": [row.pk], "select_across": "1", "until": until, "confirmed": "yes"},
        follow=True,
    )
    assert messages_of(answer) == [("success", "1 job was buried.")]


@pytest.mark.broken_on_purpose
def test_redis_that_does_not_answer_is_told_and_not_a_failure(boss: Client) -> None:
    row = failed_row("a")
    row.save()
    answer = confirm(boss, press(boss, FAILED, "retry_now", row))
    ((level, text),) = messages_of(answer)
    assert level == "error" and text.startswith("The action failed:")
    assert "the action may be incomplete" in LogEntry.objects.get().change_message


def test_the_buttons_of_one_job_ask_like_the_list(delayq: Broker, boss: Client) -> None:
    (row,) = failed_jobs(delayq, 1)
    page = boss.get(f"{FAILED}{row.pk}/change/")
    assert [deed.name for deed in page.context["buttons"]] == ["retry_now", "retry_in", "bury", "discard"]
    asked = boss.post(FAILED, {"action": "retry_now", "select_across": "0", "_selected_action": row.pk})
    assert messages_of(confirm(boss, asked)) == [("success", "1 job will be retried.")]
    assert MorgueJob.objects.count() == 0
    assert "Retry now: retried 1" in boss.get(f"{FAILED}{row.pk}/history/").content.decode()
