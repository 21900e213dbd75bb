"""The system check that keeps caches out of the Redis database of the jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.core.checks import run_checks

from django_delayq import connections, schedule
from django_delayq.core.broker import Broker
from tests.app.deeds import note

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


def found(settings: Any, redis: Any, **aliases: dict[str, Any]) -> list[str]:
    """The messages of the check, one for each cache that is in the wrong place."""
    settings.CACHES = {"default": LOCMEM, **aliases}
    settings.DELAYQ = {} if redis is None else {"REDIS": redis}
    told = [one for one in run_checks(tags=["delayq"]) if one.id == "delayq.E017"]
    assert all("another database number" in str(one.hint) for one in told)
    return [one.msg for one in told]


SAME: list[tuple[Any, dict[str, Any]]] = [
    ("redis://localhost:6379/0", {"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1:6379"}),
    ("redis://localhost:6379/0", {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://localhost:6379/0"}),
    ("redis://localhost", {"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1:6379?db=0"}),
    ("redis://", {"BACKEND": DJANGO, "LOCATION": "redis://user:secret@LOCALHOST:6379/0", "KEY_PREFIX": "shop"}),
    ("rediss://cache.example.org/3", {"BACKEND": DJANGO, "LOCATION": "redis://cache.example.org:6379/3"}),
    ("redis://a:6379/2", {"BACKEND": DJANGO, "LOCATION": "redis://a", "OPTIONS": {"db": "2"}}),
    ("redis://b/1", {"BACKEND": DJANGO, "LOCATION": ["redis://a/1", "redis://b/1"]}),
    ("redis://b/1", {"BACKEND": DJANGO, "LOCATION": "redis://a/1; redis://b/1"}),
    ("redis://b/1", {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://a/1,redis://b/1"}),
    ("unix:///run/redis.sock", {"BACKEND": DJANGO, "LOCATION": "unix:///run/../run/redis.sock?db=0"}),
    ({"HOST": "a", "DB": 4}, {"BACKEND": DJANGO, "LOCATION": "redis://a/4"}),
    ({"CLUSTER": [["a", 7000], ["b", 7001]]}, {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://b:7001/0"}),
    ("redis://a/2", {"BACKEND": "shop.caches.OwnRedisCache", "LOCATION": "redis://a/2"}),
    ("redis://a/2", {"BACKEND": "django_valkey.cache.ValkeyCache", "LOCATION": "valkey://a/2"}),
    ("redis://a/2", {"BACKEND": "django_valkey.cache.ValkeyCache", "LOCATION": "valkeys://a/2"}),
    ("redis://valkey:6379/0", {"BACKEND": DJANGO, "LOCATION": "redis://valkey:6379/0"}),
    ("redis://valkey/0", {"BACKEND": "django_valkey.cache.ValkeyCache", "LOCATION": "valkey://valkey/0"}),
    ("unix:///run/valkey/valkey.sock", {"BACKEND": DJANGO_REDIS, "LOCATION": "unix:///run/valkey/valkey.sock?db=0"}),
]
ANOTHER: list[tuple[Any, dict[str, Any]]] = [
    ("redis://localhost:6379/0", {"BACKEND": DJANGO, "LOCATION": "redis://localhost:6379/1"}),
    ("redis://localhost:6379/0", {"BACKEND": DJANGO, "LOCATION": "redis://localhost:6380/0"}),
    ("redis://localhost:6379/0", {"BACKEND": DJANGO, "LOCATION": "redis://cache.example.org/0"}),
    ("redis://localhost:6379/1", {"BACKEND": DJANGO, "LOCATION": "redis://localhost", "OPTIONS": {"db": 2}}),
    ("unix:///run/redis.sock", {"BACKEND": DJANGO, "LOCATION": "unix:///run/redis.sock?db=1"}),
    ("redis://a/0", {"BACKEND": DJANGO, "LOCATION": "redis://a:no-port/0"}),
    ("redis://a/0", {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache", "LOCATION": "a:6379"}),
    ("redis://a/0", {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "cache_table"}),
]


@pytest.mark.parametrize(("redis", "cache"), SAME)
def test_a_cache_in_the_database_of_the_jobs_is_an_error(settings: Any, redis: Any, cache: dict[str, Any]) -> None:
    (message,) = found(settings, redis, other=cache)
    assert message.startswith("The cache 'other' is in the Redis database of the jobs (")
    assert "cache.clear() would delete all jobs" in message and "secret" not in message


@pytest.mark.parametrize(("redis", "cache"), ANOTHER)
def test_a_cache_elsewhere_is_none(settings: Any, redis: Any, cache: dict[str, Any]) -> None:
    assert found(settings, redis, other=cache) == []


def test_the_alias_for_the_jobs_is_fine_and_every_other_one_is_looked_at(settings: Any) -> None:
    jobs = {"BACKEND": DJANGO_REDIS, "LOCATION": "redis://localhost:6379/0"}
    assert found(settings, "jobs", jobs=jobs) == []
    (message,) = found(settings, "jobs", jobs=jobs, sessions={"BACKEND": DJANGO, "LOCATION": "redis://127.0.0.1"})
    assert "'sessions'" in message
    (message,) = found(settings, "default", default=jobs)
    assert "'default'" in message


def test_a_cache_in_the_embedded_redis_is_an_error_too(settings: Any, tmp_path: Path) -> None:
    settings.BASE_DIR = tmp_path
    (message,) = found(settings, None, other={"BACKEND": DJANGO, "LOCATION": f"unix://{tmp_path}/.delayq/redis.sock"})
    assert "'other'" in message


@pytest.mark.one_server("a cache of Django's knows no cluster")
@pytest.mark.parametrize("backend", [DJANGO, DJANGO_REDIS])
def test_the_danger_is_real_and_the_check_sees_it(
    delayq: Broker, redis_url: str, settings: Any, transactional_db: None, backend: str
) -> None:
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": redis_url, "KEY_PREFIX": "shop"}}
    connections.close_broker()
    schedule(note, "x", id="a", delay=60)
    assert [one.id for one in run_checks(tags=["delayq"])] == ["delayq.E017"]
    caches["default"].clear()
    assert connections.broker().known_queue("default") is None
