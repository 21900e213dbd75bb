"""Hidden values cannot be guessed either: not by filters in the address, by a search or by a form's messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode_args
from django_delayq.models import BulkAction, MorgueJob
from tests.admin.mirrors import BULK, FAILED, INBOX, MORGUE, OUTBOX, buried_jobs, failed_row, press
from tests.admin.support import Yard, cells
from tests.app import deeds  # noqa: F401  # registers its tasks

pytestmark = pytest.mark.django_db

LIVE = "/admin/django_delayq/livejob/"
MODELS = ("livejob", "failedjob", "morguejob", "outboxjob", "inboxentry", "bulkaction")


@pytest.fixture
def viewer(client: Client, staff: Callable[..., Any]) -> Client:
    """A person who may only look."""
    client.force_login(staff(*(f"view_{model}" for model in MODELS)))
    return client


# -- filters of the address --------------------------------------------------------------------------------------------


HIDDEN_COLUMNS = "error_message__contains=token%3Da error_traceback__startswith=T args__isnull=0 options__gt=a"
HIDDEN_COLUMNS += " job_id__regex=. shard=0 priority__gte=1 key__isnull=0"
#: of each table, filters in the address that none of its pages offers
NOT_OFFERED = {
    FAILED: HIDDEN_COLUMNS,
    MORGUE: HIDDEN_COLUMNS,
    OUTBOX: "record__contains=a error__contains=a",
    INBOX: "task=a",
    BULK: "error__contains=a ordered_by__contains=a",
}


def test_columns_are_filtered_by_nothing_but_the_filters(viewer: Client) -> None:
    failed_row("a", error_message="refused: token=abc123").save()
    for address, filters in NOT_OFFERED.items():
        for one in filters.split():
            assert viewer.get(f"{address}?{one}").status_code == 400, (address, one)


def test_what_a_worker_could_not_filter_by_orders_nothing(
    delayq: Broker, client: Client, staff: Callable[..., Any], settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"bulk_threshold": 1}}
    client.force_login(staff(superuser=True))
    buried_jobs(delayq, 3)
    MorgueJob.objects.filter(job_id="dead-0").update(crashes=1)
    address = f"{MORGUE}?crashes=0"
    assert press(client, address, "discard", across=True, confirmed="yes").status_code == 400
    assert (BulkAction.objects.count(), MorgueJob.objects.count()) == (0, 3)


# -- search in Redis ---------------------------------------------------------------------------------------------------


def test_a_search_of_jobs_reads_what_a_person_may_read(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    yard.put(
        "plain",
        raw=encode_args(("Visa",), {"token": "tk-77", "note": "fragile"}),
        context={"session": "s-88", "trace": "tr-9"},
    )
    yard.put("raw", raw=b'{"password": "pw-55", "city": "Ulm"}')
    yard.put("bytes", raw=b"\xff password=pw-66 street=Elm")
    yard.put("named", "whisper", task="deeds.note")
    yard.add("merged", {"api_key": "k-33", "name": "Ada"})
    for job in yard.take():
        yard.failed(job, message="refused: secret=x-22 by https://ada:hunter2@crm/", detail="auth=d-11 late")
    Yard(delayq, "behind").put("gate", {"pin": "9-9-9", "floor": "4th"})
    Yard(delayq, "behind").take()
    Yard(delayq, "behind").put("gate", {"pin": "8-8-8", "floor": "5th"})

    def found(text: str) -> list[str]:
        return sorted(row[0] for row in cells(viewer.get(LIVE, {"q": text}).content))

    hidden = ("tk-77", '"token":"tk', "s-88", "pw-55", "pw-66", "k-33", "x-22", "hunter2", "d-11", "9-9-9", "8-8-8")
    assert {text: found(text) for text in hidden} == {text: [] for text in hidden}
    readable = ("fragile", "tr-9", "ulm", "elm", "ada", "refused", "late", "4th", "5th")
    assert {text: found(text) for text in readable} == {
        "fragile": ["plain"],
        "tr-9": ["plain"],
        "ulm": ["raw"],
        "elm": ["bytes"],
        "ada": ["bytes", "merged", "named", "plain", "raw"],
        "late": ["bytes", "merged", "named", "plain", "raw"],
        "refused": ["bytes", "merged", "named", "plain", "raw"],
        "4th": ["gate"],
        "5th": ["gate"],
    }


def test_nor_does_it_find_arguments_that_are_hidden_by_their_places(
    delayq: Broker, viewer: Client, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "ADMIN": {"sensitive": ["text"]}}
    Yard(delayq).put("named", "whisper", task="deeds.note")
    assert cells(viewer.get(LIVE, {"q": "whisper"}).content) == []
    assert [row[0] for row in cells(viewer.get(LIVE, {"q": "deeds.note"}).content)] == ["named"]


# -- reasons -----------------------------------------------------------------------------------------------------------


def test_a_reason_is_masked_like_a_message_and_no_filter_offers_it(delayq: Broker, viewer: Client) -> None:
    yard = Yard(delayq)
    yard.put("a")
    yard.buried(yard.take_one(), reason="refused: token=abc123", message="see the reason")
    yard.put("a")
    yard.buried(yard.take_one(), reason="exhausted")
    mirror.rebuild()
    row = MorgueJob.objects.get(reason__startswith="refused")
    for address in (MORGUE, f"{MORGUE}{row.pk}/change/", f"{LIVE}{quote('orders/a')}/change/"):
        page = viewer.get(address).content
        assert b"abc123" not in page, address
        assert "refused: token=••••••" in page.decode(), address
    assert b"?reason=exhausted" in viewer.get(MORGUE).content
    assert cells(viewer.get(LIVE, {"q": "abc123"}).content) == []
    assert len(cells(viewer.get(LIVE, {"q": "refused"}).content)) == 1


# -- what is said ------------------------------------------------------------------------------------------------------


def test_no_error_of_the_form_tells_what_is_hidden(delayq: Broker, client: Client, staff: Callable[..., Any]) -> None:
    client.force_login(staff("view_morguejob", "edit_morguejob"))
    yard = Yard(delayq)
    yard.put("a", raw=encode_args((), {"token": "tk-77", "text": "x"}), task="deeds.note")
    yard.buried(yard.take_one())
    mirror.rebuild()
    address = f"{MORGUE}{MorgueJob.objects.get().pk}/edit/"
    page = client.get(address)
    form = page.context["form"]
    data = {name: form[name].value() for name in form.fields}
    for kwargs in ('{"token": "••••••"}', '{"token": ["••••••"]}', '{"token": {"$dt": "••••••"}}', "[", '{"x": NaN}'):
        answer = client.post(address, {**data, "kwargs": kwargs})
        assert answer.context["form"].errors, kwargs
        assert b"tk-77" not in answer.content, kwargs
    assert json.loads(data["kwargs"])["token"] == "••••••"
