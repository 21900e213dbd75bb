"""The page of one job, and what its buttons do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client

from django_delayq.admin import jobs
from django_delayq.core.broker import Broker
from django_delayq.core.limits import LaneNotes
from django_delayq.core.outcomes import release
from tests.admin.support import Yard, cells, every_place, tags_of
from tests.support.processes import wait_until

# The buttons' answers are those of Redis, so no transaction may be open around them.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may do everything with jobs."""
    client.force_login(staff("view_livejob", "run_livejob", "cancel_livejob"))
    return client


LIST = "/admin/django_delayq/livejob/"


def url(ident: str, page: str = "change", queue: str = "orders") -> str:
    return f"{LIST}{quote(f'{queue}/{ident}')}/{page}/"


def page_of(client: Client, ident: str, **asked: Any) -> str:
    answer = client.get(url(ident), asked)
    assert answer.status_code == 200
    tags_of(answer.content)
    return " ".join(answer.content.decode().split())


def press(client: Client, ident: str, verb: str, **said: Any) -> list[str]:
    answer = client.post(url(ident, verb), said, follow=True)
    return [str(message) for message in answer.context["messages"]]


def picture(broker: Broker, queue: str = "orders") -> dict[str, list[str]]:
    return {
        place: found
        for place in ("waiting", "reserved", "morgue")
        if (found := sorted(view.id for view in broker.inspector.page(queue, place).jobs))
    }


