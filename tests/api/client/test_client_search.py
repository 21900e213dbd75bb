"""The clients: reserve of one certain job, searches, and bulk verbs on what matches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.api.views import job_verbs
from django_delayq.client import Client

from ..world import CANCEL

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_is_reserved_by_its_id(client: Client) -> None:
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
    two = client.reserve_id("images", "two")
    assert two is not None and client.bury([two], "unreadable") == [True] and client.reserve_id("images", "two") is None
    two = client.reserve_id("images", "two", buried=True)
    assert two is not None and client.release([two]) == [True]


def test_a_job_is_found_by_its_content_and_reserved_by_its_id(client: Client) -> None:
    client.create_queue("images", kind="pull")
    for name in ("one", "two", "three"):
        client.put("images", f"{name}.png", id=f"{name}-id")
    (found,) = client.jobs("images", text="TWO.PNG", prefix="t")
    job = client.reserve_id("images", found.id)
    assert job is not None and (job.body, client.ack([job])) == (b"two.png", [True])
    assert list(client.jobs("images", text="two.png")) == [] and client.reserve_id("images", found.id) is None


def test_lists_and_verbs_take_conditions(client: Client) -> None:
    for number, ident in enumerate(("north-1", "north-2", "south-1", "south-2")):
        client.schedule("orders", CANCEL, args=[ident], id=ident, delay=3600 * (number + 1))
    soon = datetime.now(UTC) + timedelta(seconds=5400)
    assert [job.id for job in client.jobs("orders", prefix="south", limit=1)] == ["south-1", "south-2"]
    assert [job.id for job in client.jobs("orders", text="NORTH", due_before=soon)] == ["north-1"]
    assert [job.id for job in client.jobs("orders", failures=1)] == ["orders-failed"]
    assert [job.id for job in client.jobs("orders", failures=1, failures_to=1)] == ["orders-failed"]
    assert list(client.jobs("orders", failures_to=0, prefix="orders-failed")) == []
    assert client.run_now("orders", where={"due_before": soon, "prefix": "n"}).counts == {"moved": 1}
    assert client.cancel("orders", where={"prefix": "north", "never_started": True}).counts == {"cancelled": 2}
    assert client.kill_failed("orders", where={"failures": 1, "prefix": "north"}).counts == {}
    assert client.delete_failed("orders", where={"failures": 1, "prefix": "north"}).counts == {}
    assert client.kick("orders", where={"text": "to the south"}).counts == {}
    assert client.discard("orders", where={"text": "to the south"}).counts == {}
    assert [job.id for job in client.jobs("orders", prefix="south")] == ["south-1", "south-2"]


def test_a_verb_with_conditions_is_repeated_until_it_is_complete(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_verbs, "LONGEST", 0.0)
    others = len(list(client.jobs("orders")))
    client.schedule_many(
        "orders", [{"task": CANCEL, "args": [n], "id": f"{n % 2}-{n}", "delay": 60} for n in range(600)]
    )
    told = client.cancel("orders", where={"prefix": "0-"})
    assert (told.counts, told.seen) == ({"cancelled": 300}, 600 + others)
