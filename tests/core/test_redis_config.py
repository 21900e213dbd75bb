"""Configuration of Redis: accepted addresses, and errors without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import Misconfigured, RedisConfig, connect

SECRET = "s3cret/pass"


@pytest.mark.parametrize(
    ("value", "wanted", "shown"),
    [
        ("redis://localhost:6380/3", {"host": "localhost", "port": 6380, "db": 3}, "redis://localhost:6380/3"),
        ("redis://cache", {"host": "cache", "port": 6379, "db": 0}, "redis://cache:6379"),
        (" redis:// ", {"host": "localhost"}, "redis://localhost:6379"),
        ("redis://[::1]:7000/", {"host": "::1", "port": 7000}, "redis://[::1]:7000"),
        ("redis://me:s3cret%2Fpass@h", {"username": "me", "password": SECRET}, "redis://***@h:6379"),
        ("redis://:p%20w@h", {"username": None, "password": "p w"}, "redis://***@h:6379"),
        (
            "redis://h?db=2&socket_timeout=1.5&max_connections=7",
            {"db": 2, "socket_timeout": 1.5, "max_connections": 7},
            "redis://h:6379/2",
        ),
        ("redis://h/1?protocol=3&decode_responses=True", {"db": 1}, "redis://h:6379/1"),
        (
            "rediss://h?ssl_cert_reqs=CERT_NONE",
            {"ssl": True, "ssl_options": {"ssl_cert_reqs": "none", "ssl_check_hostname": False}},
            "rediss://h:6379",
        ),
        ("rediss://h", {"ssl_options": {"ssl_cert_reqs": "required", "ssl_check_hostname": True}}, "rediss://h:6379"),
        ("unix:///run/redis.sock?db=2", {"path": "/run/redis.sock", "db": 2}, "unix:///run/redis.sock?db=2"),
        ("unix://me:s3cret@/run/r.sock", {"path": "/run/r.sock", "password": "s3cret"}, "unix://***@/run/r.sock"),
        ({"URL": "redis://h", "PASSWORD": SECRET, "DB": 4}, {"password": SECRET, "db": 4}, "redis://***@h:6379/4"),
        ({"HOST": "h", "PORT": 1}, {"host": "h", "port": 1}, "redis://h:1"),
        ({"HOST": "h", "SSL_CA_CERTS": "/ca"}, {"ssl": True}, "rediss://h:6379"),
        (
            {"SENTINELS": [["a", 26379], "b:26380"], "MASTER": "shop", "PASSWORD": "x"},
            {"sentinels": (("a", 26379), ("b", 26380)), "sentinel_master": "shop"},
            "sentinel://***@a:26379,b:26380/shop",
        ),
        (
            {"cluster": ["a:7000", ("::1", "7001")]},
            {"cluster_nodes": (("a", 7000), ("::1", 7001))},
            "cluster://a:7000,[::1]:7001",
        ),
        ({"CLUSTER": "a:1,b:2", "DB": 0}, {"cluster_nodes": (("a", 1), ("b", 2))}, "cluster://a:1,b:2"),
    ],
)
def test_addresses_are_understood(value: Any, wanted: dict[str, Any], shown: str) -> None:
    config = RedisConfig.parse(value)
    assert {name: getattr(config, name) for name in wanted} == wanted
    assert config.display_url == shown
    assert RedisConfig.parse(config) is config


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "localhost:6379",
            "a text without a scheme is no Redis URL; use redis://, .* for example 'redis://localhost:6379/0'",
        ),
        ("", "without a scheme"),
        ("http://h", "http:// is no Redis URL; use redis://, rediss://"),
        ("redis+sentinel://h", "give Sentinel and Cluster as a dict"),
        ("redis://:s3cret/pass@h:6379", "percent-encode it"),
        ("redis://:s3cret#pass@h:6379", "percent-encode it"),
        ("redis://:s3cret?pass@h:6379", "percent-encode it"),
        ("redis://:123?s3cret@h:6379", "the Redis URL has an unknown option after the '\\?'"),
        ("redis://:123/s3cret@h:6379", "DB must be a whole number from 0 to 65535"),
        ("redis://[h", "cannot be read"),
        ("redis://h:99999", "cannot be read"),
        ("redis://h/one", "DB must be a whole number"),
        ("redis://h?socket_timout=1", "has an unknown option 'socket_timout'. Did you mean 'socket_timeout'"),
        ("redis://h?sentinels=x", "has an unknown option 'sentinels'"),
        ("redis://h?socket_timeout=0", "SOCKET_TIMEOUT must be a number of seconds above 0"),
        ("redis://h?ssl_cert_reqs=perhaps", "must be 'required', 'optional' or 'none'"),
        ("redis://h?ssl_ca_certs=/ca", "use a rediss:// URL or SSL: True"),
        ("unix://redis.sock", "needs the absolute path"),
        ("unix:///", "needs the absolute path"),
        (None, "not as NoneType"),
        (b"redis://h", "not as bytes"),
        ({}, "no address of Redis is given"),
        ({"PASSWORD": "s3cret"}, "no address of Redis is given"),
        ({"URL": 5}, "URL must be a text"),
        ({"PASSWRD": "s3cret", "HOST": "h"}, "'PASSWRD' is no option of Redis. Did you mean 'PASSWORD'"),
        ({"URL": "redis://h", "CLUSTER": ["a:1"]}, "URL and CLUSTER are different ways"),
        ({"SENTINELS": ["a:1"]}, "belong together"),
        ({"SENTINELS": [], "MASTER": "m"}, r"SENTINELS must be a list like \[\['10.0.0.1', 6379\]"),
        ({"SENTINELS": ["a"], "MASTER": "m"}, r"SENTINELS must be a list like \[\['10.0.0.1', 6379\]"),
        ({"SENTINELS": {"a": 1}, "MASTER": "m"}, "SENTINELS must be a list"),
        ({"SENTINELS": ["h:1"], "MASTER": "m", "SENTINEL_USERNAME": 5}, "SENTINEL_USERNAME must be a text"),
        ({"CLUSTER": [["a", 0]]}, "PORT must be a whole number from 1 to 65535, not 0"),
        ({"CLUSTER": [5]}, "CLUSTER must be a list like"),
        ({"CLUSTER": ["a:1"], "DB": 1}, "only database 0"),
        ({"HOST": "h", "PASSWORD": 5}, "PASSWORD must be a text, not int"),
        ({"HOST": "h", "SSL": "maybe"}, "SSL must be True or False"),
        ({"HOST": "h", "RETRIES": True}, "RETRIES must be a whole number from 0 to 10"),
        ({"HOST": "h", "CONNECT_TIMEOUT": float("nan")}, "CONNECT_TIMEOUT must be a number"),
        ({"HOST": "h", "SOCKET_TIMEOUT": 60}, "let one command take 242 s; at most 100 are safe"),
        ("redis://h?retries=10&socket_timeout=9", "let one command take 104 s"),
    ],
)
def test_a_wrong_address_is_refused_with_a_way_out_and_without_its_secrets(value: Any, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as caught:
        RedisConfig.parse(value)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)


def test_ignored_options_of_a_url_are_told(caplog: pytest.LogCaptureFixture) -> None:
    RedisConfig.parse("redis://h?protocol=3")
    assert "the option protocol of the Redis URL is ignored" in caplog.text


def test_nothing_that_is_printed_holds_a_secret() -> None:
    for value in (
        f"redis://me:{SECRET.replace('/', '%2F')}@h",
        {"SENTINELS": ["h:1"], "MASTER": "m", "PASSWORD": SECRET, "SENTINEL_PASSWORD": SECRET},
        {"HOST": "h", "PASSWORD": SECRET, "SSL_PASSWORD": SECRET},
    ):
        config = RedisConfig.parse(value)
        connection = connect(config)
        printed = f"{config!r} {config.display_url} {connection!r} {connection.display_url} {connection.client!r}"
        assert "s3cret" not in printed
        hash(config)
