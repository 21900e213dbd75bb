"""Retrying one job with other content."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_delayq import mirror
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode, decode_args, encode_args
from django_delayq.masking import HIDDEN
from django_delayq.models import FailedJob, MorgueJob
from tests.admin.mirrors import FAILED, MORGUE, messages_of
from tests.admin.support import Yard, tags_of
from tests.app import deeds  # noqa: F401  # registers its tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def editor(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff("view_failedjob", "edit_failedjob", "view_morguejob", "edit_morguejob"))
    return client


def put(broker: Broker, ident: str = "a", *, buried: bool = False, **options: Any) -> str:
    """A job in trouble; the address of the page that edits it."""
    yard = Yard(broker)
    if "payloads" in options:
        for score, value in options["payloads"]:
            yard.add(ident, value, score, task="deeds.sync")
    else:
        yard.put(ident, task=options.get("task", "deeds.note"), raw=options["raw"])
    job = yard.take_one()
    (yard.buried if buried else yard.failed)(job)
    mirror.rebuild()
    if buried:
        return f"{MORGUE}{MorgueJob.objects.get(job_id=ident).pk}/edit/"
    return f"{FAILED}{FailedJob.objects.get(job_id=ident).pk}/edit/"


def filled(client: Client, address: str, **more: Any) -> dict[str, Any]:
    """Return the form data that the browser would send, with changes."""
    answer = client.get(address)
    assert answer.status_code == 200
    tags_of(answer.content)
    form = answer.context["form"]
    return {name: form[name].value() for name in form.fields} | more


def call_of(broker: Broker, ident: str = "a") -> Any:
    view = broker.inspector.get("orders", ident)
    assert view is not None
    return view.state, decode_args(view.job.args)


@pytest.mark.parametrize("buried", [False, True])
def test_a_job_is_tried_again_with_other_arguments(delayq: Broker, editor: Client, buried: bool) -> None:
    address = put(delayq, raw=encode_args(("wrong",), {"times": 2}), buried=buried)
    data = filled(editor, address)
    assert (json.loads(data["args"]), json.loads(data["kwargs"])) == (["wrong"], {"times": 2})
    answer = editor.post(address, {**data, "args": '["right"]'}, follow=True)
    assert messages_of(answer) == [("success", "1 job will be retried.")]
    assert call_of(delayq) == ("ready", (["right"], {"times": 2}))
    assert "retried" in LogEntry.objects.get().get_change_message()


def test_it_may_wait_for_a_while(delayq: Broker, editor: Client) -> None:
    address = put(delayq, raw=encode_args(("wrong",), {}))
    editor.post(address, filled(editor, address, args='["right"]', delay="2", unit="hours"))
    assert call_of(delayq) == ("delayed", (["right"], {}))


def test_values_without_a_form_in_json_go_there_and_back(delayq: Broker, editor: Client) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    address = put(delayq, raw=encode_args((Decimal("1.50"), datetime(2030, 1, 31, tzinfo=UTC)), {}), task="x.unknown")
    data = filled(editor, address)
    assert '"$dec": "1.50"' in data["args"]
    editor.post(address, {**data, "args": data["args"].replace("1.50", "2.50")})
    assert call_of(delayq)[1] == ([Decimal("2.50"), datetime(2030, 1, 31, tzinfo=UTC)], {})


def test_what_is_hidden_stays_unless_it_is_replaced(delayq: Broker, editor: Client) -> None:
    stored = {"url": "https://crm/x", "token": "t-1", "auth": {"pin": 77}}
    address = put(delayq, raw=encode_args((), stored), task="x.unknown")
    data = filled(editor, address)
    assert json.loads(data["kwargs"]) == {"url": "https://crm/x", "token": HIDDEN, "auth": HIDDEN}
    assert b"t-1" not in editor.get(address).content
    editor.post(address, {**data, "kwargs": json.dumps({**json.loads(data["kwargs"]), "url": "u", "token": "t-2"})})
    assert call_of(delayq)[1] == ([], {"url": "u", "token": "t-2", "auth": {"pin": 77}})


def test_a_merged_job_gets_other_payloads(delayq: Broker, editor: Client) -> None:
    address = put(delayq, payloads=[("1", {"n": 1, "token": "t"}), ("2.5", {"n": 2})])
    data = filled(editor, address)
    entries = json.loads(data["payloads"])
    assert entries == [{"score": 1, "payload": {"n": 1, "token": HIDDEN}}, {"score": 2.5, "payload": {"n": 2}}]
    entries[0]["payload"]["n"] = 7
    entries.append({"score": 9, "payload": "new"})
    answer = editor.post(address, {**data, "payloads": json.dumps(entries)}, follow=True)
    assert messages_of(answer) == [("success", "1 job will be retried.")]
    found = [(payload.score, decode(payload.data)) for payload in delayq.inspector.payloads("orders", "a")]
    assert found == [("1", {"n": 7, "token": "t"}), ("2.5", {"n": 2}), ("9", "new")]


def test_payloads_with_hidden_parts_are_dropped_or_moved_only_with_their_values(delayq: Broker, editor: Client) -> None:
    address = put(delayq, payloads=[(str(n), {"n": n, "token": f"t-{n}"}) for n in (1, 2, 3)])
    data = filled(editor, address)
    entries = json.loads(data["payloads"])
    entries[1]["payload"]["n"] = 7
    refused = editor.post(address, {**data, "payloads": json.dumps(entries[1:])})
    assert "Leave it where it was" in str(refused.context["form"].errors)
    for n, entry in enumerate(entries, 1):
        entry["payload"] = {"n": n, "token": f"t-{n}"}
    editor.post(address, {**data, "payloads": json.dumps([entries[2], entries[1]])})
    found = [(payload.score, decode(payload.data)) for payload in delayq.inspector.payloads("orders", "a")]
    assert found == [("2", {"n": 2, "token": "t-2"}), ("3", {"n": 3, "token": "t-3"})]


@pytest.mark.parametrize(
    ("field", "text", "word"),
    [
        ("args", "[1", "not JSON"),
        ("args", "{}", "a list"),
        ("args", "[" * 100_000, "not JSON"),
        ("args", "[" * 900 + "]" * 900, "deep"),
        ("kwargs", '{"times":' * 450 + "1" + "}" * 450, "deep"),
        ("args", '["a", "b", "c"]', "too many positional"),
        ("args", "[]", "missing"),
        ("args", '[{"$dt": "yesterday"}]', "the load function of tag 'dt' failed: ValueError"),
        ("args", '[{"$nothing": 1}]', "$nothing"),
        ("args", f'["{HIDDEN}", 1]', "Leave it where it was"),
        ("kwargs", "[]", "an object"),
        ("kwargs", '{"other": 1}', "other"),
        ("kwargs", '{"times": NaN}', "NaN"),
        ("delay", "-5", "greater than or equal"),
        ("delay", "x", "whole number"),
        ("unit", "years", "valid choice"),
        ("version", "", "has changed since"),
        ("version", "x", "has changed since"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(
    delayq: Broker, editor: Client, field: str, text: str, word: str
) -> None:
    address = put(delayq, raw=encode_args(("wrong",), {"times": 2}))
    answer = editor.post(address, filled(editor, address, **{field: text}))
    assert answer.status_code == 200
    errors = str(answer.context["form"].errors)
    assert word in errors.replace("&#x27;", "'"), errors
    assert call_of(delayq) == ("delayed", (["wrong"], {"times": 2}))
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "at least one"),
        ("[1]", "Entry 1"),
        ('[{"score": "x", "payload": 1}]', "Entry 1"),
        ('[{"score": 1}]', "Entry 1"),
        ('[{"score": true, "payload": 1}]', "Entry 1"),
        ('[{"score": 1, "payload": 1, "more": 2}]', "Entry 1"),
        ('[{"score": 1e999, "payload": 1}]', "Entry 1"),
        ('[{"score": 1' + "0" * 400 + ', "payload": 1}]', "Entry 1"),
    ],
)
def test_payloads_that_cannot_be_are_refused(delayq: Broker, editor: Client, text: str, word: str) -> None:
    address = put(delayq, payloads=[("1", "old")])
    answer = editor.post(address, filled(editor, address, payloads=text))
    assert word in str(answer.context["form"].errors)
    assert [decode(payload.data) for payload in delayq.inspector.payloads("orders", "a")] == ["old"]


def test_a_job_that_changed_meanwhile_is_not_overwritten(delayq: Broker, editor: Client) -> None:
    address = put(delayq, payloads=[("1", "old")])
    data = filled(editor, address)
    Yard(delayq).add("a", "newer", "2", task="deeds.sync")
    answer = editor.post(address, {**data, "payloads": '[{"score": 1, "payload": "mine"}]'})
    assert "has changed since" in str(answer.context["form"].errors)
    assert len(list(delayq.inspector.payloads("orders", "a"))) == 2


def test_there_is_no_form_for_what_runs_is_gone_or_is_no_json(delayq: Broker, editor: Client) -> None:
    raw = put(delayq, "raw", raw=b"\xffraw")
    gone = put(delayq, "gone", raw=b"")
    running = put(delayq, "running", raw=b"")
    pks = {row.job_id: row.pk for row in FailedJob.objects.all()}
    yard = Yard(delayq)
    yard.queue.cancel("gone")
    yard.queue.run_now("running")
    yard.take()
    assert raw and gone and running
    said = {ident: messages_of(editor.get(f"{FAILED}{pk}/edit/", follow=True)) for ident, pk in pks.items()}
    assert said == {
        "raw": [
            (
                "error",
                "The stored content is not JSON, so it cannot be edited. "
                "Retry the job unchanged, or schedule a new one.",
            )
        ],
        "gone": [("error", "There is nothing to edit (gone: it was run, cancelled or removed).")],
        "running": [("error", "The job is running. Wait until this attempt has ended.")],
    }


def test_a_large_job_is_not_for_a_form(delayq: Broker, editor: Client) -> None:
    address = put(delayq, raw=encode_args(("x" * 250_000,), {}))
    ((level, text),) = messages_of(editor.get(address, follow=True))
    assert (level, "too much for this form" in text) == ("error", True)


def test_a_row_that_is_not_there_has_no_form(editor: Client) -> None:
    assert editor.get(f"{FAILED}99/edit/").status_code == 404
    assert editor.get(f"{FAILED}x/edit/").status_code == 404
