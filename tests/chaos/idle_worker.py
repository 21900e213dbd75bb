"""A worker program for campaigns of idle processes: ``python -m tests.chaos.idle_worker supervise|child``.

``IDLE_SETUP`` is JSON: url, prefix, queues, processes, threads, limits by queue and by task. Every attempt leaves
"start:id:pid:time" and "end:…" in the list "trace:<prefix>"; one that meets a refusal "refused:…:scope" instead of its
end.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from django_delayq.core.broker import Broker
from django_delayq.core.options import Limits
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.core.task import Registry, Task, TaskOptions
from django_delayq.core.verdicts import RateLimited
from django_delayq.worker.attempt import current_job
from django_delayq.worker.child import adopt, child_spec, leave
from django_delayq.worker.config import WorkerConfig
from django_delayq.worker.supervisor import Supervisor
from django_delayq.worker.worker import Worker

SETUP: dict[str, Any] = json.loads(os.environ.get("IDLE_SETUP", "{}"))
#: tasks; those that the set-up limits run no more at the same time
TASKS = ("plain", "limited")
#: s; for which the jobs of a scope wait after a refusal
REFUSED_SECONDS = 1.0


def make_broker() -> Broker:
    return Broker(connect(RedisConfig.parse(SETUP["url"])), prefix=SETUP["prefix"])


def registry(broker: Broker | None = None) -> Registry:
    def run(seconds: float, refused: str = "") -> None:
        job = current_job()
        assert job is not None and broker is not None

        def note(word: str) -> int:
            line = f"{word}:{job.id}:{os.getpid()}:{time.time()}:{refused}"
            return broker.client.rpush(f"trace:{SETUP['prefix']}", line)  # type: ignore[no-any-return]

        note("start")
        time.sleep(seconds)
        if refused and broker.client.hsetnx(f"refused:{SETUP['prefix']}", job.id, ""):
            note("refused")
            raise RateLimited(retry_after=REFUSED_SECONDS, scope=refused)
        note("end")

    made = Registry()
    for name in TASKS:
        made.add(Task(run, name=name, options=TaskOptions(concurrency=limits_of(name))))
    return made


def limits_of(name: str) -> Limits | None:
    """Return the limits of a task or a queue."""
    drawn = SETUP["limits"].get(name)
    if not drawn:
        return None
    interval = drawn.get("interval")
    return Limits(drawn.get("total"), drawn.get("local"), interval and interval * 1e6, drawn.get("burst", 0))


def main(role: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    config = WorkerConfig(
        queues=tuple(SETUP["queues"]),
        processes=SETUP["processes"],
        threads=SETUP["threads"],
        heartbeat=1.0,
        limits={queue: limit for queue in SETUP["queues"] if (limit := limits_of(queue))},
    )
    if role == "supervise":
        command = [sys.executable, "-m", "tests.chaos.idle_worker", "child"]
        sys.exit(Supervisor(command, config, make_broker, registry()).run())
    spec, broker = child_spec(), make_broker()
    config = spec.config if spec else config
    leave(Worker(broker, registry(broker), config, child_spec=spec, board=adopt(spec) if spec else None).run())


if __name__ == "__main__":
    main(sys.argv[1])
