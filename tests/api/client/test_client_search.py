"""The clients: reserve of one certain job, by its id or found by its content."""

from __future__ import annotations

import pytest

from django_delayq.client import Client

from .operating import create_queue

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_is_reserved_by_its_id(client: Client) -> None:
    create_queue(client, "images")
    for name in ("one", "two", "three"):
        client.put("images", f"{name}.png", id=name)
    client.put("images", "later.png", id="later", delay=60)
    one = client.reserve_id("images", "one", ttr=30)
    assert one is not None and (one.body, one.ttr, client.ack([one])) == (b"one.png", 30, [True])
    assert client.reserve_id("images", "one") is None
    assert client.reserve_id("images", "later") is None
    later = client.reserve_id("images", "later", early=True)
    assert later is not None and client.release([later]) == [True]
    two = client.reserve_id("images", "two")
    assert two is not None and client.bury([two], "unreadable") == [True] and client.reserve_id("images", "two") is None
    two = client.reserve_id("images", "two", buried=True)
    assert two is not None and client.release([two]) == [True]


def test_a_job_is_found_by_its_content_and_reserved_by_its_id(client: Client) -> None:
    create_queue(client, "images")
    for name in ("one", "two", "three"):
        client.put("images", f"{name}.png", id=f"{name}-id")
    (found,) = client.pages("v1/queues/images/jobs", "jobs", text="TWO.PNG", prefix="t")
    job = client.reserve_id("images", found["id"])
    assert job is not None and (job.body, client.ack([job])) == (b"two.png", [True])
    assert client.reserve_id("images", found["id"]) is None
