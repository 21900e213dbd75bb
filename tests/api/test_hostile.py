"""Hostile requests: each gets a problem document, never a server error, stores nothing, and forges no line of a log."""

from __future__ import annotations

import base64
import gzip
import io
import json
import logging
import socket
from typing import Any
from urllib.parse import quote

import pytest
from django.core.handlers.asgi import ASGIRequest
from rest_framework.request import Request

from django_delayq.access.problems import Problem
from django_delayq.api.parsing import check_head, is_deeper, loads
from django_delayq.core.broker import Broker
from django_delayq.core.inputs import one_line
from tests.support.api_caller import ROOT, Caller

from .errands import bury, carry, contents, live, put

QUEUE = "v1/queues/errands"
JOBS = f"{QUEUE}/jobs"
JOB = b'{"task": "errands.carry", "args": [%b]}'


@pytest.fixture
def stage(api: Caller, delayq: Broker) -> Any:
    """One waiting and one buried job.

    ``check(sent, answer, *expected)`` compares the answer, and the whole Redis with before.
    """
    put(delayq, carry, 1, id="there", delay=60)
    put(delayq, carry, 2, id="dead")
    bury(delayq, "dead")
    before = contents(delayq)

    def check(sent: Any, answer: tuple[int, Any], *expected: tuple[int, str]) -> None:
        status, body = answer
        assert (status, body["code"]) in expected, (sent, answer)
        assert (body["status"], body["type"]) == (status, f"urn:django-delayq:problem:{body['code']}"), sent
        assert contents(delayq) == before, sent

    return check


def send(
    api: Caller, body: bytes, content_type: str = "application/json", path: str = JOBS, **headers: str
) -> tuple[int, Any]:
    headers = {"Authorization": f"Token {api.token}", **headers}
    api.response = api.client.generic("POST", ROOT + path, body, content_type=content_type, headers=headers)
    return api.response.status_code, json.loads(api.response.content)


# --- bodies ---


NO_VALUES = rb"""NaN Infinity -Infinity 1e400 -1e999 "\ud800" "\udfff" {"\ud83d":1} "\ude00\ud83d" {"a":1,"a":2} 01 'x'
    1/*x*/""".split()
NO_JSON = [b"", b"{", b"nonsense", b"{}{}", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf{}", b'{"task": "errands.carry",}']
NO_JSON += ['{"task": "errands.carry"}'.encode("utf-16"), b'{"task": "errands.carry", "task": "errands.carry"}']


NO_JSON += [JOB % value for value in (*NO_VALUES, b"1" * 5000, b"9" * 41, b'"\n"')]
TOO_DEEP = [
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    JOB % (b"[" * 65 + b"]" * 65),
    JOB % (b'{"x":' * 63 + b"1" + b"}" * 63),
    b"[" * 900 + b"]" * 900,
    b'["]",' * 80 + b"1" + b',"["]' * 80,
]
NO_TYPES = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", "application/xml", ""]
NO_TYPES += ["application/json; charset=utf-16", "application/json; charset=latin-1", "application/problem+json"]
NO_TYPES += ["*/*", "json"]


def test_bodies_that_are_no_json_too_deep_compressed_or_of_other_types_are_refused(api: Caller, stage: Any) -> None:
    for body in NO_JSON:
        stage(body[:80], send(api, body), (400, "malformed"), (400, "invalid"))
    for body in TOO_DEEP:
        stage(body[:80], send(api, body), (400, "too_deep"))
    for content_type in NO_TYPES:
        stage(content_type, send(api, JOB % b"1", content_type), (415, "unsupported_media_type"))
    packed = gzip.compress(b" " * 10_000_000 + JOB % b"1")
    for encoding in ("gzip", "deflate", "br", "x", "gzip, identity"):
        answer = send(api, packed, **{"Content-Encoding": encoding})
        stage(encoding, answer, (415, "unsupported_media_type"))


def test_depth_is_counted_where_the_brackets_are_and_not_in_texts() -> None:
    assert loads(b'["' + b"[" * 500 + b'"]', 8) == ["[" * 500]
    assert [is_deeper(json.loads("[" * n + "]" * n), 8) for n in (1, 8, 9, 50)] == [False, False, True, True]
    assert not is_deeper([[]] * 100, 2)
    assert not is_deeper(5, 0)


def test_whole_characters_beyond_the_basic_plane_arrive_and_utf_8_may_be_named(api: Caller, delayq: Broker) -> None:
    for n, charset in enumerate(("utf-8", "UTF-8", '"utf8"', "us-ascii")):
        body = b'{"task": "errands.carry", "id": "%d", "args": ["\\ud83d\\ude00", "\\\\ud800"]}' % n
        assert send(api, body, f"application/json; charset={charset}")[0] == 201, charset
        assert live(delayq, f"{n}").arguments == (["😀", "\\ud800"], {})


def test_a_body_may_be_as_large_as_the_settings_say_and_no_larger(api: Caller, stage: Any, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"max_body": 1024}}
    body = JOB % b"1"
    stage("1025 bytes", send(api, body + b" " * (1025 - len(body))), (413, "too_large"))
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
def test_lengths_that_are_wrong_missing_or_huge_are_refused(api: Caller, delayq: Broker, live_server: Any) -> None:
    delayq.queue("errands")
    before = contents(delayq)
    head = f"POST {ROOT}{JOBS} HTTP/1.0\nHost: 127.0.0.1\nAuthorization: Token {api.token}\n"
    head += "Content-Type: application/json\n"
    for lengths, expected in {
        "Content-Length: 104857600": (413, "too_large"),
        "Content-Length: 99999999999999999999999999": (413, "too_large"),
        "Transfer-Encoding: chunked": (411, "length_required"),
        "Content-Length: 500": (400, "malformed"),
        "Content-Length: 10": (400, "malformed"),
        "Content-Length: -5": (400, "malformed"),
        "Content-Length: 0x20": (400, "malformed"),
        "X: y": (400, "invalid"),
    }.items():
        status, answer = raw(live_server, head + lengths, JOB % b"1")
        assert (status, answer["code"]) == expected, lengths
    assert contents(delayq) == before


