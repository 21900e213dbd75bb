"""fsck finds and repairs every kind of damage without losing a job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_delayq.core import fsck

from .stage import Stage

Damage = Callable[[Stage], object]


def furnish(stage: Stage) -> None:
    """Create a job in every place."""
    stage.put("failed", priority=2)
    stage.failed(next(iter(stage.take())), 1000)
    stage.add("merged", b"p", at=1000)
    stage.add("merged", b"q", at=1000)
    stage.in_morgue("buried")
    stage.put("held")
    stage.add("union", b"p")
    stage.take()
    stage.put("held", at=70)
    stage.add("union", b"p")
    stage.add("union", b"q")


def _gone(name: str, ident: str) -> Damage:
    """Take an id out of a hash or of a sorted set."""

    def remove(stage: Stage) -> None:
        client, key = stage.broker.client, stage.key(name)
        client.hdel(key, ident) if client.type(key) == b"hash" else client.zrem(key, ident)

    return remove


def _first(name: str) -> Damage:
    def remove(stage: Stage) -> None:
        client, key = stage.broker.client, stage.key(name)
        _gone(name, next(iter(client.hkeys(key) if client.type(key) == b"hash" else client.zrange(key, 0, 0))))(stage)

    return remove


def _placed(name: str, ident: str, score: float) -> Damage:
    return lambda stage: stage.broker.client.zadd(stage.key(name), {ident: score})


def _stored(name: str, field: bytes, value: bytes) -> Damage:
    return lambda stage: stage.broker.client.hset(stage.key(name), field, value)


def _copied(name: str, ident: str, to: str) -> Damage:
    """Store what a hash has of an id for another one, too."""

    def copy(stage: Stage) -> None:
        client, key = stage.broker.client, stage.key(name)
        client.hset(key, to, client.hget(key, ident))

    return copy


def _both(one: Damage, other: Damage) -> Damage:
    return lambda stage: (one(stage), other(stage))


def _gate_without_payload(stage: Stage) -> None:
    stage.add("alone", b"p")
    stage.take()
    body = stage.broker.client.hget(stage.key("body"), "alone")
    stage.broker.client.hset(stage.key("gate"), "alone", bytes(8) + body)


def _orphan_payload(stage: Stage) -> None:
    client, key = stage.broker.client, stage.key("payload")
    client.hset(key, b"nobody\0" + b"d" * 16 + b"0", client.hvals(key)[0])


def _orphan_window(stage: Stage) -> None:
    stage.broker.client.rpush(stage.key("window"), b"r" * 24)


DAMAGES: dict[str, tuple[Damage, str, set[str]]] = {
    "a waiting job without its place": (_gone("due.2", "failed"), "body without place", set()),
    "a merged job without its place": (_gone("due.4", "merged"), "body without place", set()),
    "a held job without its lease": (_gone("lease", "held"), "body without place", set()),
    "a held merged job without its lease": (_gone("lease", "union"), "body without place", set()),
    "a job in two places": (_placed("due.4", "held", 5), "in two places", set()),
    "a job in the wrong class": (
        _both(_gone("due.2", "failed"), _placed("due.6", "failed", 5)),
        "wrong priority class",
        set(),
    ),
    "a waiting job without its body": (_gone("body", "failed"), "index without body", {"failed"}),
    "a merged job without its body": (_gone("body", "merged"), "index without body", {"merged"}),
    "a lease without its token": (_gone("state", "held"), "lease without token", set()),
    "a token without its lease": (_copied("state", "held", "merged"), "token without lease", set()),
    "a state of nobody": (_copied("state", "failed", "nobody"), "state without body", set()),
    "a gate of nobody": (_copied("gate", "held", "nobody"), "gate without run", set()),
    "a gate with nothing behind it": (_gate_without_payload, "gate without payload", set()),
    "payloads behind a run without their gate": (_gone("gate", "union"), "payloads behind run without gate", set()),
    "a failure index without the job": (_gone("failed", "failed"), "failure index", set()),
    "a wrong number of failures": (_placed("failures", "failed", 9), "failure index", set()),
    "an order without its payload": (_first("payload"), "payload order without payload", set()),
    "a payload without its order": (_first("order"), "payload without order", set()),
    "a payload of nobody": (_orphan_payload, "payload without order", set()),
    "a grave without its time": (_first("morgue"), "grave without index", set()),
    "a grave without its id": (_first("morgue_id"), "grave without index", set()),
    "a grave without its record": (_first("grave"), "grave without record", {"buried"}),
    "a reply outside of the window": (_stored("reply", b"r" * 16, b"c"), "remembered replies", set()),
    "a mark of nobody": (_stored("marks", b"\x7f" * 16, b"\1" * 9), "mark without durable key", set()),
    "a mark that says nothing": (_stored("marks", b"\xff" * 16, b"\4" * 9), "mark without durable key", set()),
    "a place in the window without a reply": (_orphan_window, "remembered replies", set()),
}


def living(stage: Stage) -> set[str]:
    """Return all ids that are live or in the morgue."""
    client = stage.broker.client
    graves = {name[:-17].decode() for name in client.zrange(stage.key("morgue"), 0, -1)}
    return {ident.decode() for ident in client.hkeys(stage.key("body"))} | graves


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_mended(stage: Stage, name: str) -> None:
    damage, violation, lost = DAMAGES[name]
    furnish(stage)
    before = living(stage)
    fsck.assert_invariants(stage.broker)
    damage(stage)
    with pytest.raises(AssertionError, match=violation):
        fsck.assert_invariants(stage.broker)
    found = fsck.check(stage.broker, repair=True)
    assert any(violation in sentence for sentence in found.violations)
    assert found.repaired
    fsck.assert_invariants(stage.broker)
    assert living(stage) - {"nobody", "alone"} == before - lost
    stage.wait(60_000)
    stage.done(*stage.take())
    fsck.assert_invariants(stage.broker)


@pytest.mark.broken_on_purpose
def test_newer_content_behind_a_job_that_does_not_run_replaces_it_at_its_own_due_time(stage: Stage) -> None:
    stage.put("held", priority=6)
    stage.take()
    stage.put("held", priority=6, at=70)
    stage.put("waiting", priority=2, at=500)
    gated = stage.broker.client.hget(stage.key("gate"), "held")
    stage.broker.client.hset(stage.key("gate"), "waiting", gated)
    found = fsck.check(stage.broker, repair=True)
    assert [sentence for sentence in found.violations if "gate without run" not in sentence] == []
    assert stage.picture()["waiting"] == ["waiting +70 p6"]
    fsck.assert_invariants(stage.broker)


def test_a_healthy_shard_is_left_alone(stage: Stage) -> None:
    furnish(stage)
    before = stage.picture()
    report = fsck.check(stage.broker, repair=True)
    assert (report.violations, report.repaired) == ([], 0)
    assert report.checked >= 5
    assert stage.picture() == before


@pytest.mark.broken_on_purpose
def test_only_the_named_queues_are_checked(stage: Stage) -> None:
    other = Stage(stage.broker, name="other")
    other.put("a")
    stage.put("a")
    _gone("due.4", "a")(other)
    assert fsck.check(stage.broker, queues=["q"]).violations == []
    assert len(fsck.check(stage.broker, queues=["other"]).violations) == 1
