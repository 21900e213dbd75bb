"""Upper limit of redis-py and the server: the same bytes stored by a bare script, without a queue."""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import islice

import redis
import stamp

CHUNK = 250
SHARDS = 5
ID_BYTES = 20
BODY_BYTES = 40
INSERT = """
for i = 1, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
  redis.call('ZADD', KEYS[1], ARGV[i + 1], ARGV[i])
end
return #ARGV / 3
"""


def main(verb: str, jobs: int) -> None:
    """Run ``lpush``, ``evalsha`` (one job per call) or ``bulk`` (chunks of 250 over five shards)."""
    client = redis.Redis(unix_socket_path=os.environ["BENCH_SOCKET"])
    keys = [(f"bare:{{{shard}}}:due", f"bare:{{{shard}}}:body") for shard in range(SHARDS)]
    body = b"b" * BODY_BYTES
    sha = client.script_load(INSERT)
    if verb == "lpush":
        stamp.measured(jobs, lambda number: client.lpush("bare:list", body))
    elif verb == "evalsha":
        stamp.measured(jobs, lambda number: client.evalsha(sha, 2, *keys[0], f"{number:0{ID_BYTES}}", 1e15, body))
    else:
        rows = iter([(str(number), "1900000000000000", body) for number in range(jobs)])
        shard = 0
        started = time.perf_counter()
        while chunk := list(islice(rows, CHUNK)):
            client.evalsha(sha, 2, *keys[shard % SHARDS], *(value for row in chunk for value in row))
            shard += 1
        print(json.dumps({"jobs": jobs, "seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
