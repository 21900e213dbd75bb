"""Tasks that the workers of the tests run. Each writes a line into the file that the environment names."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from pathlib import Path

from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.utils import translation

from django_delayq import current_job, task


def say(line: str) -> None:
    with Path(os.environ["DEPOT_LOG"]).open("a") as log:
        log.write(f"{line}\n")


@task
def ship(number: int) -> None:
    say(f"ship {number} {translation.get_language()}")
    translation.activate("de")


@task
def speak() -> None:
    """Writes log lines in each way that handlers have."""
    logging.getLogger("depot").warning("few parcels")
    logging.getLogger("django").warning("django's own")
    warnings.warn("old parcels", stacklevel=2)
    thread = threading.Thread(target=lambda: 1 / 0, name="depot-thread")
    thread.start()
    thread.join()
    say("spoke")


@task(max_attempts=1)
def fail() -> None:
    raise ZeroDivisionError("no parcels")


@task
def backend() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        say(f"pid {cursor.fetchone()[0]}")


@task(max_attempts=1)
def leak() -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="never committed")


@task
def wait_for(name: str) -> None:
    """Runs until a file of that name is there."""
    say("waiting")
    while not Path(name).exists():
        time.sleep(0.01)
    say("waited")


@task
async def fetch(number: int) -> None:
    job = current_job()
    say(f"fetch {number} attempt {job.attempt if job else None}")
