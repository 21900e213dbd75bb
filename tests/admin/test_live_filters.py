"""The job browser: filters of a list, and actions on the jobs that are selected or that match."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq.admin import jobs
from django_delayq.core.broker import Broker
from tests.admin.support import Yard, cells
from tests.support.moments import in_days

pytestmark = pytest.mark.django_db

LIST = "/admin/django_delayq/livejob/"
DAY = in_days(30)
FIRST = int(DAY.timestamp() * 1000)


@pytest.fixture
def yard(delayq: Broker) -> Yard:
    """Create a job an hour for north and south in turn, two that failed, and three in the morgue."""
    yard = Yard(delayq, shards=2)
    for ident, message in (("north-dead", "no host"), ("north-gone", "no disk"), ("south-dead", "no host")):
        yard.put(ident, f"to {ident}")
        yard.buried(yard.take_one(), message=message)
    for times, ident in ((1, "once"), (2, "twice")):
        yard.put(ident)
        for _ in range(times):
            (job,) = yard.queue.reserve_id(ident, worker="w", early=True).jobs
            yard.failed(job, delay_ms=10**11)
    for number in range(4):
        customer = "north" if number % 2 == 0 else "south"
        yard.put(f"{customer}-{number}", customer, 5, "hunter2", due_ms=FIRST + number * 3600_000, delay_ms=None)
    return yard


@pytest.fixture
def operator(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff("view_livejob", "run_livejob", "cancel_livejob"))
    return client


def ids(client: Client, **asked: Any) -> list[str]:
    answer = client.get(LIST, asked)
    assert answer.status_code == 200
    return [row[0] for row in cells(answer.content)]


def waiting(broker: Broker) -> list[str]:
    return [view.id for view in broker.inspector.page("orders", "waiting").jobs]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"prefix": "north"}, ["north-0", "north-2"]),
        ({"due_from": f"{DAY:%Y-%m-%dT}01:00", "due_before": f"{DAY:%Y-%m-%dT}03:00"}, ["south-1", "north-2"]),
        ({"text": "SOUTH"}, ["south-1", "south-3"]),
        ({"failures": "2"}, ["twice"]),
        ({"failures": "1", "failures_to": "1"}, ["once"]),
        ({"never_started": "1", "prefix": "s"}, ["south-1", "south-3"]),
        ({"task": "shop.other"}, []),
        ({"id_from": "north-2", "id_to": "south-1"}, ["south-1", "north-2", "once"]),
        ({"id_from": "south-3"}, ["south-3", "twice"]),
        ({"q": "no host", "prefix": "south"}, ["south-dead"]),
    ],
)
def test_a_list_is_filtered(
    yard: Yard, operator: Client, settings: Any, asked: dict[str, str], found: list[str]
) -> None:
    settings.TIME_ZONE = "UTC"
    assert ids(operator, **asked) == found


def test_a_filter_survives_the_next_page_and_another_order(yard: Yard, operator: Client) -> None:
    answer = operator.get(LIST, {"queue": "orders", "prefix": "north", "limit": 1})
    assert [row[0] for row in cells(answer.content)] == ["north-0"]
    following = operator.get(LIST + answer.context["next_url"])
    assert [row[0] for row in cells(following.content)] == ["north-2"]
    assert "prefix=north" in answer.context["order_url"]
    assert 'value="north"' in answer.content.decode()


def press(client: Client, action: str, address: str, **posted: Any) -> Any:
    """Press a button of the list, then confirm; return the messages."""
    url = f"{LIST}bulk/{action}/"
    question = client.post(url, {"address": address, **posted})
    assert question.status_code == 200, question
    hidden: dict[str, list[Any]] = {}
    for name, value in question.context["hidden"]:
        hidden.setdefault(name, []).append(value)
    answer = client.post(url, hidden, follow=True)
    return [str(message) for message in answer.context["messages"]]


def boxes(client: Client, *wanted: str, **asked: Any) -> list[str]:
    """Return the values of the checkboxes of jobs."""
    return [item.key for item in client.get(LIST, asked).context["items"] if item.view.id in wanted]


def test_selected_jobs_are_cancelled_after_a_confirmation(yard: Yard, operator: Client, delayq: Broker) -> None:
    selected = boxes(operator, "north-0", "south-3")
    operator.post(f"{LIST}bulk/cancel/", {"selected": selected, "address": ""})
    assert len(waiting(delayq)) == 6, "nothing is done before the confirmation"
    assert press(operator, "cancel", "queue=orders", selected=selected) == ["2 jobs were cancelled."]
    assert waiting(delayq) == ["south-1", "north-2", "once", "twice"]
    assert LogEntry.objects.get().change_message == "cancel selected: {'cancelled': 2}"


def test_a_selected_job_that_was_replaced_meanwhile_is_left_alone(yard: Yard, operator: Client, delayq: Broker) -> None:
    selected = boxes(operator, "north-0")
    yard.queue.cancel("north-0")
    yard.put("north-0", "new", delay_ms=5000)
    (message,) = press(operator, "cancel", "", selected=selected)
    assert "1 job was not changed" in message
    assert "north-0" in waiting(delayq)


def test_all_that_match_run_now(yard: Yard, operator: Client, delayq: Broker) -> None:
    assert press(operator, "run", "queue=orders&prefix=south", across="1") == ["2 jobs are due now."]
    assert delayq.inspector.counts("orders").ready == 2
    assert press(operator, "run", "failures=2", across="1") == ["1 job is due now."]


def test_an_action_that_takes_too_long_stops_and_may_be_continued(
    yard: Yard, operator: Client, delayq: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LONGEST", 0.0)
    for number in range(300):
        yard.put(f"a-{number}", due_ms=FIRST + 10**9 + number, delay_ms=None)
    url, posted = f"{LIST}bulk/cancel/", {"address": "queue=orders&prefix=a-", "across": "1", "confirmed": "yes"}
    answer = operator.post(url, posted)
    assert answer.status_code == 200
    assert "Some jobs were not read yet" in answer.content.decode()
    while answer.status_code == 200:
        answer = operator.post(url, {**posted, "cursor": answer.context["cursor"]})
    assert len(waiting(delayq)) == 6


@pytest.mark.parametrize(
    "posted",
    [
        {"address": ""},
        {"address": "queue=orders", "across": "1", "confirmed": "yes"},  # everything: the page of the queue does that
        {"address": "place=reserved&prefix=a", "across": "1", "confirmed": "yes"},
        {"address": "place=morgue&prefix=north", "across": "1", "confirmed": "yes"},
    ],
)
def test_without_a_selection_or_a_filter_nothing_is_done(
    yard: Yard, operator: Client, delayq: Broker, posted: dict[str, str]
) -> None:
    answer = operator.post(f"{LIST}bulk/cancel/", posted, follow=True)
    assert "Nothing was done" in str(*answer.context["messages"])
    assert (len(waiting(delayq)), delayq.inspector.counts("orders").morgue) == (6, 3)


def test_what_is_masked_is_neither_found_nor_changed(delayq: Broker, operator: Client) -> None:
    Yard(delayq).put("secret", raw=b'{"k":{"password":"letmein"}}', delay_ms=10**6)
    assert ids(operator, text="secret") == ["secret"]
    assert ids(operator, text="letmein") == []
    assert press(operator, "cancel", "text=letmein", across="1") == ["No job matched."]


@pytest.mark.parametrize(
    ("page", "text", "found"), [("morguejob", "no disk", "north-gone"), ("failedjob", "once", "once")]
)
def test_the_lists_of_dead_and_failed_jobs_lead_to_a_search_in_arguments_and_errors(
    yard: Yard, client: Client, staff: Callable[..., Any], page: str, text: str, found: str
) -> None:
    client.force_login(staff("view_livejob", f"view_{page}"))
    listed = client.get(f"/admin/django_delayq/{page}/", {"q": text}).content.decode()
    link = re.search(r'<a href="([^"]+)">search in arguments and errors</a>', listed)
    assert link is not None
    assert [row[0] for row in cells(client.get(unescape(link[1])).content)] == [found]

    client.force_login(staff(f"view_{page}"))
    assert "search in arguments" not in client.get(f"/admin/django_delayq/{page}/").content.decode()


def test_a_selection_that_was_tampered_with_is_refused(yard: Yard, operator: Client) -> None:
    answer = operator.post(f"{LIST}bulk/cancel/", {"selected": ["nonsense"], "confirmed": "yes", "address": ""})
    assert answer.status_code == 404


def test_who_may_only_look_has_no_boxes(yard: Yard, client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff("view_livejob"))
    answer = client.get(LIST, {"prefix": "north"})
    assert 'name="selected"' not in answer.content.decode()
    assert client.post(f"{LIST}bulk/cancel/", {"address": "prefix=north", "across": "1"}).status_code == 403
