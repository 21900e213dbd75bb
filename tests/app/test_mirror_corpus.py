"""Any content of Redis becomes a row, stored as it is where the database can, and never stops the mirror."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.job import NewJob
from django_delayq.mirror.rows import moment
from django_delayq.models import FailedJob, MorgueJob

from .mirror_stage import Trouble

pytestmark = pytest.mark.django_db(transaction=True)

TEXTS = {
    "script": "<script>alert(1)</script>",
    "attribute": "\" onmouseover='alert(1)' x=\"",
    "template": "{{ 7*7 }}{% debug %}${7*7}",
    "sql": "Robert'); DROP TABLE delayq; -- % _ \\",
    "right to left": "\u202egnp.exe \u2066\u2069",
    "emoji": "🧨👩‍👩‍👧 ﷽",
    "lines": "a\r\nb\tc\x0b\x1b[31mred\x7f",
    "no character": "\ufffe\uffff\U0010ffff",
}


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    """One queue with one shard."""
    return Trouble(delayq)


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_text_is_stored_faithfully_wherever_it_stands(trouble: Trouble, name: str) -> None:
    hostile = TEXTS[name]
    error = json.dumps({"class": hostile, "message": hostile, "traceback": hostile * 50}).encode()
    args = json.dumps({"a": [], "k": {"text": hostile}}, ensure_ascii=False, separators=(",", ":")).encode()
    trouble.fail(hostile, task=hostile, args=args, error=error)
    trouble.bury(f"b{hostile}", reason=hostile, args=args, error=error)
    trouble.copied()
    row, grave = FailedJob.objects.get(), MorgueJob.objects.get()
    assert (row.job_id, row.task, row.error_class, row.error_message) == (hostile, hostile, hostile, hostile)
    assert (row.error_traceback, bytes(row.args or b"")) == (hostile * 50, args)
    assert (grave.job_id, grave.reason, grave.error_message) == (f"b{hostile}", hostile, hostile)


def test_what_no_database_stores_stays_visible(trouble: Trouble) -> None:
    error = b'{"class":"a\\u0000b","message":"half \\ud800 a pair","traceback":"\\udfff\\u0000"}'
    trouble.fail("one", error=error)
    trouble.copied()
    row = FailedJob.objects.get()
    assert (row.error_class, row.error_message, row.error_traceback) == (
        "a\u2400b",
        "half \\ud800 a pair",
        "\\udfff\u2400",
    )


@pytest.mark.parametrize(
    "error",
    [
        b"\xff\xfe\x00 no text",
        b"[1,2]",
        b"null",
        b"17",
        b'"text"',
        b'{"class":{"a":[1]},"message":7,"traceback":null}',
        b"[" * 60_000,
        b'{"message":' + b"9" * 5000 + b"}",
        b'{"class":"' + b"x" * 3000 + b'"}',
        b"{",
        b"\0" * 100,
    ],
    ids=range(11),
)
def test_an_error_record_of_any_form_is_a_row(trouble: Trouble, error: bytes) -> None:
    trouble.fail("one", error=error)
    trouble.bury("two", error=error)
    assert trouble.copied() == {"failed": ["one x1"], "morgue": ["two exhausted"]}


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize("body", [b"", b"\x04", b"\x04" + b"\xff" * 40, b"\x04" + b"\0" * 18], ids=range(4))
def test_a_job_whose_body_cannot_be_read_is_a_row(trouble: Trouble, body: bytes) -> None:
    trouble.fail("one", "fine")
    trouble.broker.client.hset(trouble.queue.shard(0).names["body"], "one", body)
    assert [row.split()[0] for row in trouble.copied()["failed"]] == ["fine", "one"]
    assert FailedJob.objects.get(job_id="one").error_class == "Undecodable"


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize("record", [b"", b"\0" * 22, b"\xff" * 200, b"x" * 30], ids=range(4))
def test_a_grave_that_cannot_be_read_is_a_row_and_hides_no_other(trouble: Trouble, record: bytes) -> None:
    trouble.bury("one", "two", "three")
    client, names = trouble.broker.client, trouble.queue.shard(0).names
    (grave,) = [member for member in client.zrange(names["morgue"], 0, -1) if member.startswith(b"two\0")]
    client.hset(names["grave"], grave, record)
    rows = trouble.copied()["morgue"]
    assert {"one exhausted", "three exhausted"} < set(rows)
    assert len(rows) == 3
    assert MorgueJob.objects.get(job_id="two").key == uuid.UUID(bytes=grave[-16:])


@pytest.mark.broken_on_purpose
def test_members_that_none_of_us_wrote_hide_no_other(trouble: Trouble) -> None:
    trouble.fail("fine", "lost")
    trouble.bury("dead")
    client, names = trouble.broker.client, trouble.queue.shard(0).names
    client.hset(names["body"], "lost", b"\xff" * 40)  # of another priority than it waits with
    client.zadd(names["failed"], {b"\xff\xfe": 5_000_000, b"": 6_000_000, b"x" * 400: "inf", "late": "-inf"})
    client.zadd(names["morgue"], {b"no key": 5_000_000, b"\xff\0" + b"k" * 16: 1e300})
    client.hset(names["grave"], b"\xff\0" + b"k" * 16, b"?")
    for _ in range(2):
        assert trouble.copied() == {"failed": ["fine x1"], "morgue": ["dead exhausted"]}


def test_arguments_that_are_no_json_are_not_copied(trouble: Trouble) -> None:
    trouble.fail("one", args=bytes(range(256)))
    assert trouble.copied()["failed"] == ["one x1"]
    assert FailedJob.objects.get().args is None


@pytest.mark.broken_on_purpose
def test_a_due_time_beyond_the_calendar_is_its_last_day(trouble: Trouble) -> None:
    trouble.fail("one")
    trouble.broker.client.zadd(trouble.queue.shard(0).names["due.4"], {"one": 9e300})
    trouble.copied()
    assert FailedJob.objects.get().due_at.year == 9999


def test_the_longest_names_fit(trouble: Trouble) -> None:
    ident = "ü" * 127 + "x"
    trouble.queue.schedule(NewJob(ident, "t" * 255))
    trouble.fail(ident)
    trouble.copied()
    row = FailedJob.objects.get()
    assert (row.job_id, row.task) == (ident, "t" * 255)


def test_moments_of_any_size_become_ones_that_fit(settings: object) -> None:
    assert moment(-5) == datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(float("inf")).year == 9999


def test_without_time_zones_moments_are_those_of_the_project(trouble: Trouble, settings: object) -> None:
    settings.USE_TZ = False  # type: ignore[attr-defined]
    settings.TIME_ZONE = "Asia/Tokyo"  # type: ignore[attr-defined]
    assert moment(0) == datetime(1970, 1, 1, 9)
