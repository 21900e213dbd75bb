"""The tasks. Every run leaves a line at its start; most leave one at their end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from django.db import connection, transaction

from django_delayq import current_job, exactly_once, schedule, task
from django_delayq.core.retry import fixed
from django_delayq.outbox.duties import Reconciler

from . import merged, recurring
from .models import Sack
from .trace import leave

__all__ = ["merged", "recurring"]  # tasks of their own

# Jobs that Redis lost are found as fast as a test can wait for.
Reconciler.resubmit_after = 1.0
Reconciler.recheck_every = 5.0

AT_ONCE = fixed(0)
PACE = float(os.environ.get("MILL_PACE", "0"))


@task(retry_in=AT_ONCE)
def grind(seconds: float = 0.0) -> None:
    """An honest job."""
    leave("start")
    if seconds or PACE:
        time.sleep(seconds + PACE)
    leave("end")


@task(retry_in=AT_ONCE, crash_limit=100, max_attempts=100)
def grind_on(seconds: float = 0.0) -> None:
    """The same for campaigns of kills, in which being hit three times is bad luck and no bad behaviour."""
    grind(seconds)


@task(retry_in=AT_ONCE, crash_limit=100, max_attempts=100, concurrency=3)
def grind_within(seconds: float = 0.0) -> None:
    """The same, no more than three at a time."""
    grind(seconds)


@task(retry_in=AT_ONCE, crash_limit=100, max_attempts=100, rate="20/s", burst=5)
def grind_paced(seconds: float = 0.0) -> None:
    """The same, no more than twenty a second."""
    grind(seconds)


@task(retry_in=AT_ONCE)
def wait_for(gate: str) -> None:
    """Runs until a file of that name is there, or until it is told to stop, and returns then."""
    leave("start")
    while not Path(gate).exists():
        time.sleep(0.01)
    leave("end")


@task(retry_in=AT_ONCE, ack="early")
def wait_once(gate: str) -> None:
    """The same, but it is done when it begins."""
    wait_for(gate)


@task(retry_in=AT_ONCE, max_lease=0.9)
def wait_without_renewal(gate: str) -> None:
    """The same, but its lease is renewed no more after a moment."""
    wait_for(gate)


@task(retry_in=AT_ONCE)
def touch_on(gate: str) -> None:
    """Tells what it is told about its own lease while it waits."""
    leave("start")
    while not Path(gate).exists():
        time.sleep(0.02)
    job = current_job()
    assert job is not None
    leave("end", held=job.touch(), should_stop=job.should_stop)


# --- misdeeds


@task(retry_in=AT_ONCE)
def stumble(times: int = 1_000_000) -> None:
    """Raises in its first so many attempts."""
    leave("start")
    job = current_job()
    assert job is not None
    if job.attempt <= times:
        raise ValueError(f"stumbled in attempt {job.attempt}")
    leave("end")


@task(retry_in=AT_ONCE)
def die(times: int = 1_000_000) -> None:
    """Kills its own process with SIGKILL in its first so many attempts."""
    leave("start")
    job = current_job()
    assert job is not None
    if job.attempt <= times:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    leave("end")


@task(max_attempts=1)
def segfault() -> None:
    leave("start")
    ctypes.string_at(0)


def given_up(job: Any, error: BaseException) -> None:
    """Asks the database, wherever it is called."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 7")
        leave("given up", error=str(error), found=cursor.fetchone()[0])


@task(max_attempts=1, on_exhausted=given_up)
def exit_hard() -> None:
    leave("start")
    os._exit(0)


@task(max_attempts=1)
def exit_softly() -> None:
    leave("start")
    sys.exit("a handler is no program")


@task(max_attempts=1)
def interrupt() -> None:
    leave("start")
    raise KeyboardInterrupt


@task(max_attempts=1, timeout=0.2)
def dawdle() -> None:
    """Would take a minute, but heeds its limit."""
    leave("start")
    for _ in range(6000):
        time.sleep(0.01)


@task(max_attempts=1, timeout=0.2)
def never_return() -> None:
    """Swallows whatever is meant to end it."""
    leave("start")
    while True:
        try:
            while True:
                time.sleep(0.05)
        except BaseException:
            continue


@task
def nonsense() -> Any:
    """Returns what nobody can store or print."""
    leave("start")

    class Nothing:
        def __repr__(self) -> str:
            raise RuntimeError("no picture of me")

    leave("end")
    return {"self": Nothing(), "fd": open(os.devnull), "more": lambda: None}


@task(max_attempts=1)
def raise_nonsense() -> None:
    """Raises what cannot be printed."""
    leave("start")

    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words for it")

    raise Silent


@task
async def sip(seconds: float = 0.0) -> None:
    """On the event loop."""
    import asyncio

    leave("start")
    await asyncio.sleep(seconds)
    leave("end")


# --- names that differ only in their first part


@task(name="north.mill.greet", queue="north.mill")
def greet_north() -> None:
    leave("start", who="north")


@task(name="south.mill.greet", queue="south.mill")
def greet_south() -> None:
    leave("start", who="south")


# --- with a database


@task(max_attempts=1)
def backend() -> None:
    """Tells which session of PostgreSQL it works in, and leaves a row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        leave("start", backend=cursor.fetchone()[0])
    job = current_job()
    assert job is not None
    Sack.objects.create(name=job.id)
    leave("end")


@task(retry_in=AT_ONCE, crash_limit=1_000, max_attempts=1_000)
@exactly_once
def charge(seconds: float = 0.0) -> None:
    """Leaves one row, however many attempts there are."""
    job = current_job()
    assert job is not None
    Sack.objects.create(name=f"charge {job.id}")
    time.sleep(seconds)


@task(max_attempts=1)
def leak_a_transaction() -> None:
    """Enters ``atomic()`` and never leaves it."""
    leave("start")
    transaction.atomic().__enter__()
    Sack.objects.create(name="leaked")


@task(max_attempts=1)
def leak_autocommit() -> None:
    """Switches autocommit off and forgets it."""
    leave("start")
    transaction.set_autocommit(False)
    Sack.objects.create(name="leaked")


@task(max_attempts=1)
def break_a_transaction() -> None:
    """An error of the database inside of ``atomic()``."""
    leave("start")
    with transaction.atomic():
        Sack.objects.create(name="broken")
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")


@task(max_attempts=1)
def order(name: str, fails: bool) -> None:
    """A row and a job that needs it, in one transaction."""
    leave("start")
    with transaction.atomic():
        sack = Sack.objects.create(name=name)
        schedule(deliver, sack.pk, id=f"deliver-{name}")
        if fails:
            raise ValueError("the order is refused")


@task(max_attempts=1)
def deliver(pk: int) -> None:
    leave("start", sack=Sack.objects.get(pk=pk).name)


if os.environ.get("MILL_RELEASE") == "new":

    @task
    def novelty(number: int) -> None:
        """Known to the next release only."""
        leave("start", number=number)
