"""Bulk loads: their records, and chunks that are sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_delayq.core import Broker, DelayQError, RedisConfig, connect
from tests.support.core_calls import broker_clock
from tests.support.core_stored import bulk_load_key
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .bulk_loads_stage import (
    AT_ONCE,
    DAY_MS,
    KEPT_MS,
    LOAD_FORM,
    BulkLoadDiffers,
    BulkLoadWriter,
    add_row,
    close_load,
    counted,
    keep_load,
    ledgers,
    list_loads,
    live,
    open_load,
    read_load,
    retire_now,
    row,
    rows,
    work_off,
    write,
    write_all,
    write_some,
)
from .epochs_stage import other


def test_a_run_is_gone_on_with_as_it_was_opened(broker: Broker) -> None:
    broker.queue("q", shards=4)
    load = open_load(broker, "nightly", "q", source={"path": "a.csv", "size": 17})
    assert (load.queue, load.epochs, load.chunk, load.closed) == ("q", ((0, 4),), 250, False)
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


@pytest.mark.parametrize("load_id", ["x" * 200, "é" * 100, "{a}:load:{b}", "a:meta", "*?[x]"])
def test_any_other_id_will_do(broker: Broker, load_id: str) -> None:
    load = open_load(broker, load_id, "q")
    assert write(broker, load, rows(3)) == {"created": 3}
    assert write(broker, load, rows(3)) == counted(broker, load) == {"created": 3}
    assert close_load(broker, load).closed
    assert list_loads(broker) == [read_load(broker, load_id)] == [replace(load, closed=True)]


def test_a_record_of_a_newer_release_can_be_read(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    key = bulk_load_key(broker.prefix, "a")
    broker.client.set(key, json.dumps({**json.loads(broker.client.get(key)), "colour": "blue"}))
    assert read_load(broker, "a") == load


def test_a_run_whose_chunks_were_made_in_another_way_is_not_gone_on_with(broker: Broker) -> None:
    load = open_load(broker, "a", "q")
    key = bulk_load_key(broker.prefix, "a")
    broker.client.set(key, json.dumps({**json.loads(broker.client.get(key)), "form": LOAD_FORM - 1}))
    with pytest.raises(BulkLoadDiffers, match="form of its chunks"):
        open_load(broker, "a", "q")
    close_load(broker, load)
    assert open_load(broker, "a", "q").closed


def test_a_closed_run_keeps_its_counts(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    queue.schedule(row(5))
    load = open_load(broker, "a", "q")
    write(broker, load, rows(1000))
    closed = close_load(broker, load)
    assert closed.closed
    assert counted(broker, load) == counted(broker, closed) == {"created": 999, "ignored": 1}
    assert close_load(broker, load) == close_load(broker, closed) == read_load(broker, "a") == closed
    assert open_load(broker, "a", "q") == closed


def test_a_sender_that_failed_is_of_no_further_use(broker: Broker) -> None:
    broker.queue("q")
    broker.pause("q", "in")
    late = BulkLoadWriter(broker, open_load(broker, "a", "q"), AT_ONCE)
    with pytest.raises(DelayQError, match="paused"):
        write_all(late, rows(3))
    with pytest.raises(DelayQError, match="resume the bulk load with a new sender"):
        late.finish()


# -- expiry ------------------------------------------------------------------------------------------------------------


def kept_ms(broker: Broker) -> tuple[int, int]:
    """Return how long the record of load ``a`` is kept, and the ledger that ends first."""
    return broker.client.pttl(bulk_load_key(broker.prefix, "a")), min(map(broker.client.pttl, ledgers(broker)))


def test_a_run_that_is_not_used_for_thirty_days_is_gone_its_ledgers_last(broker: Broker) -> None:
    broker.queue("q", shards=3)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(100))
    record, ledger = kept_ms(broker)
    assert KEPT_MS - 60_000 < record <= KEPT_MS < ledger <= KEPT_MS + DAY_MS
    assert KEPT_MS == 30 * DAY_MS
    closed = close_load(broker, load)
    assert 0 < kept_ms(broker)[0] <= record, "the record still ends first"
    broker.client.delete(bulk_load_key(broker.prefix, "a"))
    close_load(broker, closed)
    assert read_load(broker, "a") is None, "what is gone is not brought back"


def test_a_run_that_is_gone_on_with_is_kept_whole_from_then_on(broker: Broker) -> None:
    """Also the ledgers of shards to which nothing more is written, and of epochs that are retired."""
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=10)
    write_some(broker, load, 100, 300, due=1)
    work_off(broker.queue("q"))
    broker.reshard("q", 3)
    assert retire_now(broker) == [0]
    write(broker, load, rows(300, due=1))
    assert len(ledgers(broker)) == 2 + 3
    for key in (bulk_load_key(broker.prefix, "a"), *ledgers(broker)):
        broker.client.pexpire(key, 60_000)
    assert open_load(other(broker), "a", "q", chunk=10) == load
    record, ledger = kept_ms(broker)
    assert KEPT_MS - 60_000 < record <= KEPT_MS < ledger
    keep_load(broker, load, DAY_MS)
    record, ledger = kept_ms(broker)
    assert DAY_MS - 60_000 < record <= DAY_MS < ledger <= 2 * DAY_MS


def test_a_chunk_keeps_its_ledger_also_of_a_run_that_is_written_for_long(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=10)
    write_some(broker, load, 10, 20)
    broker.client.pexpire(ledgers(broker)[0], 60_000)
    write(broker, load, rows(20))
    assert kept_ms(broker)[1] > KEPT_MS


def test_a_run_that_expired_begins_anew_and_those_who_still_have_it_do_not_disturb(broker: Broker) -> None:
    load = open_load(broker, "a", "q", chunk=10)
    late = BulkLoadWriter(broker, load)
    write(broker, load, rows(20))
    broker.client.delete(bulk_load_key(broker.prefix, "a"))
    with broker_clock(broker, lambda: load.opened_ms + 31 * DAY_MS):
        anew = open_load(broker, "a", "q", source={"path": "another"})
    assert anew.opened_ms > load.opened_ms
    assert write_all(late, rows(20)) == {"created": 20}, "as it was recorded"
    assert write(broker, anew, rows(30)) == counted(broker, anew) == {"created": 10, "ignored": 20}


# -- repeated chunks of a bulk load: they change nothing, whoever sends them and when ----------------------------------


def test_jobs_that_ran_and_are_gone_do_not_run_again(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    load = open_load(broker, "a", "q")
    write(broker, load, rows(700, due=1))
    assert work_off(queue) == 700
    broker.client.script_flush()
    for number in queue.numbers:  # what the shards remember of calls is long forgotten
        names = queue.shard(number).names
        broker.client.delete(names["reply"], names["window"])
    assert write(broker, load, rows(700, due=1)) == {"created": 700}
    assert work_off(queue) == live(broker) == 0
    assert counted(broker, load) == {"created": 700}


@pytest.mark.one_server("scripts of one server")
def test_a_server_that_forgot_its_scripts_in_between_is_told_them_again(broker: Broker) -> None:
    broker.queue("q", shards=2)
    load = open_load(broker, "a", "q")
    writer = BulkLoadWriter(broker, load)
    for number, new in enumerate(rows(2000)):
        if number % 300 == 0:
            broker.client.script_flush()
        add_row(writer, new)
    broker.client.script_flush()
    assert writer.finish() == counted(broker, load) == {"created": 2000}


@pytest.mark.parametrize("cut", ["cut_after_request", "cut_before_request"])
def test_a_lost_reply_writes_nothing_twice(
    redis_box: RedisBox, redis_url: str, prefix: str, proxy_factory: Callable[[Any], TcpProxy], cut: str
) -> None:
    proxy = proxy_factory(str(redis_box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    broker = Broker(connection, prefix=prefix)
    queue = broker.queue("q", shards=2)
    load = open_load(broker, "a", "q", chunk=20)
    ledger = b"load:a"
    write(broker, load, rows(100, due=1)[:40])
    for nth in (1, 2, 4):
        getattr(proxy, cut)(nth, when=lambda chunk: ledger in chunk and b"EVALSHA" in chunk)
        write(broker, load, rows(100 * nth, due=1))
    assert proxy.cuts_done == 3
    assert counted(broker, load)["created"] == live(broker) == 400
    assert work_off(queue) == 400
    connection.close()
