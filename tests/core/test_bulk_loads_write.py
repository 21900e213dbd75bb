"""Jobs stored by a bulk load, and their visibility to other clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Broker, NewJob, RedisConfig, connect, fail
from tests.support.core_values import new_key
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .bulk_loads_stage import (
    FAR,
    counted,
    idents,
    merged_row,
    open_load,
    open_on,
    row,
    rows,
    write,
)
from .epochs_stage import take_all
from .events_stage import read_events
from .stage import T0, Stage
from .world import read_world, unchanged

# -- what goes in ----------------------------------------------------------------------------------------------------


def test_an_id_that_is_twice_in_the_input_meets_itself(stage: Stage) -> None:
    load = open_on(stage, chunk=4)
    news = [row(1, args=b"1"), row(2), row(1, args=b"2"), row(3), row(4), row(5), row(6), row(1, args=b"3")]
    assert write(stage.broker, load, news) == {"created": 6, "ignored": 2}
    assert read_world(stage.queue, 0)["lives"]["r1"]["content"].args == b"1"
    again = open_on(stage, "b", chunk=4)
    for new in news:
        new.on_conflict = "replace"
    assert write(stage.broker, again, news) == {"replaced": 8}
    assert read_world(stage.queue, 0)["lives"]["r1"]["content"].args == b"3"
    assert counted(stage.broker, again) == {"replaced": 8}


def test_an_id_in_two_shapes_goes_in_in_the_order_in_which_it_is_given(stage: Stage) -> None:
    news = [row(1, priority=number % 3, on_conflict="replace", args=b"%d" % number) for number in range(20)]
    assert write(stage.broker, open_on(stage), news) == {"created": 1, "replaced": 19}
    assert read_world(stage.queue, 0)["lives"]["r1"]["content"].args == b"19"


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


@pytest.mark.parametrize(
    ("on_conflict", "waiting", "held", "other_task"),
    [
        ("ignore", "ignored", "ignored", "taken"),
        ("error", "exists", "exists", "taken"),
        ("replace", "replaced", "gated", "taken"),
    ],
)
def test_what_lives_already_is_met_as_the_rows_say(
    stage: Stage, on_conflict: str, waiting: str, held: str, other_task: str
) -> None:
    stage.put("r1", at=0)
    (job,) = stage.take()
    stage.put("r2", at=50_000)
    stage.put("r3", at=50_000, task="other")
    written = write(stage.broker, open_on(stage), rows(5, due=T0 + 70_000, on_conflict=on_conflict))
    expected = Counter({"created": 2})
    expected.update([waiting, held, other_task])
    assert written == counted(stage.broker, open_on(stage)) == expected
    with unchanged(stage.broker):
        assert write(stage.broker, open_on(stage), rows(5, due=T0 + 70_000, on_conflict=on_conflict)) == expected
    picture = stage.picture()
    assert sorted(picture["waiting"]) == sorted(
        ["r0 +70000", "r2 +70000" if on_conflict == "replace" else "r2 +50000", "r3 +50000", "r4 +70000"]
    )
    assert picture.get("gated") == (["r1 +70000"] if on_conflict == "replace" else None)
    assert stage.done(job) == [True]


@pytest.mark.parametrize("score_policy", ["min", "max", "first", "last"])
@pytest.mark.parametrize("payloads", ["all", "last", "first"])
def test_payloads_are_merged_as_their_rows_say(stage: Stage, payloads: str, score_policy: str) -> None:
    options: dict[str, Any] = {"payloads": payloads, "score_policy": score_policy, "max_payloads": 3}
    scores = [5, 3, 9, 1, 7, 3] if payloads != "all" else [5, 3, 9]
    news = [merged_row("m", b"%d" % (place % 4), str(score), **options) for place, score in enumerate(scores)]
    one_by_one = Stage(stage.broker, name="other")
    outcomes = Counter(one_by_one.queue.schedule(with_key(new)) for new in news)
    assert write(stage.broker, open_on(stage), news) == outcomes
    assert [(data, score) for data, score, _ in payloads_of(stage)] == [
        (data, score) for data, score, _ in payloads_of(one_by_one)
    ]
    with unchanged(stage.broker):
        assert write(stage.broker, open_on(stage), news) == outcomes


def with_key(new: NewJob) -> NewJob:
    assert new.payload is not None
    return replace(new, payload=replace(new.payload, key=new_key(durable=False)))


def payloads_of(stage: Stage) -> list[tuple[bytes, str, bytes]]:
    found = read_world(stage.queue, 0)["lives"]["m"]["waiting"]
    return [(payload.data, payload.score, payload.key) for payload in found]


def test_a_payload_whose_score_is_the_moment_of_its_arrival_gets_it_once(stage: Stage) -> None:
    news = [merged_row("m", b"a", ""), merged_row("m", b"b", "")]
    write(stage.broker, open_on(stage, chunk=1), news)
    stage.wait(5000)
    write(stage.broker, open_on(stage, chunk=1), news)
    assert [score for _, score, _ in payloads_of(stage)] == [f"{T0 // 1000}.000000"] * 2


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


DUES = [0, 1, 999, -1, -5, -86_400_000, 1_700_000_000_000, 253_402_300_799_999, 9_000_000_000_000]


@pytest.mark.parametrize("dues", [DUES, [due for due in DUES if due >= 0]])
def test_a_due_time_in_the_past_or_far_ahead_is_kept_to_the_millisecond(stage: Stage, dues: list[int]) -> None:
    news = [row(place, due=due) for place, due in enumerate(dues)]
    write(stage.broker, open_on(stage), news)
    one_by_one = Stage(stage.broker, name="other")
    for new in news:
        one_by_one.queue.schedule(new)
    found = {ident: due for _, ident, due in read_world(stage.queue, 0)["waiting"]}
    assert found == {f"r{place}": due for place, due in enumerate(dues)}
    scores = [stage.broker.client.zrange(made.key("due.4"), 0, -1, withscores=True) for made in (stage, one_by_one)]
    assert scores[0] == scores[1]


def test_jobs_of_one_due_time_run_in_the_order_of_the_rows(stage: Stage) -> None:
    for number in (3, 250, 600):
        stage.put(f"r{number}", at=0)
    write(stage.broker, open_on(stage), rows(1000, due=T0, on_conflict="replace"))
    order = [job.id for _ in range(4) for job in stage.take(250)]
    start = order.index("r0")  # a place of arrival has three digits
    assert order[start:] + order[:start] == [f"r{number}" for number in range(1000)]


@pytest.mark.parametrize("cut", ["cut_after_request", "cut_before_request"])
def test_a_lost_line_does_not_change_the_order(
    redis_box: RedisBox, redis_url: str, prefix: str, proxy_factory: Callable[[Any], TcpProxy], cut: str
) -> None:
    proxy = proxy_factory(str(redis_box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    told: list[tuple[str, bool]] = []
    broker = Broker(connection, prefix=prefix, observe=lambda verb, _, failed: told.append((verb, failed)))
    queue = broker.queue("q")
    load = open_load(broker, "a", "q", chunk=25)
    getattr(proxy, cut)(7, when=lambda chunk: b"load:a" in chunk and b"EVALSHA" in chunk)
    write(broker, load, rows(900, due=1))
    assert proxy.cuts_done == 1
    order = [job.id for _ in range(4) for job in queue.reserve(0, 250, worker="w").jobs]
    assert order == [f"r{number}" for number in range(900)]
    assert told.count(("bulk", False)) == 900 / 25 / 4, "four calls are sent, and counted, together"
    connection.close()


def test_every_priority_class_is_used(stage: Stage) -> None:
    news = [row(number, priority=number % 8) for number in range(64)]
    assert write(stage.broker, open_on(stage), news) == {"created": 64}
    assert Counter(priority for priority, _, _ in read_world(stage.queue, 0)["waiting"]) == dict.fromkeys(range(8), 8)
    write(stage.broker, open_on(stage, "b"), [row(number, priority=1, on_conflict="replace") for number in range(64)])
    assert {priority for priority, _, _ in read_world(stage.queue, 0)["waiting"]} == {1}


def test_a_replacement_forgets_failures_unless_it_is_told_to_keep_them(stage: Stage) -> None:
    for number in range(2):
        stage.put(f"r{number}", at=0)
    for job in stage.take():
        assert stage.failed(job, 60_000)
    write(
        stage.broker,
        open_on(stage),
        [row(0, on_conflict="replace"), row(1, on_conflict="replace", reset_retries=False)],
    )
    assert stage.picture()["failed"] == ["r1 x1"]


def test_a_queue_of_raw_bytes_takes_them(broker: Broker) -> None:
    queue = broker.queue("pull", kind="pull", shards=2)
    load = open_load(broker, "a", "pull")
    write(broker, load, [row(number, due=1, args=bytes((number, 0, 255))) for number in range(50)])
    assert queue.kind == broker.queue("pull").kind == "pull"
    assert {job.args for job in take_all(queue)} == {bytes((number, 0, 255)) for number in range(50)}


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


def test_failed_jobs_and_graves_of_the_same_id_are_left_alone(stage: Stage) -> None:
    key = stage.in_morgue("r1")
    stage.put("r2", at=0)
    (job,) = stage.take()
    stage.settle(fail(job, 1, 2, delay_ms=60_000))
    assert write(stage.broker, open_on(stage), rows(3)) == {"created": 2, "ignored": 1}
    assert stage.picture()["morgue"] == ["r1 buried"]
    assert stage.picture()["failed"] == ["r2 x1"]
    assert stage.broker.inspector.graves("q", "r1")[0].job.key == key
    assert idents(stage.take()) == []
