"""Ids: those that are generated, and those of callers."""

from __future__ import annotations

import pytest

from django_delayq.core import InvalidJob, new_id
from tests.support.core_stored import assert_invariants
from tests.support.core_values import new_key

from .bulk_stage import Discard, Kick, act_in_shard
from .stage import Stage
from .world import unchanged


def test_random_ids_are_20_characters_that_no_command_takes_for_an_option() -> None:
    ids = {new_id() for _ in range(20_000)}
    assert len(ids) == 20_000
    assert {len(ident) for ident in ids} == {20}
    assert [ident for ident in ids if ident.startswith("-")] == []


@pytest.mark.parametrize("ident", ["é" * 127, "x" * 255, "{q:0.0}", "a:b", "\n", "💥", "0"])
def test_any_text_of_1_to_255_bytes_is_an_id(stage: Stage, ident: str) -> None:
    stage.put(ident)
    stage.add(ident + "x", b"p") if len(ident.encode()) < 255 else None
    assert {job.id for job in stage.take()} >= {ident}
    assert_invariants(stage.broker)


@pytest.mark.parametrize("ident", ["", "x" * 256, "é" * 128, "\0", "a\0b", "a\0"])
def test_what_is_no_id_is_refused_by_every_verb(stage: Stage, ident: str) -> None:
    """A zero character ends the id in the names of payloads and records, so "a" would match those of "a\\0b"."""
    queue, key = stage.queue, new_key()
    calls = {
        "schedule": lambda: stage.put(ident),
        "cancel": lambda: queue.cancel(ident),
        "reschedule": lambda: queue.reschedule(ident, delay_ms=5),
        "run_now": lambda: queue.run_now(ident),
        "kick": lambda: queue.kick(ident),
        "discard": lambda: queue.discard(ident),
        "knows": lambda: queue.knows([(ident, key)]),
        "kick many": lambda: act_in_shard(queue, 0, [("a", key), (ident, key)], Kick()),
        "discard many": lambda: act_in_shard(queue, 0, [("a", key), (ident, key)], Discard()),
    }
    for verb, call in calls.items():
        with unchanged(stage.broker), pytest.raises(InvalidJob, match=r"1 to 255 bytes|zero character"):
            call()
            pytest.fail(f"{verb} takes it")


@pytest.mark.parametrize("wrong", [b"short", b"", b"x" * 17])
def test_what_is_no_key_is_not_looked_for(stage: Stage, wrong: bytes) -> None:
    for asked in (("a", wrong), ("a", new_key(), wrong or b"short")):
        with pytest.raises(InvalidJob):
            stage.queue.knows([asked])
