"""Records of bulk loads: open, resume, close, forget."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq.core.broker import Broker
from django_delayq.core.errors import DelayQError, InvalidJob
from django_delayq.core.records.keys import runs_key
from django_delayq.core.records.run_frames import entry_of, with_keys
from django_delayq.core.sending import runs
from django_delayq.core.sending.run_writer import RunClosed, RunWriter, write_all
from django_delayq.core.sending.runs import RunDiffers

from .epochs_stage import Killed, kill_after, other
from .runs_stage import counted, ledgers, live, open_ledgers, row, rows, write


def test_a_run_is_gone_on_with_as_it_was_opened(broker: Broker) -> None:
    broker.queue("q", shards=4)
    run = runs.open_run(broker, "nightly", "q", source={"path": "a.csv", "size": 17})
    assert (run.queue, run.epochs, run.chunk, run.state, run.closed) == ("q", ((0, 4),), 250, "open", False)
    assert run.source == (("path", "a.csv"), ("size", "17"))
    assert abs(run.opened_ms - broker.now_ms()) < 60_000
    broker.reshard("q", 6)
    assert runs.open_run(broker, "nightly", "q", source={"size": "17", "path": "a.csv"}) == run
    assert runs.read_run(broker, "nightly") == run
    assert runs.read_run(broker, "another") is None


def test_a_run_makes_its_queue_and_brings_a_deleted_one_back(broker: Broker) -> None:
    assert runs.open_run(broker, "a", "fresh").epochs == ((0, 1),)
    here = other(broker)
    assert here.queue("fresh").epochs == ((0, 1),)
    broker.delete_queue("fresh")
    assert runs.open_run(here, "b", "fresh").epochs == ((1, 1),)


def test_what_this_process_knows_of_a_queue_may_be_old(broker: Broker) -> None:
    broker.queue("q", shards=2)
    here = other(broker)
    here.queue("q")
    broker.reshard("q", 3)
    assert runs.open_run(here, "a", "q").epochs == ((0, 2), (1, 3))


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
    run = runs.open_run(broker, "nightly", **first)
    with pytest.raises(RunDiffers) as caught:
        runs.open_run(broker, "nightly", **{**first, **change})
    assert told in str(caught.value)
    assert "begin a new run under another id" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert runs.read_run(broker, "nightly") == run
    runs.close_run(broker, run)
    with pytest.raises(RunDiffers):
        runs.open_run(broker, "nightly", **{**first, **change})


@pytest.mark.parametrize("run_id", ["", "x" * 201, "é" * 101, "a b", "a\nb", "a\0b", "\ud800", "\u00a0"])
def test_an_id_that_cannot_be_one_is_refused(broker: Broker, run_id: str) -> None:
    with pytest.raises(InvalidJob, match="1 to 200 bytes"):
        runs.open_run(broker, run_id, "q")
    assert runs.runs(broker) == []


@pytest.mark.parametrize("chunk", [0, -1, 251, True, 2.5, "250"])
def test_a_chunk_that_cannot_be_is_refused(broker: Broker, chunk: Any) -> None:
    with pytest.raises(InvalidJob, match=r"1 to 250 jobs"):
        runs.open_run(broker, "a", "q", chunk=chunk)


@pytest.mark.parametrize("run_id", ["x" * 200, "é" * 100, "{a}:run:{b}", "a:meta", "*?[x]"])
def test_any_other_id_will_do(broker: Broker, run_id: str) -> None:
    run = runs.open_run(broker, run_id, "q")
    assert write(broker, run, rows(3)).counts == {"created": 3}
    assert write(broker, run, rows(3)).counts == counted(broker, run) == {"created": 3}
    assert runs.close_run(broker, run).counts == (("created", 3),)
    assert [known.id for known in runs.runs(broker)] == [run_id]
    assert runs.forget_run(broker, run_id)
    assert open_ledgers(broker) == []


def test_all_runs_are_listed_the_oldest_first(broker: Broker) -> None:
    made = [runs.open_run(broker, name, "q") for name in ("c", "a", "b")]
    assert runs.runs(broker) == sorted(made, key=lambda run: (run.opened_ms, run.id))


def test_a_record_of_a_newer_release_can_be_read(broker: Broker) -> None:
    run = runs.open_run(broker, "a", "q")
    key = runs_key(broker.prefix)
    broker.client.hset(key, "a", json.dumps({**json.loads(broker.client.hget(key, "a")), "colour": "blue"}))
    assert runs.read_run(broker, "a") == run


def test_a_closed_run_keeps_its_counts_and_forgets_its_chunks(broker: Broker) -> None:
    queue = broker.queue("q", shards=3)
    queue.schedule(row(5))
    run = runs.open_run(broker, "a", "q")
    write(broker, run, rows(1000))
    assert counted(broker, run) == {"created": 999, "ignored": 1}
    sizes = [broker.client.hlen(key) for key in ledgers(broker)]
    assert len(sizes) == 3 and min(sizes) > 1
    closed = runs.close_run(broker, run)
    assert closed.closed and closed.closed_ms >= run.opened_ms
    assert dict(closed.counts) == counted(broker, run) == counted(broker, closed) == {"created": 999, "ignored": 1}
    assert runs.close_run(broker, run) == runs.close_run(broker, closed) == runs.read_run(broker, "a") == closed
    assert runs.open_run(broker, "a", "q") == closed
    assert all(set(broker.client.hkeys(key)) <= {b"\0closed", b"\0c", b"\0i"} for key in ledgers(broker))
    assert all(0 < broker.client.pttl(key) <= runs.CLOSED_MS for key in ledgers(broker))


def test_who_was_left_behind_is_turned_away_and_writes_nothing(broker: Broker) -> None:
    broker.queue("q", shards=2)
    run = runs.open_run(broker, "a", "q")
    late = RunWriter(broker, run)
    write(broker, run, rows(10))
    runs.close_run(broker, run)
    with pytest.raises(RunClosed, match="'a' was closed or forgotten"):
        write_all(late, rows(600))
    assert live(broker) == 10
    with pytest.raises(DelayQError, match="go on with the run with a new one"):
        late.finish()
    with pytest.raises(RunClosed):
        RunWriter(broker, runs.close_run(broker, run))


@pytest.mark.parametrize("calls", range(5))
def test_a_closing_that_broke_off_is_finished_with_the_same_counts(
    broker: Broker, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.queue("q", shards=3)
    run = runs.open_run(broker, "a", "q")
    write(broker, run, rows(100))
    with monkeypatch.context() as patch:
        kill_after(broker, calls, patch)
        with pytest.raises(Killed):
            runs.close_run(broker, run)
    record = runs.read_run(broker, "a")
    assert record is not None and record.state == ("closing" if calls else "open")
    assert counted(broker, run) == {"created": 100}
    closed = runs.open_run(broker, "a", "q") if calls else runs.close_run(broker, run)
    assert closed.closed
    assert closed.counts == (("created", 100),)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("calls", range(1, 5))
def test_a_forgetting_that_broke_off_is_finished_by_who_opens_or_forgets_the_run(
    broker: Broker, calls: int, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.queue("q", shards=3)
    run = runs.open_run(broker, "a", "q")
    write(broker, run, rows(100))
    if ended:
        runs.close_run(broker, run)
    with monkeypatch.context() as patch:
        kill_after(broker, calls, patch)
        with pytest.raises(Killed):
            runs.forget_run(broker, "a")
    assert counted(broker, run) == {"created": 100}
    assert runs.close_run(broker, run).closed
    assert [record.state for record in runs.runs(broker)] == ["forgetting"], "it is not closed, for it is no more"
    if calls > 1:  # the first ledger is closed
        with pytest.raises(RunClosed):
            write(broker, run, rows(100))
    if calls % 2:
        anew = runs.open_run(broker, "a", "q", source={"path": "another"})
        assert anew.opened_ms > run.opened_ms
        assert write(broker, anew, rows(101)).counts == {"created": 1, "ignored": 100}
        assert len(open_ledgers(broker)) == 3
    assert runs.forget_old(broker, 0) == ["a"]
    assert runs.runs(broker) == []
    assert open_ledgers(broker) == []


def test_a_forgotten_run_leaves_nothing_but_its_jobs(broker: Broker) -> None:
    broker.queue("q", shards=2)
    run = runs.open_run(broker, "a", "q")
    write(broker, run, rows(10))
    assert runs.forget_run(broker, "a")
    assert not runs.forget_run(broker, "a")
    assert open_ledgers(broker) == []
    assert runs.runs(broker) == []
    assert live(broker) == 10


def test_who_is_at_work_on_a_run_that_is_forgotten_is_turned_away(broker: Broker) -> None:
    broker.queue("q", shards=2)
    run = runs.open_run(broker, "a", "q", chunk=10)
    behind = RunWriter(broker, run)
    write(broker, run, rows(50))
    assert runs.forget_run(broker, "a")
    with pytest.raises(RunClosed):
        for new in rows(100):
            behind.add(*entry_of(with_keys(run.id, new)))
        behind.finish()
    assert live(broker) == 50
    anew = runs.open_run(broker, "a", "q", chunk=10)
    assert write(broker, anew, rows(100)).counts == {"created": 50, "ignored": 50}


def test_a_run_that_is_opened_in_the_same_moment_as_one_that_was_forgotten_is_another_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = broker.now_ms()
    monkeypatch.setattr(Broker, "now_ms", lambda _: now)
    first = runs.open_run(broker, "a", "q")
    write(broker, first, rows(3))
    runs.forget_run(broker, "a")
    second = runs.open_run(broker, "a", "q")
    assert second.opened_ms > first.opened_ms
    assert write(broker, second, [row("new")]).counts == {"created": 1}
    assert runs.close_run(broker, first).closed
    assert runs.read_run(broker, "a") == second


def test_a_run_whose_chunks_were_made_in_another_way_is_not_gone_on_with(broker: Broker) -> None:
    run = runs.open_run(broker, "a", "q")
    stored = json.loads(broker.client.hget(runs_key(broker.prefix), "a"))
    broker.client.hset(runs_key(broker.prefix), "a", json.dumps({**stored, "form": runs.FORM - 1}))
    with pytest.raises(RunDiffers, match="form of its chunks"):
        runs.open_run(broker, "a", "q")
    runs.close_run(broker, run)
    assert runs.open_run(broker, "a", "q").closed


def test_a_run_that_was_forgotten_is_not_brought_back_by_who_closes_it(broker: Broker) -> None:
    run = runs.open_run(broker, "a", "q")
    assert runs.forget_run(broker, "a")
    assert runs.close_run(broker, run).closed
    assert runs.runs(broker) == []


def test_old_runs_are_forgotten_closed_or_open(broker: Broker) -> None:
    def age(run_id: str, **fields: int) -> None:
        key = runs_key(broker.prefix)
        broker.client.hset(key, run_id, json.dumps({**json.loads(broker.client.hget(key, run_id)), **fields}))

    now, day = round(broker.now_ms()), 86_400_000
    opened = {"open,_old": 10, "open": 0, "closed,_old": 30, "closed_late": 30, "closed": 0}
    for run_id, days in opened.items():
        runs.open_run(broker, run_id, "q")
        age(run_id, opened_ms=now - days * day)
        run = runs.read_run(broker, run_id)
        write(broker, run, [row(run_id)])
        if run_id.startswith("closed"):
            runs.close_run(broker, run)
    age("closed,_old", closed_ms=now - 10 * day)
    assert runs.forget_old(broker, 9 * day) == ["closed,_old", "open,_old"]
    assert {run.id for run in runs.runs(broker)} == {"open", "closed_late", "closed"}
    assert len(open_ledgers(broker)) == 1
    assert runs.forget_old(broker, 9 * day) == []
    assert sorted(runs.forget_old(broker, 0)) == ["closed", "closed_late", "open"]
    assert open_ledgers(broker) == []
    assert live(broker) == 5
    for wrong in (-1, 1.5, True, "9"):
        with pytest.raises(InvalidJob, match="older_than_ms"):
            runs.forget_old(broker, wrong)  # type: ignore[arg-type]


def test_the_key_of_a_generation_is_the_same_in_every_try_and_never_durable() -> None:
    keys = {runs.key_of(run, b"%d" % number) for run in ("a", "b") for number in range(200)}
    assert len(keys) == 400
    assert all(len(key) == 16 and key < b"\x80" for key in keys)
    # A run may be under way while this is released.
    assert runs.key_of("a", b"7").hex() == "469089f7eedf83eda8fb83d8184c4ef8"
