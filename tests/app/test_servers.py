"""The Redis that the settings name: caches, the embedded one, and tests that did not ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.core.checks import run_checks

from django_delayq import connections, schedule, task
from django_delayq.core.errors import Misconfigured
from django_delayq.core.task import registry
from django_delayq.settings.conf import conf
from django_delayq.testing import fake_queue

DJANGOS = "django.core.cache.backends.redis.RedisCache"


@pytest.fixture
def note() -> Iterator[Any]:
    @task(name="servers.note")
    def note() -> None: ...

    yield note
    registry.remove(note)


@pytest.fixture
def fresh(settings: Any) -> Iterator[Any]:
    """The settings; brokers made from them are closed."""
    connections.close_broker()
    yield settings
    connections.close_broker()


@pytest.fixture
def refused() -> Iterator[None]:
    """Tests that do not ask for a real Redis get none, as in a project without the option."""
    connections.close_broker()
    connections.permit_in_tests(False)
    yield
    connections.permit_in_tests(True)


@pytest.mark.one_server("a cache of Django has one server")
def test_the_alias_of_djangos_own_redis_cache_is_accepted(fresh: Any, redis_url: str, prefix: str, note: Any) -> None:
    fresh.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, "jobs": {"BACKEND": DJANGOS}}
    fresh.CACHES["jobs"]["LOCATION"] = redis_url
    fresh.DELAYQ = {"REDIS": "jobs", "PREFIX": prefix}
    assert schedule(note, id="a", delay=60).outcome == "created"
    assert caches["jobs"]._cache.get_client().exists(f"{{{prefix}}}:queues")
    assert [message.id for message in run_checks(tags=["delayq"])] == []


def test_without_debug_the_embedded_redis_has_to_be_named(
    fresh: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.DELAYQ, fresh.DEBUG = {"EMBEDDED_DIR": tmp_path}, False
    connections.embedded_directory(conf())  # a test runner sets DEBUG = False, whatever the project wants
    monkeypatch.setattr(connections, "is_test_run", lambda: False)
    with pytest.raises(Misconfigured, match=r"DEBUG is False: .* Set DELAYQ.'REDIS'. to a URL .* or to 'embedded'"):
        connections.broker()
    (finding,) = run_checks(tags=["delayq"])
    assert finding.id == "delayq.E003"
    fresh.DELAYQ = {"EMBEDDED_DIR": tmp_path, "REDIS": "embedded"}
    connections.embedded_directory(conf())
    fresh.DELAYQ, fresh.DEBUG = {"EMBEDDED_DIR": tmp_path}, True
    connections.embedded_directory(conf())


def test_a_test_run_is_recognised() -> None:
    assert connections.is_test_run()


@pytest.mark.django_db
@pytest.mark.usefixtures("refused")
def test_a_test_without_the_kit_is_refused_a_call_that_would_wait_for_its_commit(
    fresh: Any, redis_url: str, note: Any
) -> None:
    fresh.DELAYQ = {"REDIS": redis_url}
    with pytest.raises(Misconfigured, match=r"inherit from django_delayq\.testing\.DelayQTestCase"):
        schedule(note, delay=60)
    with fake_queue():
        assert schedule(note, delay=60).outcome == "on_commit"


@pytest.mark.usefixtures("refused")
def test_a_test_without_the_kit_never_writes_into_a_real_redis(fresh: Any, redis_url: str, note: Any) -> None:
    fresh.DELAYQ = {"REDIS": redis_url}
    with pytest.raises(Misconfigured, match=r"inherit from django_delayq\.testing\.DelayQTestCase"):
        schedule(note, delay=60)
    with pytest.raises(Misconfigured, match="would use the Redis of the settings"):
        connections.broker(0.5)
    with fake_queue() as fake:
        schedule(note, delay=60)
        assert len(fake.scheduled_jobs()) == 1


@pytest.mark.usefixtures("refused")
def test_a_project_can_allow_its_tests_the_real_redis(fresh: Any, redis_setting: Any, prefix: str, note: Any) -> None:
    fresh.DELAYQ = {"REDIS": redis_setting, "PREFIX": prefix, "REAL_IN_TESTS": True}
    assert schedule(note, delay=60).outcome == "created"
