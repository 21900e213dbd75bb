"""Program that fills the queue of the HTTP benchmark, bypassing the API."""

from __future__ import annotations

import json
import sys

import django


def main(jobs: int) -> None:
    """Schedule raw bytes that are due now."""
    django.setup()
    from benchmarks.programs.http_load import BODY
    from django_delayq import connections
    from django_delayq.core.job import NewJob, new_id

    news = (NewJob(new_id(), "raw", BODY.encode(), fresh=True) for _ in range(jobs))
    print(json.dumps(connections.broker().queue("feed").count_many(news)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
