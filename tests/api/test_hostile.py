"""Hostile requests: each gets a problem document, never a server error, and stores nothing."""

from __future__ import annotations

import base64
import gzip
import json
import socket
from typing import Any

import pytest
from django.test import Client

from django_delayq.api.parsing import is_deeper, loads
from django_delayq.core.broker import Broker
from tests.support.api_caller import ROOT, Caller

from .errands import bury, carry, contents, put

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"
JOB = b'{"task": "errands.carry", "args": [%b]}'


@pytest.fixture
def stage(api: Caller, delayq: Broker) -> Any:
    """One waiting and one buried job; ``check(status, codes)`` compares the answer, and the whole Redis with before."""
    put(delayq, carry, 1, id="there", delay=60)
    put(delayq, carry, 2, id="dead")
    bury(delayq, "dead")
    before = contents(delayq)

    def check(answer: tuple[int, Any], *expected: tuple[int, str]) -> None:
        status, body = answer
        assert (status, body["code"]) in expected, answer
        assert (body["status"], body["type"]) == (status, f"urn:django-delayq:problem:{body['code']}")
        assert contents(delayq) == before

    return check


def send(
    api: Caller, body: bytes, content_type: str = "application/json", path: str = JOBS, **headers: str
) -> tuple[int, Any]:
    headers = {"Authorization": f"Token {api.token}", **headers}
    api.response = api.client.generic("POST", ROOT + path, body, content_type=content_type, headers=headers)
    return api.response.status_code, json.loads(api.response.content)


# --- bodies ---


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"{}{}",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf{}",
        '{"task": "errands.carry"}'.encode("utf-16"),
        JOB % b"NaN",
        JOB % b"Infinity",
        JOB % b"-Infinity",
        JOB % b"1e400",
        JOB % b"-1e999",
        JOB % (b"1" * 5000),
        JOB % (b"9" * 41),
        JOB % b'"\\ud800"',
        JOB % b'"\\udfff"',
        JOB % b'{"\\ud83d": 1}',
        JOB % b'"\\ude00\\ud83d"',
        JOB % b'{"a": 1, "a": 2}',
        b'{"task": "errands.carry", "task": "errands.carry"}',
        JOB % b'"\n"',
        JOB % b"01",
        JOB % b"'x'",
        b'{"task": "errands.carry",}',
        JOB % b"1/*x*/",
    ],
)
def test_what_is_no_json_is_refused(api: Caller, stage: Any, body: bytes) -> None:
    stage(send(api, body), (400, "malformed"), (400, "invalid"))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        JOB % (b"[" * 65 + b"]" * 65),
        JOB % (b'{"x":' * 63 + b"1" + b"}" * 63),
        b"[" * 900 + b"]" * 900,
        b'["]",' * 80 + b"1" + b',"["]' * 80,
    ],
)
def test_what_is_nested_too_deep_is_refused(api: Caller, stage: Any, body: bytes) -> None:
    stage(send(api, body), (400, "too_deep"))


def test_depth_is_counted_where_the_brackets_are_and_not_in_texts() -> None:
    assert loads(b'["' + b"[" * 500 + b'"]', 8) == ["[" * 500]
    assert [is_deeper(json.loads("[" * n + "]" * n), 8) for n in (1, 8, 9, 50)] == [False, False, True, True]
    assert not is_deeper([[]] * 100, 2)
    assert not is_deeper(5, 0)


def test_whole_characters_beyond_the_basic_plane_arrive(api: Caller, delayq: Broker) -> None:
    assert send(api, JOB % b'"\\ud83d\\ude00", "\\\\ud800"')[0] == 201
    (view,) = delayq.inspector.page("errands", "waiting").jobs
    assert view.arguments == (["😀", "\\ud800"], {})


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "application/xml",
        "",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        "application/problem+json",
        "*/*",
        "json",
    ],
)
def test_bodies_of_other_types_are_refused(api: Caller, stage: Any, content_type: str) -> None:
    stage(send(api, JOB % b"1", content_type), (415, "unsupported_media_type"))


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf8"', "us-ascii"])
def test_utf_8_may_be_named(api: Caller, delayq: Broker, charset: str) -> None:
    assert send(api, JOB % b"1", f"application/json; charset={charset}")[0] == 201


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x", "gzip, identity"])
def test_compressed_bodies_are_refused(api: Caller, stage: Any, encoding: str) -> None:
    body = gzip.compress(b" " * 10_000_000 + JOB % b"1")
    stage(send(api, body, **{"Content-Encoding": encoding}), (415, "unsupported_media_type"))


def test_a_body_may_be_as_large_as_the_settings_say_and_no_larger(api: Caller, stage: Any, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_body": 1024}}
    body = JOB % b"1"
    stage(send(api, body + b" " * (1025 - len(body))), (413, "too_large"))
    assert send(api, body + b" " * (1024 - len(body)))[0] == 201


# --- as the wire has it ---


def raw(server: Any, head: str, body: bytes = b"") -> tuple[int, Any]:
    """One request written by hand."""
    address = (server.thread.host, server.thread.port)
    with socket.create_connection(address, timeout=20) as line:
        line.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while part := line.recv(65_536):
            answer += part
    first, _, rest = answer.partition(b"\r\n")
    return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])


