"""Dramatiq program: Redis broker, its defaults otherwise."""

from __future__ import annotations

import json
import os
import sys

import dramatiq
import stamp
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=f"unix://{os.environ['BENCH_SOCKET']}")
dramatiq.set_broker(broker)


@dramatiq.actor
def blank(number: str) -> None:
    stamp.blank()


if __name__ == "__main__":
    verb, jobs = sys.argv[1], int(sys.argv[2])
    if verb == "fill":
        for at in range(jobs):
            blank.send(str(at))
        print(json.dumps({"jobs": jobs}))
    else:
        stamp.measured(jobs, lambda at: blank.send(str(at)))
