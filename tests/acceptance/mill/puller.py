"""A consumer without the worker: ``python -m tests.acceptance.mill.puller '{"queues": ["feed"], "calls": 6}'``.

It makes ``calls`` calls of ``reserve(max, wait)`` and acks each job, or holds what it got (``act``: "hold") until the
process is killed. It leaves a line for what it got and for each end. ``fork``: a child does so, after its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any


def leave(event: str, **details: Any) -> None:
    line = json.dumps({"event": event, "pid": os.getpid(), "at": time.time(), **details}) + "\n"
    log = os.open(os.environ["MILL_LOG"], os.O_WRONLY | os.O_APPEND)
    os.write(log, line.encode())
    os.close(log)


def consume(plan: dict[str, Any]) -> None:
    from django_delayq import Queue

    queue = Queue(*plan["queues"])
    for _ in range(plan.get("calls", 1)):
        jobs = queue.reserve(plan.get("max", 1), plan.get("wait", 0), ttr=plan.get("ttr", 60))
        leave("got", ids=[job.id for job in jobs], attempts=[job.attempt for job in jobs])
        if plan.get("act") == "hold":
            threading.Event().wait()
        for job in jobs:
            leave("ended", id=job.id, counted=job.ack())


def main() -> None:
    import django

    django.setup()
    plan = json.loads(sys.argv[1])
    if plan.get("fork"):
        from django_delayq import Queue

        # The parent has a connection, a coordinator and a wake thread when the child comes.
        leave("parent", ids=[job.id for job in Queue(*plan["queues"]).reserve(wait=0.2)])
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    consume(plan)


if __name__ == "__main__":
    main()