@pytest.mark.one_server("a live server")
@pytest.mark.parametrize(
    ("lengths", "status", "code"),
    [
        ("Content-Length: 104857600", 413, "too_large"),
        ("Content-Length: 99999999999999999999999999", 413, "too_large"),
        ("Transfer-Encoding: chunked", 411, "length_required"),
        ("Content-Length: 500", 400, "malformed"),
        ("Content-Length: 10", 400, "malformed"),
        ("Content-Length: -5", 400, "malformed"),
        ("Content-Length: 0x20", 400, "malformed"),
        ("X: y", 400, "invalid"),
    ],
)
def test_lengths_that_are_wrong_missing_or_huge_are_refused(
    api: Caller, delayq: Broker, live_server: Any, lengths: str, status: int, code: str
) -> None:
    delayq.queue("errands")
    before = contents(delayq)
    head = f"POST {ROOT}{JOBS} HTTP/1.0\nHost: 127.0.0.1\nAuthorization: Token {api.token}\n"
    head += "Content-Type: application/json\n"
    answer = raw(live_server, head + lengths, JOB % b"1")
    assert (answer[0], answer[1]["code"]) == (status, code)
    assert contents(delayq) == before


# --- names ---


@pytest.mark.parametrize(
    "name",
    [
        "err%0Aands",
        "errands%0D%0A",
        "errands%00",
        "%D0%B5rrands",
        "err{ands}",
        "{errands}",
        "errands%20",
        "..",
        "%2e%2e",
        "e" * 300,
        "*",
        "errands:0.0",
        "%F0%9F%98%80",
        "1errands",
        "%FF",
        "errands%7B0%7D",
    ],
)
def test_names_that_no_queue_can_have_are_not_found(api: Caller, stage: Any, name: str) -> None:
    job = {"task": "errands.carry"}
    for answer in (
        api.post(f"v1/queues/{name}/jobs", job),
        api.get(f"v1/queues/{name}/jobs"),
        api.get(f"v1/queues/{name}/jobs/x"),
        api.post(f"v1/queues/{name}/cancel", {"all": True}),
        api.get(f"v1/queues/{name}/morgue"),
    ):
        stage(answer, (404, "queue_not_found"), (404, "not_found"))


@pytest.mark.parametrize("ident", ["a\0b", "a\r\nb", "\n", "\x7f", "\x85", "x" * 256, "é" * 128, "", "a\tb"])
def test_ids_that_cannot_be_are_refused_everywhere(api: Caller, stage: Any, ident: str) -> None:
    stage(api.post(JOBS, {"task": "errands.carry", "id": ident}), (400, "invalid"))
    for verb, more in (("cancel", {}), ("run-now", {}), ("reschedule", {"delay": 1}), ("kick", {}), ("discard", {})):
        stage(api.post(f"{QUEUE}/{verb}", {"ids": ["there", ident], **more}), (400, "invalid"))
    for verb in ("kick", "discard"):
        stage(api.post(f"{QUEUE}/{verb}", {"jobs": [{"id": ident}]}), (400, "invalid"))
    from urllib.parse import quote

    where = quote(ident, safe="")
    for method, path, body in (
        ("GET", JOBS, None),
        ("DELETE", JOBS, None),
        ("PATCH", JOBS, {"delay": 1}),
        ("GET", f"{QUEUE}/morgue", None),
    ):
        stage(api(method, f"{path}/{where}", body), (404, "job_not_found"), (404, "not_found"))


@pytest.mark.parametrize(
    "task",
    [
        "os.system",
        "errands.carry\n",
        "errands.carry ",
        "Errands.Carry",
        "errands.ca\u0433ry",
        "",
        "x" * 100_000,
        "__import__('os')",
        "errands.carry\u200b",
    ],
)
def test_names_that_only_look_like_a_task_are_not_found(api: Caller, stage: Any, task: str) -> None:
    stage(api.post(JOBS, {"task": task}), (404, "task_not_found"))
    assert len(api.response.content) < 2000


# --- cursors ---


def cursor_of(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "!!!",
        "AAAA",
        "%00",
        "a" * 1999,
        "a" * 2001,
        "é",
        "=",
        "====",
        cursor_of(b"::"),
        cursor_of(b"0:nan:x"),
        cursor_of(b"0:inf:x"),
        cursor_of(b"0:x:y"),
        cursor_of(b"0: 1 :y"),
        cursor_of(b"0:1_0:y"),
        cursor_of(b"0:1\r\n:y"),
        cursor_of("0:\u0661:y".encode()),
        cursor_of(b"x:1:y"),
        cursor_of(b"0:(1:y"),
        cursor_of(b"0:\xff:y"),
        cursor_of(b"0:1e999:y"),
    ],
)
def test_cursors_that_nobody_gave_are_refused_or_lead_somewhere(api: Caller, stage: Any, cursor: str) -> None:
    for path in (
        f"{JOBS}?cursor={cursor}",
        f"{JOBS}?state=failed&order=desc&cursor={cursor}",
        f"{QUEUE}/morgue?by=id&cursor={cursor}",
    ):
        status, body = api.get(path)
        if status != 200:
            stage((status, body), (400, "invalid"))