def test_the_page_of_a_failed_job_tells_its_story(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    page = page_of(operator, "failed")
    for words in (
        "shop.cancel_order",
        "reserved: 1, failures: 1, crashes: 0, released: 0, timed out: 0, buried: 0, retried from the morgue: 0; "
        "last failure",
        "order_id</th><td><pre>5</pre>",
        "<strong>LookupError</strong>: no",
        "line 12, in sync",
        "Run now",
        "Reschedule…",
        "Cancel…",
    ):
        assert words in page


def test_a_job_in_quarantine_says_why_it_waits(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq)
    yard.put("suspect")
    yard.crashed(yard.take_one())
    page = page_of(operator, "suspect")
    for words in (
        "It waits to run alone in a process, because its last process died while running it. See its last error.",
        "died of signal 9; 2 other jobs ran in the same process",
    ):
        assert words in page
    assert "ready quarantine" in cells(operator.get(LIST, {"queue": "orders"}).content)[0]
    yard.take()
    assert "It runs alone in a process, because its last process died while running it." in page_of(operator, "suspect")


def test_a_job_behind_a_limit_says_what_it_waits_for(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq)
    yard.put("order-1", task="shop.slow")
    yard.queue.reserve(0, 5, worker="w", lanes=LaneNotes(["shop.slow"]).pack())
    waits = "It is due, and waits behind a limit of its task, queue or group, or for the turn of its group."
    assert waits in page_of(operator, "order-1")
    assert "ready behind a limit" in cells(operator.get(LIST, {"queue": "orders"}).content)[0]


def test_the_page_of_a_reserved_job_names_its_worker_and_lease(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    page = page_of(operator, "gated")
    for words in (
        "w@host:1",
        "running",
        '<progress max="15"',
        "Gated content",
        "order_id</th><td><pre>6</pre>",
        "Stop…",
        "Run now",
    ):
        assert words in page
    assert "Run now" not in page_of(operator, "reserved")


def test_the_page_of_a_job_whose_run_could_not_begin_says_why_and_since_when(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq)
    yard.put("order-1")
    assert "Could not start" not in page_of(operator, "order-1")
    yard.queue.settle([release(yard.take_one(), delay_ms=60_000, reason="unknown task", postpone=True)])
    assert re.search("Could not start</dt><dd>unknown task .*since <time", page_of(operator, "order-1"))


def test_the_page_of_a_buried_job_has_no_buttons_of_a_live_one(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    page = page_of(operator, "buried")
    assert "exhausted" in page
    assert "Run now" not in page
    assert "Cancel…" not in page


def test_graves_of_a_live_id_are_listed_below_it(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq)
    for reason in ("first", "second"):
        yard.put("order-1")
        moment = yard.buried(yard.take_one(), reason=reason).buried_ms or 0
        wait_until(lambda moment=moment: delayq.now_ms() >= moment + 1, what="the next millisecond")
    yard.put("order-1")
    page = page_of(operator, "order-1")
    assert page.index("Earlier jobs of this id, in the morgue") < page.index("second") < page.index("first</td>")


def test_payloads_come_with_their_scores_page_by_page(delayq: Broker, operator: Client) -> None:
    yard = Yard(delayq)
    for number in range(jobs.PAYLOADS + 3):
        yard.add("customer-1", {"n": number, "secret": "s-1"}, str(number))
    assert f"{jobs.PAYLOADS + 3} payloads" in page_of(operator, "customer-1")
    first = cells(operator.get(url("customer-1")).content, "dq-payloads")
    second = cells(operator.get(url("customer-1"), {"payloads": 2}).content, "dq-payloads")
    assert [row[0] for row in first + second] == [str(number) for number in range(jobs.PAYLOADS + 3)]
    assert second[-1] == [str(jobs.PAYLOADS + 2), f'{{ "n": {jobs.PAYLOADS + 2}, "secret": "••••••" }}']
    assert cells(operator.get(url("customer-1"), {"payloads": 99}).content, "dq-payloads") == [["none"]]


def test_context_and_options_are_shown_with_secrets_hidden(delayq: Broker, operator: Client) -> None:
    Yard(delayq).put("order-1", {"password": "hunter2"}, context={"trace": "tr-9", "token": "t-1"})
    page = page_of(operator, "order-1")
    assert "trace</th><td><pre>&quot;tr-9&quot;" in page
    assert "hunter2" not in page
    assert "t-1" not in page


def test_a_job_that_is_not_there_is_explained(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    for ident, queue in (("nobody", "orders"), ("x", "no-queue")):
        answer = operator.get(url(ident, queue=queue))
        assert answer.status_code == 404
        assert "It is done, was cancelled, or never existed" in answer.content.decode()
        tags_of(answer.content)


@pytest.mark.parametrize("address", ["orders", "orders_2F", "_2Fx", "orders_2Fa_00b", "orders_2F" + "x" * 300])
def test_an_address_that_can_name_no_job_is_not_found(delayq: Broker, operator: Client, address: str) -> None:
    assert operator.get(f"{LIST}{address}/change/").status_code == 404


@pytest.mark.parametrize("ident", ["a/b", "../../etc", "änd_2F?x=1#y", "%2F", "a b", "{{7*7}}", "_", "🍵"])
def test_every_id_has_a_page(delayq: Broker, operator: Client, ident: str) -> None:
    Yard(delayq).put(ident, delay_ms=60_000)
    (link,) = re.findall(r'href="([^"]*/livejob/[^"]*/change/)"', operator.get(LIST).content.decode())
    answer = operator.get(link)
    assert answer.status_code == 200
    assert answer.context["item"].view.id == ident


# -- buttons -----------------------------------------------------------------------------------------------------------


def test_run_now_makes_a_waiting_job_due(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    assert press(operator, "delayed", "run") == ["The job is due now."]
    found = delayq.inspector.get("orders", "delayed")
    assert found is not None
    assert found.state == "ready"


def test_run_now_of_a_job_that_has_begun_says_that_nothing_was_done(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    before = picture(delayq)
    assert press(operator, "reserved", "run")[0].startswith("Nothing was done: no job with this id is waiting.")
    assert picture(delayq) == before


def test_cancel_asks_first(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    before = picture(delayq)
    answer = operator.get(url("delayed", "cancel"))
    assert "Cancel the job" in answer.content.decode()
    tags_of(answer.content)
    assert picture(delayq) == before
    assert press(operator, "delayed", "cancel") == ["The waiting job was cancelled."]
    assert picture(delayq)["waiting"] == ["failed", "ready"]


def test_cancel_of_a_running_job_says_that_it_is_marked_to_stop(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    assert "Stop the job" in operator.get(url("gated", "cancel")).content.decode()
    (said,) = press(operator, "gated", "cancel")
    assert said.startswith("The job is running and was marked to stop.")
    found = delayq.inspector.get("orders", "gated")
    assert found is not None
    assert (found.state, found.gated_due_ms) == ("reserved", None)
    assert "marked to stop" in page_of(operator, "gated")


def test_cancel_of_what_is_gone_is_truthful(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    assert operator.get(url("nobody", "cancel")).status_code == 404
    (said,) = press(operator, "nobody", "cancel")
    assert said.startswith("Nothing was done")


def test_reschedule_moves_to_a_delay_or_to_a_moment(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    assert "Or at" in operator.get(url("ready", "reschedule")).content.decode()
    assert press(operator, "ready", "reschedule", delay="2", unit="hours") == ["The job was rescheduled."]
    found = delayq.inspector.get("orders", "ready")
    assert found is not None
    assert 7_190_000 < found.due_ms - delayq.now_ms() <= 7_200_000
    press(operator, "ready", "reschedule", at="2031-05-06T07:08:09")
    found = delayq.inspector.get("orders", "ready")
    assert found is not None
    assert datetime.fromtimestamp(found.due_ms / 1000, UTC) == datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({}, "Give either a delay or a moment."),
        ({"delay": "1", "unit": "hours", "at": "2031-05-06T07:08:09"}, "Give either a delay or a moment."),
        ({"delay": "-1", "unit": "hours"}, "greater than or equal to 0"),
        ({"delay": "nan", "unit": "hours"}, "Enter a number."),
        ({"delay": "1", "unit": "years"}, "not one of the available choices"),
        ({"at": "yesterday"}, "Enter a valid date/time."),
        ({"delay": "99999", "unit": "days"}, "more than ten years"),
        ({"delay": "1e308", "unit": "days"}, "is inf; give"),
    ],
)
def test_reschedule_to_nowhere_is_refused(
    delayq: Broker, operator: Client, said: dict[str, str], complaint: str
) -> None:
    every_place(delayq)
    before = delayq.inspector.get("orders", "ready")
    answer = operator.post(url("ready", "reschedule"), said)
    assert answer.status_code == 200
    assert complaint in answer.content.decode()
    tags_of(answer.content)
    after = delayq.inspector.get("orders", "ready")
    assert before is not None
    assert after is not None
    assert after.due_ms == before.due_ms


def test_who_did_what_is_in_the_history_of_the_admin(delayq: Broker, operator: Client) -> None:
    every_place(delayq)
    press(operator, "ready", "cancel")
    press(operator, "delayed", "run")
    told = [(entry.object_id, entry.change_message) for entry in LogEntry.objects.order_by("pk")]
    assert told == [("orders/ready", "cancel: cancelled"), ("orders/delayed", "run now")]
    assert [entry.get_admin_url() for entry in LogEntry.objects.order_by("pk")] == [url("ready"), url("delayed")]


def test_a_button_without_its_token_is_refused(delayq: Broker, operator: Client, staff: Callable[..., Any]) -> None:
    every_place(delayq)
    before = picture(delayq)
    careful = Client(enforce_csrf_checks=True)
    careful.cookies = operator.cookies
    for verb in ("run", "reschedule", "cancel"):
        assert careful.post(url("delayed", verb), {"delay": 0}).status_code == 403
    assert picture(delayq) == before


def test_an_answer_inside_a_request_transaction_is_still_that_of_redis(delayq: Broker, operator: Client) -> None:
    from django.db import connections

    every_place(delayq)
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert press(operator, "ready", "cancel") == ["The waiting job was cancelled."]
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False
