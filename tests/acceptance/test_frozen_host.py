"""A host that stands still for longer than its leases, as a suspended virtual machine does, and goes on."""

from __future__ import annotations

import os
import signal

from .world import Mill, until


def test_a_host_that_stood_still_changes_nothing_of_what_others_took_over_and_works_on(mill: Mill) -> None:
    host = mill.start("--threads", 2, "--processes", 2)
    ident = mill.put("grind", 2.0)
    mill.wait_starts(ident)
    until(lambda: any(one["jobs"] for one in mill.broker.workers()), "a heartbeat that names the job")
    pids = [host.pid, *host.children()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        other = mill.start("--threads", 2)
        mine, taken_over = mill.wait_starts(ident, 2)
        assert (taken_over["pid"], taken_over["attempt"]) == (other.children()[0], 2), "it was known to run"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    until(lambda: mill.counts().counters.get("late"), "the refusal of the late acknowledgement")
    mill.wait_empty()
    assert (mill.counts().counters["acked"], len(mill.starts(ident))) == (1, 2)

    other.stop()
    last = mill.put("grind")
    (start,) = mill.wait_starts(last)
    mill.wait_empty()
    assert start["pid"] in host.children(), "it serves its queues as before"
    assert mine["pid"] in host.children(), "in the same processes"
