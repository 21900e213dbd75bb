"""Equivalence of bulk loads and ``schedule_many``: the resulting world is the same, whatever lives before."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_delayq.core import Broker, NewJob, Payload, QueueFull, ack, bury, fail
from tests.support.core_values import new_key

from .bulk_loads_stage import counted, open_load, write
from .model_values import Content
from .random_machine import EXAMPLES
from .stage import T0, Stage
from .world import read_world

IDS = ("a", "b", "c", "d", "e", "f")
_names = itertools.count()


@st.composite
def new_jobs(draw: Any) -> NewJob:
    ident = draw(st.sampled_from(IDS))
    odd = draw(st.integers(0, 11))
    merged = (ident in "ab") != (odd == 0)
    task = "other" if odd == 1 else "sync" if merged else "work"
    payload = Payload(
        draw(st.sampled_from([b"p", b"q", b"\0\xff"])), draw(st.sampled_from(["-1.5", "0", "2", ""])), b""
    )
    conflicts = ["replace", "ignore", "error", *(["merge"] * 4 if merged else [])]
    return NewJob(
        ident,
        task,
        b"args-%d" % draw(st.integers(0, 3)),
        due_ms=T0 + draw(st.sampled_from([-T0 - 5, -1000, 0, 0, 0, 1, 50_000])),
        delay_ms=None,
        priority=draw(st.sampled_from([4, 4, 4, 0, 7])),
        options=draw(st.sampled_from([b"", b'{"max_attempts":3}'])),
        on_conflict=draw(st.sampled_from(conflicts)),
        due_policy=draw(st.sampled_from(["keep", "replace", "earliest", "latest", "inherit"])),
        reset_retries=draw(st.booleans()),
        payload=payload if merged else None,
        score_policy=draw(st.sampled_from(["min", "max", "first", "last"])),
        payloads=draw(st.sampled_from(["last", "first", "all"])),
        max_payloads=draw(st.sampled_from([2, 100])),
    )


def world(stage: Stage, before: set[bytes]) -> list[dict[str, Any]]:
    """Return all contents except tokens and counters, which count a refused row with each of its tries.

    Jobs of one due time are in the order of their ids here: rows of several groups arrive in chunks of their own. Keys
    are named as old ones or as new ones, because a bulk load makes its own.
    """
    worlds = [read_world(stage.queue, number) for number in stage.queue.numbers]
    return [
        {
            **found,
            "token": 0,
            "counters": 0,
            "waiting": sorted(found["waiting"], key=lambda job: (job[2], job[:2])),
            "lives": {ident: with_old_keys(life, before) for ident, life in found["lives"].items()},
        }
        for found in worlds
    ]


def with_old_keys(value: Any, before: set[bytes]) -> Any:
    if isinstance(value, Content | Payload):
        return replace(value, key=value.key if value.key in before else b"new")
    if isinstance(value, dict):
        return {name: with_old_keys(one, before) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_old_keys(one, before) for one in value]
    return value


def with_key(new: NewJob, key: bytes) -> NewJob:
    payload = new.payload and replace(new.payload, key=key)
    return replace(new, key=key, payload=payload)


def outcomes_of(stage: Stage, news: list[NewJob]) -> Counter[str]:
    """Schedule each job in a separate call, which keeps the order of rows over all shards and tasks; count outcomes."""
    return Counter(outcome for new in news for outcome in stage.queue.schedule_many([new]))


lives = st.lists(st.tuples(new_jobs(), st.sampled_from(["leave", "hold", "fail", "bury", "run"])), max_size=6)


@settings(
    max_examples=int(EXAMPLES or 60),
    deadline=None,
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(before=lives, news=st.lists(new_jobs(), max_size=25), chunk=st.sampled_from([1, 2, 7, 250]))
def test_a_run_and_schedule_many_make_the_same_world(
    clocked: Broker, before: list[tuple[NewJob, str]], news: list[NewJob], chunk: int
) -> None:
    name = next(_names)
    stages = [Stage(clocked, shards=2, name=f"{kind}{name}") for kind in ("one", "many")]
    keys = [b"key %12d" % place for place in range(len(before))]
    for stage in stages:
        live_before(stage, before, keys)
    news = [with_key(new, new_key(durable=False)) for new in news]
    expected = outcomes_of(stages[0], news)
    load = open_load(clocked, f"load{name}", stages[1].queue.name, chunk=chunk)
    if expected["full"]:
        with pytest.raises(QueueFull, match="max_payloads"):
            write(clocked, load, news)
        return
    written = write(clocked, load, news)
    assert written == counted(clocked, load) == expected
    assert world(stages[1], {*keys}) == world(stages[0], {*keys})
    assert write(clocked, load, news) == written
    assert world(stages[1], {*keys}) == world(stages[0], {*keys})


def live_before(stage: Stage, before: list[tuple[NewJob, str]], keys: list[bytes]) -> None:
    for (new, fate), key in zip(before, keys, strict=True):
        stage.wait(10)
        stage.queue.schedule_many([with_key(replace(new, due_ms=T0), key)])
        for number in stage.queue.numbers if fate != "leave" else ():
            for job in stage.take(number=number):
                if fate == "run":
                    assert stage.settle(ack(job, 1, 2)) == [True]
                elif fate == "fail":
                    assert stage.settle(fail(job, 1, 2, delay_ms=5000)) == [True]
                elif fate == "bury":
                    assert stage.settle(bury(job, 1, 2, reason="why")) == [True]
