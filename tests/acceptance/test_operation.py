"""Starting, stopping, replacing and relieving workers."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter

from django_delayq.core.job import NewJob
from django_delayq.core.records.frames import pack_new
from django_delayq.core.records.keys import wake_key
from tests.support.processes import alive

from .conftest import MakeMill
from .world import Mill, until


def test_t16_in_a_rolling_restart_with_overlap_no_job_is_interrupted_or_run_twice(make_mill: MakeMill) -> None:
    mill = make_mill(lease=1.5, WORKER={"grace": 20.0})
    node = mill.start("--threads", 3)
    ids = []
    for _ in range(2):
        ids += [mill.put("grind", 2.0) for _ in range(2)]  # longer than a lease
        ids += mill.put_many("grind", 20, 0.02)
        until(lambda: mill.counts().reserved >= 2, "long jobs in hand")
        old = node
        node = mill.start("--threads", 3)
        old.process.send_signal(signal.SIGTERM)
    mill.wait_ended(ids)
    mill.wait_empty()
    assert [one.wait() for one in mill.nodes[:-1]] == [0, 0]
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    assert "ran out" not in "".join(one.said for one in mill.nodes)
    assert len({line["pid"] for line in mill.starts()}) >= 2


def test_t39_a_stop_during_long_jobs_keeps_the_grace_and_costs_no_attempt(make_mill: MakeMill) -> None:
    grace = 1.0
    mill = make_mill(WORKER={"grace": grace})
    node = mill.start("--threads", 3, "--log-format", "json")
    long = [mill.put("wait_for", str(mill.gate("long")), id=f"long-{n}") for n in range(2)]
    short = mill.put("wait_for", str(mill.gate("short")), id="short")
    for ident in [*long, short]:
        mill.wait_starts(ident)
    pids = node.children()
    node.process.send_signal(signal.SIGTERM)
    told = time.monotonic()
    until(lambda: re.search(r"\bworker \S+ stops, 1 s for running jobs", node.said), "the worker's word of the stop")
    too_late = mill.put("grind", id="too-late")
    mill.gate("short").touch()
    assert node.wait() == 0
    assert time.monotonic() - told <= grace + 5.0
    assert not any(map(alive, pids))
    mill.wait_ended([short], 0.1)
    assert mill.starts(too_late) == [], "nothing is begun after the signal"
    for ident in long:
        view = mill.view(ident)
        assert view is not None
        assert (view.state, view.job.failures, view.job.crashes, view.job.reserves) == ("ready", 0, 0, 1)
    assert mill.broker.workers() == []
    assert [json.loads(line)["level"] for line in node.said.splitlines()[1:]]

    mill.gate("long").touch()
    mill.start()
    mill.wait_ended([*long, too_late])
    assert [line["attempt"] for ident in long for line in mill.starts(ident)] == [1, 1, 1, 1]


def test_t40_a_second_signal_ends_everything_at_once_and_others_take_over(make_mill: MakeMill) -> None:
    mill = make_mill(WORKER={"grace": 30.0})
    node = mill.start("--threads", 2)
    ident = mill.put("wait_for", str(mill.gate()), id="long")
    mill.wait_starts(ident)
    pids = node.children()
    node.process.send_signal(signal.SIGTERM)
    until(lambda: "stops, 30 s for running jobs" in node.said, "the first word of the stop")
    code, seconds = node.stop(signal.SIGINT)
    assert (code, seconds < 15.0) == (0, True), "half of the grace"
    assert not any(map(alive, pids))
    mill.gate().touch()
    mill.start()
    mill.wait_ended([ident])
    assert [line["attempt"] for line in mill.starts(ident)] == [1, 1], "an interrupted run is no failed attempt"


def test_a_process_is_replaced_after_its_number_of_jobs(make_mill: MakeMill) -> None:
    mill = make_mill()
    node = mill.start("--threads", 2, "--max-jobs", 25)
    ids = mill.put_many("grind", 100)
    mill.wait_ended(ids)
    mill.wait_empty()
    assert mill.starts_by_id() == dict.fromkeys(ids, 1)
    assert sorted(Counter(line["pid"] for line in mill.starts()).values()) == [25, 25, 25, 25]
    assert "WARNING" not in node.said


def test_a_dispatcher_alone_wakes_and_feeds_workers_that_have_none(make_mill: MakeMill) -> None:
    mill = make_mill(lease=1.5)
    mill.broker.queue("default", shards=24)
    gone = mill.start("--no-dispatcher")
    held = mill.put("wait_for", str(mill.gate()), id="held")
    mill.wait_starts(held)
    stays = mill.start("--no-dispatcher")
    gone.kill()
    mill.gate().touch()
    lost = [mill.job("grind", id=f"no-token-{number}") for number in range(20)]
    for job in lost:
        schedule_without_token(mill, job)
    assert len(mill.starts()) < 1 + len(lost), "nobody needed a dispatcher"
    dispatcher = mill.begin("--queues", "default", command="delayq_dispatcher")
    mill.wait_ended([held, *(job.id for job in lost)], 8.0)
    mill.wait_empty()
    assert {line["pid"] for line in mill.lines("end")} == set(stays.children())
    assert mill.starts_by_id() == {held: 2, **dict.fromkeys((job.id for job in lost), 1)}
    assert dispatcher.stop()[0] == 0


def schedule_without_token(mill: Mill, job: NewJob) -> None:
    """Schedule a job whose wake token gets lost: it is gone before anybody who waits for it is served."""
    queue = mill.broker.queue("default")
    shard = queue.shard(queue.shard_of(job.id))
    _, source = mill.broker.scripts.loaded("schedule")
    with mill.broker.client.pipeline(transaction=True) as pipe:
        pipe.eval(source, len(shard.keys), *shard.keys, os.urandom(16), shard.constants, pack_new(job), b"0")
        pipe.delete(wake_key(mill.prefix, "default"))
        pipe.execute()
