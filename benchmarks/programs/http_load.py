"""Client of the HTTP benchmark: threads with keep-alive connections that repeat one operation for some seconds.

``http_load.py PORT TOKEN WORKLOAD SIZE THREADS SECONDS`` prints rounds, jobs and seconds as JSON, and the number of all
rounds, those of the warm-up included. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Post = Callable[[str, Any], Any]
FEED = "/delayq/v1/queues/feed/"
BODY = '{"order": 12345, "url": "https://example.org/images/12345.png"}'
#: uncounted warm-up of each thread
WARM_UP_SECONDS = 0.5


def poster(port: int, token: str) -> Post:
    """Return ``post(path, body)`` on a connection of its own."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Authorization": f"Token {token}", "Content-Type": "application/json"}

    def post(path: str, body: Any) -> Any:
        line.request("POST", path, json.dumps(body), headers)
        response = line.getresponse()
        content = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{path}: {response.status} {content[:300]!r}")
        return json.loads(content)

    return post


def empty(post: Post, size: int) -> int:
    """Request the empty view."""
    post("/empty", {})
    return 1


def produce(post: Post, size: int) -> int:
    """Send one request with one job, or with many."""
    post(FEED + "jobs", {"body": BODY} if size == 1 else {"jobs": [{"body": BODY}] * size})
    return size


def consume(post: Post, size: int) -> int:
    """Reserve and ack jobs; return 0 if the queue is empty."""
    jobs = post(FEED + "reserve", {"max": size})["jobs"]
    if not jobs:
        return 0
    post(FEED + "ack", {"jobs": [{"id": job["id"], "lease": job["lease"]} for job in jobs]})
    return len(jobs)


WORKLOADS = {"empty": empty, "produce": produce, "consume": consume}


def main(port: int, token: str, workload: str, size: int, threads: int, seconds: float) -> None:
    """Count the operations of all threads between two moments."""
    run = WORKLOADS[workload]
    begin = time.perf_counter() + WARM_UP_SECONDS
    until = begin + seconds
    rounds, jobs, warm = [0] * threads, [0] * threads, [0] * threads
    errors: list[BaseException] = []

    def work(number: int) -> None:
        post = poster(port, token)
        try:
            while (now := time.perf_counter()) < until:
                done = run(post, size)
                if not done:  # less is measured then, but correctly
                    break
                if now < begin:
                    warm[number] += 1
                else:
                    rounds[number] += 1
                    jobs[number] += done
        except BaseException as error:
            errors.append(error)

    team = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    if errors:
        raise errors[0]
    seconds = max(0.001, time.perf_counter() - begin)
    counts = {"rounds": sum(rounds), "all_rounds": sum(rounds) + sum(warm), "jobs": sum(jobs)}
    print(json.dumps({**counts, "seconds": seconds}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
