"""Scripts aborted before any one of their writes: fsck repairs the remains, and no job is lost.

Nothing that we know of breaks a script off in the middle (a crash of Redis does not: its log has all of a script or
nothing), so this is the second line of defence: the order of the writes in each script.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ResponseError

from django_delayq.core import Broker, Job, NewJob, Settlement, ack, bury, fail, release
from tests.support.core_calls import replace_script, source_of
from tests.support.core_stored import assert_invariants, check_stored
from tests.support.core_values import Generation, is_durable
from tests.support.older_copy import OlderCopy

from .bulk_stage import cancel_all, delete_failed, discard_many, kick_all, kill_failed, run_all_now
from .epochs_stage import forget_queues
from .stage import Stage
from .world import read_world

Jobs = dict[str, Job]
World = dict[str, Any]
Act = Callable[[Stage, Jobs], Any]

PRELUDE = """
local counted_call
do
local writes, abort_at = 0, tonumber(redis.call('GET', 'abort at'))
local not_writing = { GET=1, HGET=1, HMGET=1, HGETALL=1, HLEN=1, HEXISTS=1, HKEYS=1, ZSCORE=1, ZRANGE=1, ZCARD=1,
  ZCOUNT=1, ZRANGEBYSCORE=1, ZRANGEBYLEX=1, ZREVRANGEBYLEX=1, ZLEXCOUNT=1, LINDEX=1, LLEN=1, LPOS=1, TIME=1,
  INFO=1, ZMSCORE=1 }
counted_call = function(command, ...)
  if not not_writing[command] then
    writes = writes + 1
    if writes == abort_at then
      error('broken off')
    end
  end
  return redis.call(command, ...)
