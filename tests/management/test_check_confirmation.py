"""delayq_check on confirmed writes: what the server lacks for ``WAIT_…``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.core.errors import QueueUnavailable
from django_delayq.management import diagnosis
from tests.support.redis_box import RedisBox


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ({"WAIT_REPLICAS": 2}, "0 replicas are connected and WAIT_REPLICAS is 2, so every confirmed call ends in"),
        ({"WAIT_AOF": True}, "WAIT_AOF needs"),
        ({}, None),
    ],
)
def test_what_the_server_lacks_is_an_error(
    delayq: Any, redis_url: str, redis_box: RedisBox, settings: Any, wait: dict[str, Any], expected: str | None
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"URL": redis_url, **wait}}
    errors = [one for one in diagnosis.persistence(connections.broker()) if one.level == "ERROR"]
    assert [one.text.startswith(expected) for one in errors] == ([True] if expected else [])


@pytest.mark.parametrize(
    ("aof", "expected"),
    [
        ("everysec", []),
        (None, ["WAIT_AOF needs an append-only file: set `appendonly yes` in Redis, or use WAIT_REPLICAS alone"]),
    ],
)
def test_a_server_that_writes_to_disk_lacks_nothing_for_waitaof(
    waitaof_factory: Callable[..., RedisBox], delayq: Any, settings: Any, aof: str | None, expected: list[str]
) -> None:
    box = waitaof_factory(aof=aof)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"URL": box.url, "WAIT_AOF": True}}
    connections.close_broker()
    errors = [one.text for one in diagnosis.persistence(connections.broker()) if one.level == "ERROR"]
    assert errors == expected


@pytest.mark.django_db
def test_a_redis_that_is_gone_is_no_error_of_the_scripts(redis_factory: Callable[..., RedisBox], settings: Any) -> None:
    box = redis_factory()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": {"URL": box.url}}
    connections.close_broker()
    broker = connections.broker()
    (found,) = diagnosis.scripts(broker)
    assert found.level == "OK"
    box.kill()
    with pytest.raises(QueueUnavailable):
        list(diagnosis.scripts(broker))
    connections.close_broker()
