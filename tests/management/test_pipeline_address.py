"""Address of Redis that delayq_pipeline passes to Spark's workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_delayq import embedded
from django_delayq.core.errors import Misconfigured
from django_delayq.core.redis.config import RedisConfig
from django_delayq.management.pipeline import address
from django_delayq.pipeline.options import config_of
from django_delayq.settings.conf import conf


def redis_address(**settings: Any) -> str:
    with override_settings(DELAYQ=settings):
        return address.redis_address(conf())


def test_a_url_is_passed_unchanged() -> None:
    assert (
        redis_address(REDIS="rediss://u:p%40w@h:6380/3?ssl_cert_reqs=none")
        == "rediss://u:p%40w@h:6380/3?ssl_cert_reqs=none"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"SENTINELS": [("10.0.0.1", 26379), ("10.0.0.2", 26379)], "MASTER": "m", "PASSWORD": "x", "DB": 2},
        {"CLUSTER": (("10.0.0.1", 6379),), "PASSWORD": "x", "SSL": True, "SSL_CA_CERTS": "/ca.pem"},
        {"URL": "redis://h", "SOCKET_TIMEOUT": 1.5},
    ],
)
def test_a_dict_means_the_same_on_the_other_side(given: dict[str, Any]) -> None:
    assert config_of({"redis": redis_address(REDIS=given)}) == RedisConfig.parse(given)


def cache(location: Any, **options: Any) -> dict[str, Any]:
    return {"q": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}}


@pytest.mark.parametrize(
    ("caches", "same"),
    [
        (cache("redis://u:p%40w@h:6380/3"), "redis://u:p%40w@h:6380/3"),
        (cache("redis://h/1", PASSWORD="geheim"), "redis://:geheim@h/1"),
        (cache("unix:///run/r.sock?db=2"), "unix:///run/r.sock?db=2"),
        (cache("rediss://h:7?ssl_cert_reqs=none"), "rediss://h:7?ssl_cert_reqs=none"),
    ],
)
def test_a_cache_means_the_same_on_the_other_side(caches: dict[str, Any], same: str) -> None:
    with override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, **caches}):
        found, wanted = config_of({"redis": redis_address(REDIS="q")}), RedisConfig.parse(same)
    for name in ("host", "port", "path", "db", "username", "password", "ssl"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert (found.ssl_options.get("ssl_cert_reqs")) == wanted.ssl_options.get("ssl_cert_reqs")


def test_a_client_of_sentinels_means_the_same_on_the_other_side() -> None:
    from redis.sentinel import Sentinel

    sentinel = Sentinel([("10.0.0.1", 1), ("10.0.0.2", 2)], sentinel_kwargs={"password": "s"}, password="p", db=3)
    found = config_of({"redis": json.dumps(address.address_of_client(sentinel.master_for("m")))})
    assert found == RedisConfig.parse(
        {
            "sentinels": [("10.0.0.1", 1), ("10.0.0.2", 2)],
            "master": "m",
            "password": "p",
            "sentinel_password": "s",
            "db": 3,
        }
    )


def test_a_client_of_a_cluster_leads_to_the_same_cluster(cluster_connection: Any) -> None:
    config = config_of({"redis": json.dumps(address.address_of_client(cluster_connection.client))})
    assert len(config.cluster_nodes) == 3


def test_a_password_from_a_program_cannot_be_handed_on() -> None:
    class Program(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            return ("geheim",)

    with pytest.raises(Misconfigured, match="credential_provider, which Spark's workers do not have"):
        address.address_of_client(redis.Redis(credential_provider=Program()))


def test_the_embedded_redis_is_started_and_named(tmp_path: Path) -> None:
    text = redis_address(EMBEDDED_DIR=str(tmp_path / "a folder"))
    try:
        config = config_of({"redis": text})
        assert redis.Redis(unix_socket_path=config.path).ping()
    finally:
        embedded.release_all()


def test_executors_elsewhere_cannot_use_a_socket_of_this_machine() -> None:
    address.check_reach("unix:///run/redis.sock", "local[4]")
    address.check_reach("redis://redis.example.com", "spark://host:7077")
    with pytest.raises(Misconfigured, match=r"spark://host:7077 cannot reach Redis at unix:///run/redis\.sock"):
        address.check_reach("unix:///run/redis.sock", "spark://host:7077")