# --- names ---


NO_NAMES = ["err%0Aands", "errands%0D%0A", "errands%00", "%D0%B5rrands", "err{ands}", "{errands}"]
NO_NAMES += ["errands%20", "..", "%2e%2e", "*", "errands:0.0", "%F0%9F%98%80", "1errands", "%FF"]
NO_NAMES += ["errands%7B0%7D"]


NO_NAMES += ["e" * 300]


def test_names_that_no_queue_can_have_are_not_found(api: Caller, stage: Any) -> None:
    for name in NO_NAMES:
        for method, path, body in (
            ("POST", "jobs", {"task": "errands.carry"}),
            ("GET", "jobs", None),
            ("GET", "jobs/x", None),
            ("POST", "cancel", {"all": True}),
            ("GET", "morgue", None),
        ):
            answer = api(method, f"v1/queues/{name}/{path}", body)
            stage((name, path), answer, (404, "queue_not_found"), (404, "not_found"))


NO_IDS = ["a\0b", "a\r\nb", "\n", "\x7f", "\x85", "x" * 256, "é" * 128, "", "a\tb"]


def test_ids_that_cannot_be_are_refused_everywhere(api: Caller, stage: Any) -> None:
    for ident in NO_IDS:
        bodies: list[tuple[str, Any]] = [("jobs", {"task": "errands.carry", "id": ident})]
        bodies += [(verb, {"ids": ["there", ident]}) for verb in ("cancel", "run-now", "kick", "discard")]
        bodies += [("reschedule", {"ids": ["there", ident], "delay": 1})]
        bodies += [(verb, {"jobs": [{"id": ident}]}) for verb in ("kick", "discard")]
        for verb, body in bodies:
            stage((ident, verb), api.post(f"{QUEUE}/{verb}", body), (400, "invalid"))
        for method, path in (("GET", "jobs"), ("DELETE", "jobs"), ("PATCH", "jobs"), ("GET", "morgue")):
            answer = api(method, f"{QUEUE}/{path}/{quote(ident, safe='')}", {"delay": 1} if method == "PATCH" else None)
            stage((ident, method, path), answer, (404, "job_not_found"), (404, "not_found"))


NO_TASKS = ["os.system", "errands.carry\n", "errands.carry ", "Errands.Carry", "errands.ca\u0433ry", "", "x" * 100_000]
NO_TASKS += ["__import__('os')", "errands.carry\u200b"]


def test_names_that_only_look_like_a_task_are_not_found(api: Caller, stage: Any) -> None:
    for task in NO_TASKS:
        stage(task[:80], api.post(JOBS, {"task": task}), (404, "task_not_found"))
        assert len(api.response.content) < 2000


# --- cursors ---


