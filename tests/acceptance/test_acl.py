"""A Redis user with the rights that docs/users.acl grants, and no others, can do all that a deployment does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib import admin
from django.core.management import call_command
from django.urls import reverse

from django_delayq import connections
from tests.api.routes import ask, calls
from tests.api.world import World, tasks
from tests.support.api_caller import ALL, Caller
from tests.support.redis_box import RedisBox

from .conftest import MakeMill
from .world import until

FILE = Path(__file__).parents[2] / "docs" / "users.acl"


@pytest.fixture
def box(redis_factory: Callable[..., RedisBox]) -> RedisBox:
    return redis_factory(tcp=True)


def rules(prefix: str) -> dict[str, list[str]]:
    """User → rules of the file, for a prefix."""
    lines = [line.split()[1:] for line in FILE.read_text().splitlines() if line.startswith("user ")]
    return {
        name: [rule.replace("delayq:", f"{prefix}:").replace("{delayq}", f"{{{prefix}}}") for rule in rest]
        for name, *rest in lines
    }


@pytest.mark.django_db(transaction=True)
def test_workers_producers_consumers_and_operators_are_denied_nothing(
    make_mill: MakeMill, box: RedisBox, caller: Callable[..., Caller], admin_client: Any, settings: Any
) -> None:
    mill = make_mill(f"redis://delayq:SECRET@127.0.0.1:{box.port}/0", lease=1.5)
    box.client().execute_command("ACL", "SETUSER", "delayq", *rules(mill.prefix)["delayq"])
    node = mill.start("--threads", 2)
    mill.put_many("grind", 20)
    mill.put("stumble", id="failing")
    mill.wait_ended([mill.put("grind", id="last")])
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": mill.url, "PREFIX": mill.prefix}
    connections.close_broker()
    with tasks():
        everybody, world = caller(*ALL), World()
        for method, route, _ in calls():
            world.refresh()
            assert ask(everybody, method, route) < 500, (method, route)
        world.refresh()
        for model in admin.site._registry:
            if model._meta.app_label == "django_delayq":
                assert admin_client.get(reverse(f"admin:{model._meta.db_table}_changelist")).status_code == 200, model
        for command in ("delayq_check", "delayq_status"):
            call_command(command)
    node.stop()
    connections.close_broker()
    assert box.client().acl_log() == []


def test_a_server_takes_the_file_and_lets_nobody_else_in() -> None:
    box = RedisBox(tcp=True, aclfile=FILE).start(wait=False)
    try:
        with box.client(username="operator", password="OPERATORSECRET") as known:
            until(lambda: _is_answered(known), "an answer")
            assert known.ping()
        with box.client() as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    finally:
        box.close()


def _is_answered(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False
