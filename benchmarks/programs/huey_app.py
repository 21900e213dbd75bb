"""Huey program: Redis storage, no results."""

from __future__ import annotations

import json
import os
import sys

import stamp
from huey import RedisHuey

huey = RedisHuey("bench", url=f"unix://{os.environ['BENCH_SOCKET']}", results=False)


@huey.task()
def blank(number: str) -> None:
    stamp.blank()


if __name__ == "__main__":
    from huey_app import blank as known  # under the name by which the consumer imports it

    verb, jobs = sys.argv[1], int(sys.argv[2])
    if verb == "fill":
        for at in range(jobs):
            known(str(at))
        print(json.dumps({"jobs": jobs}))
    else:
        stamp.measured(jobs, lambda at: known(str(at)))