def cursor_of(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


FORGED = [b"::", b"0:nan:x", b"0:inf:x", b"0:x:y", b"0: 1 :y", b"0:1_0:y", b"0:1\r\n:y", "0:\u0661:y".encode()]
FORGED += [b"x:1:y", b"0:(1:y", b"0:\xff:y", b"0:1e999:y"]
CURSORS = ["x", "!!!", "AAAA", "%00", "a" * 1999, "a" * 2001, "é", "=", "====", *map(cursor_of, FORGED)]


#: of places that there are not; these lead somewhere
PLACES = [b"99999999999:1:y", b"-1:1:y", b"0:1:\xff\xfe", b"0:1:" + b"x" * 400, b"0:1:\0\0", b"0:1:"]


def test_cursors_that_nobody_gave_are_refused_or_lead_somewhere(api: Caller, stage: Any) -> None:
    lists = ("jobs?", "jobs?state=failed&order=desc&", "morgue?order=desc&", "morgue?by=id&")
    for cursor in (*CURSORS, *map(cursor_of, PLACES)):
        for path in lists:
            status, body = api.get(f"{QUEUE}/{path}cursor={cursor}")
            if status != 200:
                stage((cursor, path), (status, body), (400, "invalid"))


# --- values of all kinds, everywhere ---


def test_moments_at_the_ends_of_the_calendar_are_refused(api: Caller, stage: Any) -> None:
    texts = ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"]
    texts += ["2030-02-30T00:00:00Z", "1e5", "NaN", "2030-01-01T25:00:00Z", "2030-01-01T00:00:00+99:00"]
    texts += ["2030-01-01", "20300101", "2030-W01-1", "٢٠٣٠-01-01T00:00:00Z"]
    for at in (*texts, "\n", -1, -(10**39), 10**39, 1e308):
        stage(at, api.post(JOBS, {"task": "errands.carry", "at": at}), (400, "invalid"))
        expires = at if isinstance(at, str) else -1
        stage(at, api.post(JOBS, {"task": "errands.carry", "expires": expires}), (400, "invalid"))
        stage(at, api.patch(f"{JOBS}/there", {"at": at}), (400, "invalid"))


pytestmark = pytest.mark.django_db


FORGED_LINE = "\n2026-11-21 ERROR all is lost"


def test_a_holder_with_control_characters_is_refused(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="a")
    for name in (f"w1{FORGED_LINE}", "w\x1b[2J", "w\x85x", "w\u2028x", "w\u202egnp"):
        status, body = api.post("v1/queues/errands/reserve", {"worker": name})
        assert (status, body["code"]) == (400, "invalid"), name
        assert "control characters" in body["detail"] and body["detail"].isprintable(), name
    assert delayq.inspector.counts("errands").ready == 1


def test_the_name_of_a_user_is_escaped_where_it_names_the_holder(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="a")
    api.user.username = f"ann{FORGED_LINE}"
    api.user.save()
    assert api.post("v1/queues/errands/reserve")[0] == 200
    (seen,) = delayq.inspector.page("errands", "reserved").jobs
    assert seen.job.worker == "ann\\n2026-11-21 ERROR all is lost"


def test_a_path_is_one_line_of_the_log(api: Caller, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = settings.DELAYQ
    settings.DELAYQ = {**before, "REDIS": "redis://127.0.0.1:1/0"}
    with caplog.at_level(logging.WARNING, "django_delayq.api"):
        assert api.get("v1/queues/errands%0A2026-11-21%20ERROR%20all%20is%20lost")[0] == 503
    settings.DELAYQ = before
    (line,) = (one.getMessage() for one in caplog.records if "GET" in one.getMessage())
    assert line.startswith(r"GET /delayq/v1/queues/errands\n2026-11-21 ERROR all is lost: ")


def test_texts_of_a_problem_are_single_lines(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="a")
    for method, path, body in (
        ("POST", "v1/queues/errands/jobs", {f"member{FORGED_LINE}": 1}),
        ("POST", "v1/queues/errands/reserve", {f"x{FORGED_LINE}": 1}),
        ("GET", "v1/queues/errands/jobs/a%0A2026-11-21%20ERROR", None),
        ("GET", "v1/queues/errands%0A2026-11-21%20ERROR", None),
    ):
        status, problem = api(method, path, body)
        assert status == (400 if method == "POST" else 404)
        texts = [problem["detail"], *(text for error in problem.get("errors", ()) for text in error.values())]
        assert all(text.isprintable() for text in texts), texts


def test_the_class_of_an_error_of_another_language_is_one_line(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="a")
    (job,) = api.post("v1/queues/errands/reserve")[1]["jobs"]
    error = {"class": f"Error{FORGED_LINE}", "message": "no"}
    entry = {"id": "a", "lease": job["lease"], "error": error}
    assert api.post("v1/queues/errands/fail", {"jobs": [entry]})[0] == 200
    (seen,) = delayq.inspector.page("errands", "failed").jobs
    assert seen.error_class.isprintable() and str(seen.error["class"]).isprintable()


def test_a_line_of_text_keeps_what_is_no_control_character() -> None:
    assert one_line("grün 👩‍👩‍👧 \u00a0x") == "grün 👩‍👩‍👧 \u00a0x"
    assert one_line("a\nb\x00\x9b\u2029\u2066\ud800") == r"a\nb\x00\x9b\u2029\u2066\ud800"


@pytest.mark.parametrize(("body", "told"), [(b'{"max": 5}', False), (b'{"max": 5}', True), (b"", False)])
def test_a_body_of_http_2_whose_length_is_not_told_is_not_taken_for_none(body: bytes, told: bool) -> None:
    headers = [(b"content-type", b"application/json"), *([(b"content-length", b"%d" % len(body))] if told else [])]
    http = ASGIRequest({"method": "POST", "path": "/v1/reserve", "headers": headers}, io.BytesIO(body))
    if body and not told:
        with pytest.raises(Problem) as refusal:
            check_head(Request(http))
        assert (refusal.value.status_code, refusal.value.code) == (411, "length_required")
    else:
        check_head(Request(http))
    assert http.read() == body
