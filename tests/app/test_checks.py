"""System checks: each id, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections as databases

from django_delayq import runtime, task
from django_delayq.conf import conf
from django_delayq.core.task import registry

URL = "redis://localhost:6379/0"
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
DJANGO_REDIS = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}


def found(*, deploy: bool = False) -> list[tuple[str, str]]:
    return [(str(one.id), one.msg) for one in run_checks(tags=["delayq"], include_deployment_checks=deploy)]


def test_a_worker_that_is_sent_to_a_pull_queue_is_told_why_it_finds_nothing(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://127.0.0.1:1/0", "QUEUES": {"feed": {"kind": "pull"}}}
    (sentence,) = runtime.unknown_queues(("feed",), conf())
    assert "kind 'pull'" in sentence and "Queue('feed').reserve()" in sentence
    (sentence,) = runtime.unknown_queues(("defualt",), conf())
    assert "Did you mean 'default'?" in sentence


def test_a_good_setting_has_no_findings(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": URL}
    assert found(deploy=True) == []


@pytest.mark.parametrize(
    ("delayq", "caches", "ident", "text"),
    [
        ({"REDSI": "x"}, {}, "delayq.E001", "unknown key 'REDSI'"),
        ({"REDIS": "http://x"}, {}, "delayq.E002", "http"),
        ({"REDIS": "jobs"}, {"default": LOCMEM}, "delayq.E004", "no alias in CACHES"),
        ({"REDIS": "jobs"}, {"jobs": LOCMEM}, "delayq.E004", "not django-redis"),
        ({"REDIS": URL, "MIDDLEWARE": ["no.such.thing"]}, {}, "delayq.E005", "no.such.thing"),
        ({"REDIS": URL, "MIDDLEWARE": ["django_delayq.conf.SETTING"]}, {}, "delayq.E005", "not callable"),
        ({"REDIS": URL, "CONTEXT": {"t": "no.such.thing"}}, {}, "delayq.E008", "no.such.thing cannot be imported"),
        (
            {"REDIS": URL, "CONTEXT": {"t": "django_delayq.conf.SETTING"}},
            {},
            "delayq.E008",
            "no contextvars.ContextVar",
        ),
        ({"REDIS": URL, "SCHEDULE_MIDDLEWARE": ["no.such"]}, {}, "delayq.E009", "no.such cannot be imported"),
        ({"REDIS": URL, "HOOKS": {"last_words": "django_delayq.conf.SETTING"}}, {}, "delayq.E010", "not callable"),
        ({"REDIS": URL, "WORKER": {"splitter": "no.such"}}, {}, "delayq.E012", "no.such cannot be imported"),
        ({"REDIS": "default"}, {"default": DJANGO_REDIS}, "delayq.W001", r"cache.clear\(\)"),
        ({"REDIS": URL, "WORKER": {"queues": ["ordres"]}}, {}, "delayq.W002", "'ordres', a queue of no task"),
    ],
)
def test_a_wrong_setting_has_one_finding(
    settings: Any, delayq: dict[str, Any], caches: dict[str, Any], ident: str, text: str
) -> None:
    settings.DELAYQ = delayq
    if caches:
        settings.CACHES = caches
    ((said, message),) = found()
    assert said == ident
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(message)


def test_an_own_alias_of_django_redis_is_fine(settings: Any) -> None:
    settings.CACHES = {"default": LOCMEM, "jobs": DJANGO_REDIS}
    settings.DELAYQ = {"REDIS": "jobs"}
    assert found() == []


def test_without_redis_and_server_program(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    settings.DELAYQ = {"EMBEDDED_DIR": tmp_path}
    assert [ident for ident, _ in found(deploy=True)] == ["delayq.W101"]
    monkeypatch.setattr("django_delayq.embedded.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("django_delayq.embedded.bundled_binary", lambda: None)
    ((ident, text),) = found()
    assert (ident, "pip install 'django-delayq[embedded]'" in text) == ("delayq.E003", True)


def test_two_numbers_of_shards_for_one_queue(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": URL, "QUEUES": {"wide": {"shards": 3}}}

    @task(name="checks.wide", queue="wide", shards=5)
    def wide() -> None: ...

    try:
        ((ident, text),) = found()
    finally:
        registry.remove(wide)
    assert ident == "delayq.E006"
    assert "3 (DELAYQ['QUEUES']) and 5 (task checks.wide)" in text


def test_a_task_in_a_queue_that_no_worker_serves(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": URL, "QUEUES": {"feed": {"kind": "pull"}}}

    @task(name="checks.feed", queue="feed")
    def feed() -> None: ...

    try:
        ((ident, text),) = found()
    finally:
        registry.remove(feed)
    assert (ident, "no worker would ever run it" in text) == ("delayq.E007", True)


def test_a_pool_that_is_smaller_than_the_threads(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DELAYQ = {"REDIS": URL, "WORKER": {"threads": 8}}
    monkeypatch.setitem(databases.settings["default"], "OPTIONS", {"pool": {"max_size": 4}})
    monkeypatch.setitem(settings.DATABASES["default"], "OPTIONS", {"pool": {"max_size": 4}})
    ((ident, text),) = found()
    assert ident == "delayq.W003"
    assert "4 connections for the 8 threads" in text


def test_passwords_over_the_network_want_tls(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": "redis://:secret@redis.example.com/0"}
    ((ident, text),) = found(deploy=True)
    assert (ident, "secret" in text) == ("delayq.W102", False)
    settings.DELAYQ = {"REDIS": "redis://:secret@localhost/0"}
    assert found(deploy=True) == []
