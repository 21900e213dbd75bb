"""Stored text never becomes HTML, on any page, in any attribute or message."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.models import BulkAction, FailedJob, InboxEntry, MorgueJob, OutboxJob
from django_delayq.outbox.rows import pack_job
from tests.admin.mirrors import BULK, FAILED, INBOX, MORGUE, OUTBOX, confirm, failed_row, morgue_row, press
from tests.admin.support import Yard, tags_of

pytestmark = pytest.mark.django_db

EVIL = [
    "<script>evil()</script>",
    '"><img src=x onerror=evil()>',
    "'><svg onload=evil()>",
    "</pre></textarea></title><evil>",
    "{{ evil }}{% load evil %}",
    "javascript:evil()",
    "<!--evil-->]]>&lt;evil&gt;",
    "\x00\x01\x1b[31mevil\u202e\u2028<evil>",
]


def assert_harmless(answer: Any, where: str) -> None:
    assert answer.status_code == 200, where
    assert "evil" not in tags_of(answer.content), where
    page = answer.content.decode()
    for evil in EVIL:
        if any(sign in evil for sign in "<>\"'"):
            assert evil not in page, f"{where}: {evil!r} stands there as it is"


def clean(text: str) -> str:
    return text.replace("\x00", "")


@pytest.fixture
def evil_rows() -> list[Any]:
    rows: list[Any] = []
    for evil in map(clean, EVIL):
        fields = {
            "queue": evil,
            "job_id": evil,
            "task": evil,
            "error_class": evil,
            "error_message": f"{evil}\n{evil}",
            "error_traceback": f'  File "{evil}", line 1, in {evil}\n    {evil}\n{evil}',
            "args": encode_args((evil, {evil: evil}), {"k": evil}),
            "options": json.dumps({"context": {evil: evil}, evil: evil}).encode(),
        }
        rows += [failed_row(**fields), morgue_row(**fields, reason=evil, outcome=evil)]
        new = NewJob(evil, evil, encode_args((evil,), {}), options=fields["options"])
        rows.append(
            OutboxJob(queue=evil, job_id=evil, task=evil, key=uuid.uuid4(), due_ms=5, record=pack_job(new), error=evil)
        )
        merged = NewJob(evil, evil, payload=Payload(encode({evil: evil}), evil, new_key()))
        rows.append(OutboxJob(queue=evil, job_id=evil, task=evil, key=uuid.uuid4(), due_ms=5, record=pack_job(merged)))
        rows.append(InboxEntry(queue=evil, job_id=evil, task=evil, key=uuid.uuid4()))
        rows.append(
            BulkAction(
                action=evil[:30],
                target=evil[:30],
                filters={evil: evil, "queue": evil},
                error=evil,
                options={"delay": evil},
                counts={evil: 5},
                total=10,
            )
        )
    for row in rows:
        row.save()
    return rows


LISTS = {FailedJob: FAILED, MorgueJob: MORGUE, OutboxJob: OUTBOX, InboxEntry: INBOX, BulkAction: BULK}


def test_no_page_about_rows_runs_what_they_hold(delayq: Broker, evil_rows: list[Any], admin_client: Client) -> None:
    for address in LISTS.values():
        assert_harmless(admin_client.get(address), address)
    for row in evil_rows:
        one = f"{LISTS[type(row)]}{row.pk}/"
        for page in ("change/", *(["history/"] if isinstance(row, FailedJob) else [])):
            assert_harmless(admin_client.get(one + page), f"{one}{page}")


@pytest.mark.parametrize("address", [FAILED, MORGUE])
def test_no_question_and_no_message_runs_it(
    delayq: Broker, evil_rows: list[Any], admin_client: Client, address: str
) -> None:
    model = next(model for model, page in LISTS.items() if page == address)
    for across in (False, True):
        asked = press(admin_client, address, "retry_in", *model.objects.all(), across=across)
        assert_harmless(asked, "question")
        assert_harmless(confirm(admin_client, asked, delay="<evil>", unit='"><evil>'), "question with errors")
    assert_harmless(confirm(admin_client, press(admin_client, address, "discard", *model.objects.all())), "message")


@pytest.mark.parametrize("evil", EVIL)
def test_no_address_runs_what_stands_in_it(evil_rows: list[Any], admin_client: Client, evil: str) -> None:
    for model, address in LISTS.items():
        filters = [getattr(one, "parameter_name", f"{one}__exact") for one in admin.site._registry[model].list_filter]
        for asked in (dict.fromkeys(["q", *filters], evil), {"o": evil, "p": evil}):
            assert_harmless(admin_client.get(address, asked, follow=True), f"{address} {asked}")
        for page in ("change", "history", *{MORGUE: ["edit"], BULK: ["stop"]}.get(address, ())):
            answer = admin_client.get(f"{address}{evil.replace('/', '_2F')}/{page}/", follow=True)
            assert answer.status_code in (200, 404, 405)
            assert "evil" not in tags_of(answer.content)


def test_no_page_about_a_job_of_redis_runs_it(delayq: Broker, admin_client: Client) -> None:
    texts = [clean(evil) for evil in EVIL]
    yard = Yard(delayq, "orders", worker="".join(texts))
    for evil in texts:
        yard.put(f"a{evil}", evil, {"k": evil}, task=evil, context={evil: evil})
        yard.add(f"b{evil}", {evil: [evil]}, "1", task=evil)
        yard.add(f"c{evil}", None, "1", raw=evil.encode(), task=evil)
        yard.put(f"d{evil}", task=evil, raw=evil.encode())
    for job in yard.take():
        error = {"message": job.task, "traceback": f'  File "{job.task}", line 5, in {job.task}\n{job.task}'}
        (yard.failed if job.id[0] in "ab" else yard.buried)(job, **error, **{"class": job.task})
    mirror.rebuild()
    rows = [*FailedJob.objects.all(), *MorgueJob.objects.all()]
    assert len(rows) == 4 * len(texts)
    for row in rows:
        address, evil = f"{LISTS[type(row)]}{row.pk}/", row.task
        assert_harmless(admin_client.get(f"{address}change/"), f"{address} change")
        assert_harmless(admin_client.get(f"{address}edit/", follow=True), f"{address} edit")
        data = {"args": evil, "kwargs": json.dumps({evil: evil}), "delay": evil, "unit": evil}
        assert_harmless(admin_client.post(f"{address}edit/", data, follow=True), f"{address} edit with errors")
    for evil in texts:
        yard.queue.run_now(f"a{evil}")
    yard.take()
    for row in FailedJob.objects.filter(job_id__startswith="a"):
        page = admin_client.get(f"{FAILED}{row.pk}/change/")
        assert page.context["state"].label == "reserved"
        assert_harmless(page, "running")
