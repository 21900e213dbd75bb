"""Jobs that are rather lost than begun twice, and jobs that are of no use after their time."""

from __future__ import annotations

import os
import signal

from tests.support.processes import alive

from .conftest import MakeMill
from .world import Mill, until


def test_a_job_that_is_acked_early_never_begins_a_second_time_whoever_dies(make_mill: MakeMill) -> None:
    mill = make_mill(lease=1.5)
    node = mill.start("--processes", 2, "--threads", 2)
    ids = [mill.put("wait_once", str(mill.gate()), id=f"once-{number}") for number in range(3)]
    for ident in ids:
        mill.wait_starts(ident)
    assert mill.counts().reserved == 0
    (victim,) = {line["pid"] for line in mill.starts(ids[0])}
    os.kill(victim, signal.SIGKILL)
    until(lambda: not alive(victim), "the end of the process")
    node.wait_ready(2)
    node.kill()  # the rest dies with its machine
    heir = mill.start("--threads", 2)
    mill.gate().touch()
    following = mill.put("grind", id="following")
    mill.wait_ended([following])
    assert mill.starts_by_id() == dict.fromkeys([*ids, following], 1)
    assert [mill.view(ident) for ident in ids] == [None] * 3
    until(lambda: mill.counts().counters.get("acked") == 1, "the ack of the job that followed")
    assert (mill.counts().morgue, heir.process.poll()) == (0, None)


def test_a_job_is_not_started_after_its_expiry_and_one_in_time_is(mill: Mill) -> None:
    now = int(mill.broker.now_ms())
    relative = mill.put("grind", id="relative", delay_ms=100, options=b'{"expires_in_ms":200}')
    absolute = mill.put("grind", id="absolute", options=b'{"expires_ms":%d}' % (now + 300))
    in_time = mill.put("grind", id="in-time", options=b'{"expires_in_ms":3600000}')
    until(lambda: mill.broker.now_ms() > now + 400, "the end of their time")
    mill.start("--threads", 2)
    mill.wait_ended([in_time])
    waiting = mill.put("grind", id="waits", delay_ms=900, options=b'{"expires_in_ms":500}')
    mill.wait_ended([waiting])
    mill.wait_empty()
    assert mill.starts_by_id() == {in_time: 1, waiting: 1}
    assert [mill.view(ident) for ident in (relative, absolute)] == [None, None]
    counts = mill.counts()
    assert (counts.counters["expired"], counts.counters["acked"], counts.morgue) == (2, 2, 0)
