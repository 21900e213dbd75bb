"""The clients: reserve of one certain job, searches, and bulk verbs on what matches."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import pytest

from django_delayq.client import Client

from .clients import client, kind, token, url  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_is_reserved_by_its_id_or_by_what_it_contains(client: Client) -> None:
    client.create_queue("images", kind="pull")
    for name in ("one", "two", "three"):
        client.put("images", f"{name}.png", id=name)
    client.put("images", "later.png", id="later", delay=60)
    one = client.reserve_id("images", "one", ttr=30)
    assert one is not None and (one.body, one.ttr, client.ack([one])) == (b"one.png", 30, [True])
    assert client.reserve_id("images", "one") is None
    assert client.reserve_id("images", "later") is None
    later = client.reserve_id("images", "later", early=True)
    assert later is not None and client.release([later]) == [True]
    found = client.reserve_match("images", text="TWO.PNG", prefix="t")
    assert found is not None and (found.id, client.ack([found])) == ("two", [True])
    assert client.reserve_match("images", text="two.png") is None
