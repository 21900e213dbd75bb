"""No text of a request begins a line of its own in a log, nor in what a client shows of a problem."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.inputs import one_line
from tests.support.api_caller import Caller

from .errands import carry, put

pytestmark = pytest.mark.django_db
FORGED = "\n2026-11-21 ERROR all is lost"


@pytest.mark.parametrize("name", [f"w1{FORGED}", "w\x1b[2J", "w\x85x", "w\u2028x", "w\u202egnp"])
def test_a_holder_with_control_characters_is_refused(api: Caller, delayq: Broker, name: str) -> None:
    put(delayq, carry, 1, id="a")
    status, body = api.post("v1/queues/errands/reserve", {"worker": name})
    assert (status, body["code"]) == (400, "invalid")
    assert "control characters" in body["detail"] and body["detail"].isprintable()
    assert delayq.inspector.counts("errands").ready == 1


def test_the_name_of_a_user_is_escaped_where_it_names_the_holder(api: Caller, delayq: Broker) -> None:
    put(delayq, carry, 1, id="a")
    api.user.username = f"ann{FORGED}"
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
        ("POST", "v1/queues/errands/jobs", {f"member{FORGED}": 1}),
        ("POST", "v1/queues/errands/reserve", {f"x{FORGED}": 1}),
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
    error = {"class": f"Error{FORGED}", "message": "no"}
    entry = {"id": "a", "lease": job["lease"], "error": error}
    assert api.post("v1/queues/errands/fail", {"jobs": [entry]})[0] == 200
    (seen,) = delayq.inspector.page("errands", "failed").jobs
    assert seen.error_class.isprintable() and str(seen.error["class"]).isprintable()


def test_a_line_of_text_keeps_what_is_no_control_character() -> None:
    assert one_line("grün 👩‍👩‍👧 \u00a0x") == "grün 👩‍👩‍👧 \u00a0x"
    assert one_line("a\nb\x00\x9b\u2029\u2066\ud800") == r"a\nb\x00\x9b\u2029\u2066\ud800"