@pytest.mark.parametrize(
    "text", [b"99999999999:1:y", b"-1:1:y", b"0:1:\xff\xfe", b"0:1:" + b"x" * 400, b"0:1:\0\0", b"0:1:"]
)
def test_cursors_of_places_that_there_are_not_lead_somewhere(api: Caller, stage: Any, text: bytes) -> None:
    for path in (JOBS, f"{QUEUE}/morgue"):
        for more in ("order=asc", "order=desc"):
            assert api.get(f"{path}?{more}&cursor={cursor_of(text)}")[0] in (200, 400)


# --- values of all kinds, everywhere ---

_ANY: list[Any] = [None, True, 0, -1, 1.5, 10**39, -(10**39), 1e308, "", "x", "0", [], [None], {}, {"a": 1}, [[1]]]
_BODIES = (
    "task",
    "args",
    "kwargs",
    "id",
    "delay",
    "at",
    "priority",
    "on_conflict",
    "due_policy",
    "reset_retries",
    "max_attempts",
    "retry_in",
    "expires",
    "context",
    "durable",
    "payload",
    "score",
    "jobs",
)


@pytest.mark.parametrize("member", _BODIES)
def test_a_job_with_anything_in_any_member_is_stored_or_refused(api: Caller, delayq: Broker, member: str) -> None:
    for task in ("errands.carry", "errands.collect"):
        for value in _ANY:
            status, body = api.post(JOBS, {"task": task, "id": task, member: value})
            assert status in (200, 201, 400, 404, 409), (member, value, body)
            codes = ("invalid", "task_not_found", *(("id_taken",) if member == "id" else ()))
            assert status < 300 or body["code"] in codes, (member, value, body)


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "run-now", "kick", "discard", "kill-failed", "delete-failed"])
def test_verbs_with_anything_in_any_member_do_something_or_are_refused(api: Caller, delayq: Broker, verb: str) -> None:
    delayq.queue("errands")
    for member in ("ids", "jobs", "all", "delay", "at", "per_second", "replace", "older_than", "x"):
        for base in ({}, {"ids": ["a"]}, {"all": True}, {"ids": ["a"], "delay": 1}):
            for value in _ANY:
                status, body = api.post(f"{QUEUE}/{verb}", {**base, member: value})
                assert status in (200, 400), (member, value, body)
    for value in _ANY[1:]:
        if value != {}:
            assert api.post(f"{QUEUE}/{verb}", json.dumps(value))[0] == 400


def test_moments_at_the_ends_of_the_calendar_are_refused(api: Caller, stage: Any) -> None:
    for at in (
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2030-02-30T00:00:00Z",
        "2030-01-01T25:00:00Z",
        "2030-01-01T00:00:00+99:00",
        -1,
        -(10**39),
        10**39,
        1e308,
        "1e5",
        "NaN",
        "\n",
        "2030-01-01",
        "20300101",
        "2030-W01-1",
        "٢٠٣٠-01-01T00:00:00Z",
    ):
        stage(api.post(JOBS, {"task": "errands.carry", "at": at}), (400, "invalid"))
        stage(api.post(JOBS, {"task": "errands.carry", "expires": at if isinstance(at, str) else -1}), (400, "invalid"))
        stage(api.patch(f"{JOBS}/there", {"at": at}), (400, "invalid"))


def test_a_get_changes_nothing_and_a_browser_without_a_token_gets_nowhere(api: Caller, stage: Any) -> None:
    from django.contrib.auth.models import User

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(User.objects.get(pk=api.user.pk))
    response = browser.post(f"{ROOT}{JOBS}", JOB % b"1", content_type="application/json")
    stage((response.status_code, json.loads(response.content)), (403, "permission_denied"))
    for path in (JOBS, f"{JOBS}/there", f"{QUEUE}/morgue", f"{QUEUE}/morgue/dead"):
        assert api.get(path)[0] == 200
        assert api("HEAD", path)[0] == 200
    stage(api.get(f"{QUEUE}/cancel?all=true"), (405, "method_not_allowed"))


def test_what_was_sent_stands_in_the_log_on_one_line(api: Caller, stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    stage(api.get(f"{JOBS}/a%0D%0AWARNING%20all%20is%20lost%1b[31m"), (404, "job_not_found"), (404, "not_found"))
    stage(api.post(JOBS, {"task": "x\r\nWARNING y"}), (404, "task_not_found"))
    assert not [one for one in caplog.messages if "\n" in one or "\r" in one or "\x1b" in one]
