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
from django_delayq.core.codec import decode_args, encode_args
from django_delayq.masking import HIDDEN
from django_delayq.models import MorgueJob
from tests.admin.mirrors import MORGUE, messages_of
from tests.admin.support import Yard, tags_of
from tests.app import deeds  # noqa: F401  # registers its tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def editor(client: Client, staff: Callable[..., Any]) -> Client:
    client.force_login(staff("view_morguejob", "edit_morguejob"))
    return client


def put(broker: Broker, ident: str = "a", **options: Any) -> str:
    """A job in trouble; the address of the page that edits it."""
    yard = Yard(broker)
    if "payloads" in options:
        for score, value in options["payloads"]:
            yard.add(ident, value, score, task="deeds.sync")
    else:
        yard.put(ident, task=options.get("task", "deeds.note"), raw=options["raw"])
    job = yard.take_one()
    yard.buried(job)
    mirror.rebuild()
    return f"{MORGUE}{MorgueJob.objects.get(job_id=ident).pk}/edit/"


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


def test_a_job_is_tried_again_with_other_arguments(delayq: Broker, editor: Client) -> None:
    address = put(delayq, raw=encode_args(("wrong",), {"times": 2}))
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
    assert call_of(delayq) == ("morgue", (["wrong"], {"times": 2}))
    assert not LogEntry.objects.exists()


def test_a_job_that_was_retried_meanwhile_is_not_run_twice(delayq: Broker, editor: Client) -> None:
    address = put(delayq, raw=encode_args(("wrong",), {"times": 2}))
    data = filled(editor, address, args='["right"]')
    Yard(delayq).queue.kick("a")
    answer = editor.post(address, data, follow=True)
    assert "There is nothing to edit" in messages_of(answer)[0][1]
    assert call_of(delayq) == ("ready", (["wrong"], {"times": 2}))


def test_there_is_no_form_for_what_is_gone_is_merged_or_is_no_json(delayq: Broker, editor: Client) -> None:
    put(delayq, "raw", raw=b"\xffraw")
    put(delayq, "gone", raw=b"")
    put(delayq, "merged", payloads=[("1", "one")])
    pks = {row.job_id: row.pk for row in MorgueJob.objects.all()}
    Yard(delayq).queue.discard("gone")
    said = {ident: messages_of(editor.get(f"{MORGUE}{pk}/edit/", follow=True)) for ident, pk in pks.items()}
    assert said == {
        "raw": [
            (
                "error",
                "The stored content is not JSON. Retry the job unchanged, or schedule a new one.",
            )
        ],
        "gone": [("error", "There is nothing to edit (gone: it was run, cancelled or removed).")],
        "merged": [
            (
                "error",
                "The arguments of a merged job are its payloads. Retry it unchanged, or schedule a new job.",
            )
        ],
    }


def test_a_row_that_is_not_there_has_no_form(editor: Client) -> None:
    assert editor.get(f"{MORGUE}99/edit/").status_code == 404
    assert editor.get(f"{MORGUE}x/edit/").status_code == 404
