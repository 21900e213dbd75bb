"""The box of the dashboard that describes Redis (row 90)."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import redis
from django.template.defaultfilters import filesizeformat
from django.test import Client

from django_delayq import connections
from tests.support.redis_box import RedisBox

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("unshared")]


def box_of(client: Client) -> dict[str, str]:
    """The facts by name."""
    page = client.get("/admin/django_delayq/dashboard/").content.decode()
    found = re.search(r'<dl id="dq-redis"[^>]*>(.*?)</dl>', page, re.DOTALL)
    assert found is not None
    return dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", unescape(found[1])))


def test_the_box_says_what_redis_says_of_itself(
    delayq: object, dashboard_user: Client, redis_client: redis.Redis
) -> None:
    before, facts, info = redis_client.info(), box_of(dashboard_user), redis_client.info()
    assert facts["Server"] == info["redis_version"]
    assert re.fullmatch(r"(\d+ (d|h|min|s) ?)+", facts["Up for"])
    used, peak = facts["Memory"].split(", peak ")
    assert re.fullmatch(r"[\d.,]+\xa0[KM]B", used)
    assert peak in {
        filesizeformat(amount) for amount in range(before["used_memory_peak"], info["used_memory_peak"] + 1)
    }
    assert facts["Limit"] == "no limit, noeviction"
    assert facts["Persistence"].startswith("append-only file: off; last snapshot: ")
    assert 1 <= int(facts["Clients"]) <= info["maxclients"]
    assert re.fullmatch(r"\d{1,3}(\u202f\d{3})*", facts["Commands per second"])


def test_a_limit_and_an_append_only_file_are_named(
    redis_factory: Callable[..., RedisBox], delayq: object, dashboard_user: Client, settings: Any
) -> None:
    box = redis_factory(aof="everysec", maxmemory="64mb")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    connections.close_broker()
    facts = box_of(dashboard_user)
    assert facts["Limit"] == f"{filesizeformat(64 * 2**20)}, noeviction"
    assert facts["Persistence"].startswith("append-only file: on; ")
