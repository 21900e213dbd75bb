"""Records of bulk loads: open, resume, close, forget."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.core import Broker, DelayQError, InvalidJob
from tests.support.core_calls import broker_clock
from tests.support.core_stored import bulk_loads_key

from .bulk_loads_stage import (
    CLOSED_MS,
    LOAD_FORM,
    BulkLoadClosed,
    BulkLoadDiffers,
    BulkLoadWriter,
    add_row,
    close_load,
    counted,
    forget_load,
    forget_old_loads,
    key_of,
    ledgers,
    list_loads,
    live,
    open_ledgers,
    open_load,
    read_load,
    row,
    rows,
    write,
    write_all,
)
from .epochs_stage import Killed, dies_after, other


def test_a_run_is_gone_on_with_as_it_was_opened(broker: Broker) -> None:
    broker.queue("q", shards=4)
    load = open_load(broker, "nightly", "q", source={"path": "a.csv", "size": 17})
    assert (load.queue, load.epochs, load.chunk, load.state, load.closed) == ("q", ((0, 4),), 250, "open", False)
    assert load.source == (("path", "a.csv"), ("size", "17"))
    assert abs(load.opened_ms - broker.now_ms()) < 60_000
    broker.reshard("q", 6)
    assert open_load(broker, "nightly", "q", source={"size": "17", "path": "a.csv"}) == load
    assert read_load(broker, "nightly") == load
    assert read_load(broker, "another") is None


def test_a_run_makes_its_queue_and_brings_a_deleted_one_back(broker: Broker) -> None:
    assert open_load(broker, "a", "fresh").epochs == ((0, 1),)
    here = other(broker)
    assert here.queue("fresh").epochs == ((0, 1),)
    broker.delete_queue("fresh")
    assert open_load(here, "b", "fresh").epochs == ((1, 1),)


def test_what_this_process_knows_of_a_queue_may_be_old(broker: Broker) -> None:
    broker.queue("q", shards=2)
    here = other(broker)
    here.queue("q")
    broker.reshard("q", 3)
    assert open_load(here, "a", "q").epochs == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"queue": "other"}, "queue was 'q' and is 'other'"),
        ({"chunk": 100}, "chunk was '250' and is '100'"),
        ({"source": {"path": "b.csv", "size": 17}}, "path was 'a.csv' and is 'b.csv'"),
        ({"source": {"path": "a.csv"}}, "size was '17' and is 'nothing'"),
        ({"source": {"path": "a.csv", "size": 17, "rows": 3}}, "rows was 'nothing' and is '3'"),
        ({"source": {"path": "x" * 500, "size": 18}}, "size was '17' and is '18'"),
    ],
)
def test_a_run_with_another_input_is_refused_by_name(broker: Broker, change: dict[str, Any], told: str) -> None:
    first: dict[str, Any] = {"queue": "q", "source": {"path": "a.csv", "size": 17}}
    load = open_load(broker, "nightly", **first)
    with pytest.raises(BulkLoadDiffers) as caught:
        open_load(broker, "nightly", **{**first, **change})
    assert told in str(caught.value)
    assert "begin a new bulk load under another id" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert read_load(broker, "nightly") == load
    close_load(broker, load)
    with pytest.raises(BulkLoadDiffers):
        open_load(broker, "nightly", **{**first, **change})


@pytest.mark.parametrize("load_id", ["", "x" * 201, "é" * 101, "a b", "a\nb", "a\0b", "\ud800", "\u00a0"])
def test_an_id_that_cannot_be_one_is_refused(broker: Broker, load_id: str) -> None:
    with pytest.raises(InvalidJob, match="1 to 200 bytes"):
        open_load(broker, load_id, "q")
    assert list_loads(broker) == []


@pytest.mark.parametrize("chunk", [0, -1, 251, True, 2.5, "250"])
def test_a_chunk_that_cannot_be_is_refused(broker: Broker, chunk: Any) -> None:
    with pytest.raises(InvalidJob, match=r"1 to 250 jobs"):
        open_load(broker, "a", "q", chunk=chunk)


@pytest.mark.parametrize("load_id", ["x" * 200, "é" * 100, "{a}:load:{b}", "a:meta", "*?[x]"])
def test_any_other_id_will_do(broker: Broker, load_id: str) -> None:
    load = open_load(broker, load_id, "q")
    assert write(broker, load, rows(3)).counts == {"created": 3}
    assert write(broker, load, rows(3)).counts == counted(broker, load) == {"created": 3}
    assert close_load(broker, load).counts == (("created", 3),)
    assert [known.id for known in list_loads(broker)] == [load_id]
    assert forget_load(broker, load_id)
    assert open_ledgers(broker) == []


def test_all_runs_are_listed_the_oldest_first(broker: Broker) -> None:
    made = [open_load(broker, name, "q") for name in ("c", "a", "b")]
    assert list_loads(broker) == sorted(made, key=lambda load: (load.opened_ms, load.id))


def test_a_record_of_a_newer_release_can_be_read(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    key = bulk_loads_key(broker.prefix)
    broker.client.hset(key, "a", json.dumps({**json.loads(broker.client.hget(key, "a")), "colour": "blue"}))
    assert read_load(broker, "a") == load


def test_a_closed_run_keeps_its_counts_and_forgets_its_chunks(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    queue.schedule(row(5))
    load = open_load(broker, "a", "q")
    write(broker, load, rows(1000))
    assert counted(broker, load) == {"created": 999, "ignored": 1}
    sizes = [broker.client.hlen(key) for key in ledgers(broker)]
    assert len(sizes) == 3 and min(sizes) > 1
    closed = close_load(broker, load)
    assert closed.closed and closed.closed_ms >= load.opened_ms
    assert dict(closed.counts) == counted(broker, load) == counted(broker, closed) == {"created": 999, "ignored": 1}
    assert close_load(broker, load) == close_load(broker, closed) == read_load(broker, "a") == closed
    assert open_load(broker, "a", "q") == closed
    assert all(set(broker.client.hkeys(key)) <= {b"\0closed", b"\0c", b"\0i"} for key in ledgers(broker))
    assert all(0 < broker.client.pttl(key) <= CLOSED_MS for key in ledgers(broker))


def test_who_was_left_behind_is_turned_away_and_writes_nothing(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    late = BulkLoadWriter(broker, load)
    write(broker, load, rows(10))
    close_load(broker, load)
    with pytest.raises(BulkLoadClosed, match="'a' was closed or forgotten"):
        write_all(late, rows(600))
    assert live(broker) == 10
    with pytest.raises(DelayQError, match="resume the bulk load with a new sender"):
        late.finish()
    with pytest.raises(BulkLoadClosed):
        BulkLoadWriter(broker, close_load(broker, load))


@pytest.mark.parametrize("calls", range(5))
def test_a_closing_that_broke_off_is_finished_with_the_same_counts(broker: Broker, calls: int) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(100))
    with pytest.raises(Killed), dies_after(broker, calls):
        close_load(broker, load)
    record = read_load(broker, "a")
    assert record is not None and record.state == ("closing" if calls else "open")
    assert counted(broker, load) == {"created": 100}
    closed = open_load(broker, "a", "q") if calls else close_load(broker, load)
    assert closed.closed
    assert closed.counts == (("created", 100),)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("calls", range(1, 5))
def test_a_forgetting_that_broke_off_is_finished_by_who_opens_or_forgets_the_load(
    broker: Broker, calls: int, ended: bool
) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(100))
    if ended:
        close_load(broker, load)
    with pytest.raises(Killed), dies_after(broker, calls):
        forget_load(broker, "a")
    assert counted(broker, load) == {"created": 100}
    assert close_load(broker, load).closed
    assert [record.state for record in list_loads(broker)] == ["forgetting"], "it is not closed, for it is no more"
    if calls > 1:  # the first ledger is closed
        with pytest.raises(BulkLoadClosed):
            write(broker, load, rows(100))
    if calls % 2:
        anew = open_load(broker, "a", "q", source={"path": "another"})
        assert anew.opened_ms > load.opened_ms
        assert write(broker, anew, rows(101)).counts == {"created": 1, "ignored": 100}
        assert len(open_ledgers(broker)) == 3
    assert forget_old_loads(broker, 0) == ["a"]
    assert list_loads(broker) == []
    assert open_ledgers(broker) == []


def test_a_forgotten_run_leaves_nothing_but_its_jobs(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(10))
    assert forget_load(broker, "a")
    assert not forget_load(broker, "a")
    assert open_ledgers(broker) == []
    assert list_loads(broker) == []
    assert live(broker) == 10


def test_who_is_at_work_on_a_run_that_is_forgotten_is_turned_away(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=10)
    behind = BulkLoadWriter(broker, load)
    write(broker, load, rows(50))
    assert forget_load(broker, "a")
    with pytest.raises(BulkLoadClosed):
        for new in rows(100):
            add_row(behind, new)
        behind.finish()
    assert live(broker) == 50
    anew = open_load(broker, "a", "q", chunk=10)
    assert write(broker, anew, rows(100)).counts == {"created": 50, "ignored": 50}


def test_a_run_that_is_opened_in_the_same_moment_as_one_that_was_forgotten_is_another_one(broker: Broker) -> None:
    now = broker.now_ms()
    with broker_clock(broker, lambda: now):
        first = open_load(broker, "a", "q")
        write(broker, first, rows(3))
        forget_load(broker, "a")
        second = open_load(broker, "a", "q")
    assert second.opened_ms > first.opened_ms
    assert write(broker, second, [row("new")]).counts == {"created": 1}
    assert close_load(broker, first).closed
    assert read_load(broker, "a") == second


def test_a_run_whose_chunks_were_made_in_another_way_is_not_gone_on_with(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    stored = json.loads(broker.client.hget(bulk_loads_key(broker.prefix), "a"))
    broker.client.hset(bulk_loads_key(broker.prefix), "a", json.dumps({**stored, "form": LOAD_FORM - 1}))
    with pytest.raises(BulkLoadDiffers, match="form of its chunks"):
        open_load(broker, "a", "q")
    close_load(broker, load)
    assert open_load(broker, "a", "q").closed


def test_a_run_that_was_forgotten_is_not_brought_back_by_who_closes_it(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    assert forget_load(broker, "a")
    assert close_load(broker, load).closed
    assert list_loads(broker) == []


def test_old_runs_are_forgotten_closed_or_open(broker: Broker) -> None:
    def age(load_id: str, **fields: int) -> None:
        key = bulk_loads_key(broker.prefix)
        broker.client.hset(key, load_id, json.dumps({**json.loads(broker.client.hget(key, load_id)), **fields}))

    now, day = round(broker.now_ms()), 86_400_000
    opened = {"open,_old": 10, "open": 0, "closed,_old": 30, "closed_late": 30, "closed": 0}
    for load_id, days in opened.items():
        open_load(broker, load_id, "q")
        age(load_id, opened_ms=now - days * day)
        load = read_load(broker, load_id)
        write(broker, load, [row(load_id)])
        if load_id.startswith("closed"):
            close_load(broker, load)
    age("closed,_old", closed_ms=now - 10 * day)
    assert forget_old_loads(broker, 9 * day) == ["closed,_old", "open,_old"]
    assert {load.id for load in list_loads(broker)} == {"open", "closed_late", "closed"}
    assert len(open_ledgers(broker)) == 1
    assert forget_old_loads(broker, 9 * day) == []
    assert sorted(forget_old_loads(broker, 0)) == ["closed", "closed_late", "open"]
    assert open_ledgers(broker) == []
    assert live(broker) == 5
    for wrong in (-1, 1.5, True, "9"):
        with pytest.raises(InvalidJob, match="older_than_ms"):
            forget_old_loads(broker, wrong)  # type: ignore[arg-type]


def test_the_key_of_a_generation_is_the_same_in_every_try_and_never_durable() -> None:
    keys = {key_of(load, b"%d" % number) for load in ("a", "b") for number in range(200)}
    assert len(keys) == 400
    assert all(len(key) == 16 and key < b"\x80" for key in keys)
    # A bulk load may be under way while this is released.
    assert key_of("a", b"7").hex() == "469089f7eedf83eda8fb83d8184c4ef8"
