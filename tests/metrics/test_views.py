"""The address that Prometheus scrapes: who may read it, and in which format."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families as parse

from django_delayq import connections, schedule
from django_delayq.core.broker import Broker
from django_delayq.metrics import urls
from tests.support.api_caller import Caller
from tests.support.redis_box import RedisBox

from .deeds import note

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
URLS = "tests.metrics.alone"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def public(delayq: Broker, settings: Any) -> Broker:
    """A deployment whose metrics need no token."""
    settings.DELAYQ = {**settings.DELAYQ, "METRICS": {"public": True}}
    return delayq


def ask(who: Caller | None = None, *, accept: str = "*/*", path: str = "/delayq/metrics", method: str = "GET") -> Any:
    headers = {"Accept": accept}
    if who is not None and who.token:
        headers["Authorization"] = f"Token {who.token}"
    return Client().generic(method, path, headers=headers)


def test_who_may_view_the_api_may_read_the_metrics(caller: Callable[..., Caller]) -> None:
    schedule(note, "one")
    answers = {actions: ask(caller(*actions)).status_code for actions in ((), ("view",), ("produce",))}
    assert answers == {(): 403, ("view",): 200, ("produce",): 403}


def test_the_project_has_a_word_in_it(caller: Callable[..., Caller], settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.refuse"}}
    assert ask(caller("view")).status_code == 403


def refuse(request: Any, action: str, queue: str) -> bool:
    assert (action, queue) == ("view", "")
    return False


def test_public_metrics_have_the_format_that_was_asked_for(public: Broker) -> None:
    answer = ask(accept=PROMETHEUS)
    assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store")
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")
    plain = ("text/plain", "*/*", "application/json", "", "text/plain;version=1.x")
    for accept in (*plain, "application/openmetrics-text; version=x", "text/plain; version=;escaping"):
        answer = ask(accept=accept)
        assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store"), accept
        assert answer["Content-Type"].startswith("text/plain; version="), accept
        assert answer.content.endswith(b"\n") and b"# EOF" not in answer.content, accept


def test_it_is_only_read(caller: Callable[..., Caller]) -> None:
    viewer = caller("view")
    assert {ask(viewer, method=method).status_code for method in ("POST", "PUT", "DELETE", "HEAD")} == {405}


def test_a_scraper_is_not_sent_to_the_login_of_the_project(caller: Callable[..., Caller], settings: Any) -> None:
    for _ in range(2):
        assert ask(caller("view")).status_code == 200
        answer = ask(caller(anonymous=True), accept=PROMETHEUS)
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Token")
        assert answer.json()["code"] == "not_authenticated"
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]


def test_a_scrape_is_in_no_transaction_of_any_database(settings: Any) -> None:
    assert urls.metrics._non_atomic_requests == set(settings.DATABASES)


@pytest.mark.broken_on_purpose
def test_a_redis_that_stands_still_is_told_of_before_a_scraper_gives_up(
    delayq: Any, settings: Any, redis_factory: Callable[..., RedisBox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the patience of everybody else it takes 20 s, and 80 s the next time: nobody would hear of it."""
    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url, "METRICS": {"public": True}}
    connections.close_broker()
    assert connections.PATIENCE * 3 < 10, "three steps of it fit into the time-out of a scrape"
    monkeypatch.setattr(connections, "PATIENCE", 0.3)
    pid = box.client().info("server")["process_id"]
    assert b"delayq_up 1.0" in ask().content
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        answers = [ask().content for _ in range(2)]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [b"delayq_up 0.0" in answer for answer in answers] == [True, True]
    assert time.monotonic() - began < 10
    assert b"delayq_up 1.0" in ask().content


@pytest.mark.urls(URLS)
def test_the_metrics_can_be_included_by_themselves(public: Broker) -> None:
    answer = ask(path="/metrics")
    assert answer.status_code == 200
    assert "delayq_up" in {family.name for family in parse(answer.content.decode())}


WITHOUT_DRF = """
import sys
sys.modules["rest_framework"] = None
import django
from django.conf import settings
settings.configure(
    DELAYQ={"REDIS": "redis://127.0.0.1:1/0", "METRICS": {"public": %s}}, ROOT_URLCONF="tests.metrics.alone",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_delayq"],
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
from django.test import Client
answer = Client().get("/metrics")
print(answer.status_code, answer.content.decode())
"""


@pytest.mark.parametrize(
    ("public", "status", "text"), [(True, "200", "delayq_up 0.0"), (False, "403", "pip install 'django-delayq[api]'")]
)
def test_public_metrics_do_without_the_api(public: bool, status: str, text: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_DRF % public],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
        check=True,
    )
    assert answer.stdout.startswith(status)
    assert text in answer.stdout
