"""Jobs stored by a bulk load: chunks, keys, visibility to others, and equality with jobs of ``schedule_many``."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from django_delayq.core import Broker, InvalidJob, NewJob, Payload, QueueFull, ack, bury, fail
from tests.support.core_calls import watch_calls
from tests.support.core_values import created_ms, new_key
from tests.support.event_entries import read_events

from .bulk_loads_stage import (
    FAR,
    add_row,
    collected_bytes,
    counted,
    entry_of,
    live,
    merged_row,
    open_load,
    open_on,
    row,
    rows,
    write,
    writer_of,
)
from .epochs_stage import take_all
from .model_values import Content
from .random_machine import EXAMPLES
from .stage import T0, Stage
from .world import read_world, unchanged


def test_calls_that_have_an_id_in_common_wait_for_each_other_and_others_do_not(broker: Broker, most: list[int]) -> None:
    write(broker, open_load(broker, "a", "q"), rows(2000))
    assert max(most) == 4
    most.clear()
    write(
        broker,
        open_load(broker, "b", "q"),
        [row(1, due=FAR + n, on_conflict="replace") for n in range(20)],
    )
    assert max(most) == 1


def test_ids_of_every_length_and_bytes_of_every_kind_arrive_as_they_are(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    every = bytes(range(256)) * 3
    names = ["x", "x" * 255, "é" * 127, "a b", "-", "\r\n", "\x7f", "日本", "💥", "{a}"]
    news = [
        NewJob(
            name,
            "work",
            args=every[place:] + b"\0",
            due_ms=1,
            delay_ms=None,
            on_conflict="ignore",
            options=b'{"context":{"a":"%d"}}' % place,
        )
        for place, name in enumerate(names)
    ]
    news += [merged_row(name + "!", every[place:], due=1) for place, name in enumerate(names) if len(name) < 100]
    assert write(broker, open_load(broker, "a", "q"), news) == {"created": len(news)}
    found = {job.id: job for job in take_all(queue)}
    for place, name in enumerate(names):
        assert (found[name].args, found[name].context) == (every[place:] + b"\0", {"a": str(place)})
        if len(name) < 100:
            assert [payload.data for payload in found[name + "!"].payloads] == [every[place:]]


def test_jobs_of_one_due_time_run_in_the_order_of_the_rows(stage: Stage) -> None:
    for number in (3, 250, 600):
        stage.put(f"r{number}", at=0)
    write(stage.broker, open_on(stage), rows(1000, due=T0, on_conflict="replace"))
    order = [job.id for _ in range(4) for job in stage.take(250)]
    start = order.index("r0")  # a place of arrival has three digits
    assert order[start:] + order[:start] == [f"r{number}" for number in range(1000)]


# -- what others see of it -------------------------------------------------------------------------------------------


def test_each_chunk_tells_one_event_with_its_run(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    queue.schedule_many(rows(5))
    load = open_load(broker, "nightly", "q", chunk=100)
    news = rows(300)
    write(broker, load, news)
    write(broker, load, news)
    found = [event for number in queue.numbers for event in read_events(broker, "q", number)]
    told = [event.fields for event in found if "run" in event.fields]
    assert {event.outcome for event in found} == {"bulk"}
    assert {(fields["run"], fields["task"]) for fields in told} == {("nightly", "work")}
    assert sum(int(fields["jobs"]) for fields in told) == 300
    assert sum(int(fields["created"]) for fields in told) == 295
    assert len(told) == 4
    assert all(set(fields) == {"jobs", "created", "task", "run"} for fields in told)


def test_the_counters_of_the_queue_are_those_of_schedule(stage: Stage) -> None:
    stage.put("r1", at=0)
    stage.put("r2", at=0, task="other")
    one_by_one = Stage(stage.broker, name="other")
    one_by_one.put("r1", at=0)
    one_by_one.put("r2", at=0, task="other")
    write(stage.broker, open_on(stage), rows(300))
    one_by_one.queue.schedule_many(rows(300))
    assert stage.counters() == one_by_one.counters()


def test_a_waiting_consumer_is_woken_when_a_chunk_brings_an_earlier_job(broker: Broker) -> None:
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    write(broker, load, [row(1, due=FAR - 5)])
    waker = broker.waker(["q"])
    while waker.wait(0.05):
        pass  # what was told up to here
    place = queue.shard_of("r1")
    later = next(number for number in range(2, 100) if queue.shard_of(f"r{number}") == place)
    write(broker, load, [row(later, due=FAR)])
    assert waker.wait(0.2) == []
    write(broker, load, [row(later + 1000, due=FAR - 9), row(1, due=FAR - 5)])
    assert waker.wait(10) == [("q", queue.shard_of(f"r{later + 1000}"))]
    waker.close()


# -- chunks of a bulk load: entries and keys, large jobs and many ------------------------------------------------------


def keys(broker: Broker, queue: str = "q") -> dict[str, bytes]:
    """Return the keys of all jobs by id."""
    shards = (broker.queue(queue).shard(number) for number in broker.queue(queue).numbers)
    stored = (broker.client.hgetall(shard.names["body"]) for shard in shards)
    return {ident.decode(): body[3:19] for some in stored for ident, body in some.items()}


# -- entries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=new_key(durable=True)), "durable"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, payload=Payload(b"", "1", new_key(durable=True))), "durable"),
        (NewJob("", "work", due_ms=1, delay_ms=None), "1 to 255 bytes"),
        (NewJob("x" * 256, "work", due_ms=1, delay_ms=None), "1 to 255 bytes"),
        (NewJob("é" * 128, "work", due_ms=1, delay_ms=None), "1 to 255 bytes"),
        (NewJob("a\0b", "work", due_ms=1, delay_ms=None), "zero character"),
        (NewJob("a", "x" * 256, due_ms=1, delay_ms=None), "name of a task"),
        (NewJob("a", "work", delay_ms=0, key=bytes(16)), "moment when"),
        (NewJob("a", "work", due_ms=1, delay_ms=None, key=bytes(16), on_conflict="merge"), "only jobs with a payload"),
    ],
)
def test_what_a_bulk_write_cannot_keep_is_refused(new: NewJob, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        entry_of(new)


def test_what_jobs_have_in_common_is_sent_once(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    news = [NewJob(f"r{number}", f"task{number % 3}", due_ms=FAR, delay_ms=None) for number in range(200)]
    with watch_calls(broker) as calls:
        assert write(broker, load, news) == {"created": 200}
    (call,) = [call for call in calls if call.name == "bulk"]
    assert [call.args[2].count(b"task%d" % number) for number in range(3)] == [1, 1, 1]


# -- keys ------------------------------------------------------------------------------------------------------------


def test_each_job_has_a_key_of_its_own_and_the_same_in_every_try(broker: Broker) -> None:
    seen = []
    for load_id in ("a", "a", "b"):
        broker.client.flushdb()
        broker.queue("q", shards=3).reload()
        write(broker, open_load(broker, load_id, "q", chunk=40), rows(300))
        seen.append(keys(broker))
    assert len(set(seen[0].values())) == 300
    assert seen[0] == seen[1]
    assert not set(seen[0].values()) & set(seen[2].values())
    assert all(key[0] < 0x80 and created_ms(key) is None for found in seen for key in found.values())


def test_what_a_chunk_had_left_over_keeps_its_keys(broker: Broker) -> None:
    """The queue accepted the first rows; the others are sent again when there is room, and in the next try."""
    queue = broker.queue("q")
    broker.limit("q", max_length=30)
    load = open_load(broker, "a", "q")
    with pytest.raises(QueueFull):
        write(broker, load, rows(50))
    some = keys(broker)
    assert 0 < len(some) < 50
    broker.limit("q", max_length=0)
    assert write(broker, load, rows(50)) == {"created": 50}
    whole = keys(broker)
    assert len(set(whole.values())) == 50
    assert {ident: whole[ident] for ident in some} == some
    queue.reload()
    broker.client.flushdb()
    queue.reload()
    write(broker, open_load(broker, "a", "q"), rows(50))
    assert keys(broker) == whole


# -- large and many --------------------------------------------------------------------------------------------------


def test_large_jobs_make_smaller_chunks(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    news = [row(number, args=b"x" * 300_000) for number in range(20)] + [row("big", args=b"y" * 3_000_000)]
    assert write(broker, load, news) == {"created": 21}
    told = [int(event.fields["jobs"]) for event in read_events(broker, "q", 0)]
    assert (max(told), sum(told)) == (4, 21)


def test_what_waits_for_its_chunk_is_bounded(broker: Broker) -> None:
    broker.queue("q", shards=64)
    load = open_load(broker, "a", "q")
    room = {"waiting_bytes": 4_000}
    writer = writer_of(broker, load, room=room)
    news, most = rows(2000), 0
    for new in news:
        add_row(writer, new)
        most = max(most, collected_bytes(writer))
    assert 1_000 < most < 4_000
    assert writer.finish() == {"created": 2000}
    with unchanged(broker):
        assert write(broker, load, news, room=room) == {"created": 2000}


def test_what_the_caller_raises_leaves_the_lines_clean(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=10)

    def failing() -> Iterator[NewJob]:
        yield from rows(95)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(broker, load, failing())
    assert broker.queue("q").schedule(row("after")) == "created"
    assert write(broker, load, rows(100)) == {"created": 100}
    assert live(broker) == 101


# -- equivalence of bulk loads and ``schedule_many``: the resulting world is the same, whatever lives before -----------


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