end
end -- of the block: a script has at most 200 local names
"""


def make_breakable(broker: Broker, name: str) -> Callable[[int], None]:
    """Return a function that makes a script abort before its write number ``at`` (0: never), from then on."""
    source = source_of(broker, name, test_clock=True)
    first, rest = source.split("\n", 1) if source.startswith("#!") else ("", source)
    replace_script(broker, name, first + PRELUDE + re.sub(r"redis\.call\b", "counted_call", rest))

    def break_off(at: int) -> None:
        broker.client.set("abort at", at)

    break_off(0)
    return break_off


def furnish(stage: Stage) -> Jobs:
    """Create plain and merged jobs in every state, all durable; the held ones with and without gated content."""
    stage.durable = True
    for ident in ("held", "gated", "stopped"):
        stage.put(ident, args=b"old")
    for job in stage.take():
        stage.failed(job)
    for ident in ("mheld", "mgated"):
        stage.add(ident, b"p")
    for data in (b"p", b"q", b"r"):
        stage.add("mmany", data)
    jobs = {job.id: job for job in stage.take()}
    stage.add("mmany", b"q", at=5)
    stage.put("gated", at=5, args=b"new")
    stage.add("mgated", b"p", at=5)
    stage.add("mgated", b"q", at=5)
    stage.queue.cancel("stopped")
    stage.put("waiting", at=1000, args=b"old")
    stage.put("retrying", at=-1)
    stage.failed(stage.take_one())
    stage.add("mwaiting", b"p", at=1000)
    stage.add("mwaiting", b"q", at=1000)
    for ident in ("buried", "waiting again"):
        stage.in_morgue(ident, at=-1, priority=0)
    stage.in_morgue("mburied", data=b"p", at=-1, priority=0)
    stage.put("waiting again", at=1000, args=b"live")
    stage.put("ready")
    stage.add("mready", b"p")
    stage.add("mretrying", b"p", at=-1, priority=0)
    stage.failed(stage.take(1)[0], 10)
    return jobs


def contents(world: World) -> set[tuple[str, str, bytes]]:
    """Return all requested content that is still stored somewhere."""
    found = set()
    for ident, live in world["lives"].items():
        plain = not live["content"].merged
        found |= {(ident, "args", live["content"].args)} if plain else set()
        found |= {(ident, "args", live["gate"][1].args)} if plain and live["gate"] else set()
        found |= {(ident, "payload", payload.data) for payload in live["waiting"] + live["running"]}
    for (ident, _), grave in world["graves"].items():
        found |= {(ident, "args", grave["content"].args)} if not grave["content"].merged else set()
        found |= {(ident, "payload", payload.data) for payload in grave["payloads"]}
    return found


def keys(world: World) -> tuple[set[bytes], set[bytes]]:
    """Return the durable keys of live jobs, and those of buried ones."""
    live, buried = set(), set()
    for one in world["lives"].values():
        if one["content"].merged:
            live |= {payload.key for payload in one["waiting"] + one["running"]}
        else:
            live |= {one["content"].key} | ({one["gate"][1].key} if one["gate"] else set())
    for grave in world["graves"].values():
        content = grave["content"]
        buried |= {payload.key for payload in grave["payloads"]} if content.merged else {content.key}
    return {key for key in live if is_durable(key)}, {key for key in buried if is_durable(key)}


def assert_marks(world: World) -> None:
    """Assert that no completion reports a live job as ended, or a job as buried that is not in the morgue."""
    live, buried = keys(world)
    marks = world["marks"]
    assert not [key for key, end in marks.items() if end == "done" and key in live | buried]
    assert not [key for key, end in marks.items() if end == "buried" and key in live - buried]


def _settling(make: Callable[[Job], Any], *idents: str) -> Act:
    return lambda stage, jobs: stage.settle(*(make(jobs[ident]) for ident in idents))


def cancel_gated(stage: Stage, ident: str) -> str:
    """Cancel the content gated behind an attempt, but not the attempt."""
    view = stage.broker.inspector.get("q", ident)
    assert view is not None and view.gated is not None
    return stage.queue.cancel(ident, generation=Generation((view.gated.key,)))


#: the content of a broken-off run gives way to what is gated behind it, as that of a released run does
SUPERSEDED = {("gated", "args", b"old")}
MERGED = ("mheld", "mgated", "mmany")
HELD = ("held", "gated", "stopped", *MERGED)
#: of each kind one job; acts that end others as a verb on all held jobs does take these
GATED = ("gated", "mgated")
ACTS: dict[str, tuple[str, Act]] = {
    "schedule a new job": ("schedule", lambda stage, _: stage.put("new", task="new task", priority=6)),
    "schedule a fresh job": ("schedule_fresh", lambda stage, _: stage.put("fresh", at=2000, fresh=True, key=b"")),
    "schedule a new merged job": ("schedule", lambda stage, _: stage.add("new", b"p")),
    "replace a waiting job": ("schedule", lambda stage, _: stage.put("retrying", at=70, priority=0)),
    "replace a merged job": ("schedule", lambda stage, _: stage.add("mwaiting", b"r", on_conflict="replace")),
    "add a payload": ("schedule", lambda stage, _: stage.add("mwaiting", b"r", priority=0)),
    "add an equal payload": ("schedule", lambda stage, _: stage.add("mwaiting", b"p", "-5")),
    "give up the oldest payload": (
        "schedule",
        lambda stage, _: stage.add("mwaiting", b"r", payloads="last", max_payloads=2),
    ),
    "gate behind a run": ("schedule", lambda stage, _: stage.put("held", at=70, args=b"new")),
    "gate a payload": ("schedule", lambda stage, _: stage.add("mheld", b"p")),
    "replace gated payloads": ("schedule", lambda stage, _: stage.add("mgated", b"r", on_conflict="replace")),
    "schedule many": (
        "schedule",
        lambda stage, _: stage.queue.schedule_many(
            [NewJob("new", "work"), NewJob("waiting", "work"), NewJob("held", "work", args=b"new")]
        ),
    ),
    "reserve": ("reserve", lambda stage, _: stage.take()),
    "ack": ("settle", _settling(lambda job: ack(job, 1, 2), *HELD)),
    "ack and reserve": (
        "settle",
        lambda stage, jobs: stage.queue.settle_reserve(0, [ack(jobs[one], 1, 2) for one in GATED], 50, worker="w"),
    ),
    "fail": ("settle", _settling(lambda job: fail(job, 1, 2, delay_ms=50), *HELD)),
    "release": ("settle", _settling(lambda job: release(job, quarantine=True), *HELD)),
    "postpone": ("settle", _settling(lambda job: release(job, delay_ms=5, reason="why", postpone=True), *GATED)),
    "bury": ("settle", _settling(lambda job: bury(job, 1, 2, reason="why"), *HELD)),
    "bury the oldest": ("settle", _settling(lambda job: replace(bury(job, 1, 2, reason="why"), oldest=True), *MERGED)),
    "expire": ("settle", _settling(lambda job: Settlement(job, verb="expire", outcome="expired"), *GATED)),
    "touch": (
        "touch",
        lambda stage, jobs: stage.queue.touch(list(jobs.values()), {(job.id, job.token) for job in jobs.values()}),
    ),
    "cancel a waiting job": ("change", lambda stage, _: stage.queue.cancel("retrying")),
    "cancel a merged job": ("change", lambda stage, _: stage.queue.cancel("mwaiting")),
    "cancel a run": ("change", lambda stage, _: stage.queue.cancel("mgated")),
    "cancel gated content": ("change", lambda stage, _: cancel_gated(stage, "gated")),
    "cancel gated payloads": ("change", lambda stage, _: cancel_gated(stage, "mgated")),
    "reschedule": ("change", lambda stage, _: stage.queue.run_now("waiting")),
    "reschedule what is gated": ("change", lambda stage, _: stage.queue.run_now("gated")),
    "kick": ("kick", lambda stage, _: stage.queue.kick("buried", delay_ms=5)),
    "kick and replace": ("kick", lambda stage, _: stage.queue.kick("waiting again", replace=True)),
    "kick a merged job": ("kick", lambda stage, _: stage.queue.kick("mburied")),
    "discard": ("discard", lambda stage, _: stage.queue.discard("buried")),
    "kick many": ("kick", lambda stage, _: kick_all(stage.queue, replace=True)),
    "discard many": ("discard", lambda stage, _: discard_many(stage.queue, ["buried", "mburied"])),
    "kill what has failed": ("change", lambda stage, _: kill_failed(stage.queue)),
    "delete what has failed": ("change", lambda stage, _: delete_failed(stage.queue)),
    "cancel everything": ("change", lambda stage, _: cancel_all(stage.queue)),
    "run everything now": ("change", lambda stage, _: run_all_now(stage.queue)),
    "tick": ("tick", lambda stage, _: (stage.wait(130_000), stage.queue.tick(0, hold=True))),
}


@pytest.mark.broken_on_purpose
@pytest.mark.parametrize("name", ACTS)
def test_t09_a_script_that_breaks_off_loses_no_job(clocked: Broker, name: str) -> None:
    script, act = ACTS[name]

    break_off = make_breakable(clocked, script)
    stage = Stage(clocked)
    jobs = furnish(stage)
    copy = OlderCopy(clocked.client)

    def furnished_again() -> Stage:
        copy.put_back()
        forget_queues(clocked)
        stage = Stage(clocked)
        stage.durable = True
        return stage

    before = read_world(stage.queue, 0)
    act(stage, jobs)
    assert_invariants(clocked)
    after = read_world(stage.queue, 0)
    assert_marks(after)
    done = {key for key, end in after["marks"].items() if end == "done"}
    gone = set().union(*keys(before)) - set().union(*keys(after))
    assert gone <= done, "whatever is gone is marked"
    lasting = (contents(before) & contents(after)) - SUPERSEDED
    for at in range(1, 200):
        stage = furnished_again()
        break_off(at)
        try:
            act(stage, jobs)
        except ResponseError as error:
            assert "broken off" in str(error)
        else:
            break
        break_off(0)
        check_stored(clocked, repair=True)
        assert_invariants(clocked)
        remains = read_world(stage.queue, 0)
        assert lasting <= contents(remains), at
        assert_marks(remains)
        stage.wait(200_000)
        stage.done(*stage.take())
        assert_invariants(clocked)
    else:
        pytest.fail("the script never came to its end")
    assert at > 1, "the script wrote nothing"
