"""Tasks for the tests of the testing kit; each notes in ``done`` what it did."""

from __future__ import annotations

import logging
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import transaction

from django_delayq import Bury, PartialFailure, Release, Retry, current_job, exactly_once, retry, schedule, task

done: list[Any] = []


@task(name="works.note", queue="notes", max_attempts=3, retry_in=retry.fixed(60))
def note(text: str, *, times: int = 1) -> None:
    done.append(text * times)


@task(name="works.sync", merge=True, queue="merged", batch_size=10, max_attempts=2, retry_in=30)
def sync(payloads_by_id: dict[str, list[Any]]) -> None:
    done.append(payloads_by_id)


@task(name="works.partly", merge=True, queue="merged", batch_size=10, retry_in=30)
def partly(payloads_by_id: dict[str, list[Any]]) -> None:
    raise PartialFailure({ident: "no" for ident in payloads_by_id if ident.startswith("bad")})


@task(name="works.decide", queue="notes")
def decide(verdict: str) -> None:
    raise {"retry": Retry("later", delay=5), "release": Release("not now", delay=7), "bury": Bury("never")}[verdict]


@task(name="works.tell", queue="notes", max_attempts=7)
def tell() -> None:
    job = current_job()
    assert job is not None
    done.append((job.id, job.attempt, job.lives, job.context, job.due, job.seconds_left > 0))


@task(name="works.chain", queue="notes")
def chain(n: int) -> None:
    done.append(n)
    if n:
        schedule(chain, n - 1, delay=60)


@task(name="works.again", queue="notes")
def again() -> None:
    schedule(again)


@task(name="works.groups", queue="notes")
async def write_group(name: str) -> None:
    await sync_to_async(Group.objects.create)(name=name)
    done.append(await sync_to_async(Group.objects.count)())


@task(name="works.both", queue="notes")
def in_transaction(name: str) -> None:
    with transaction.atomic():
        Group.objects.create(name=name)
        schedule(note, name)


@task(name="works.leak", queue="notes", max_attempts=1)
def leak(name: str) -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name=name)


@task(name="works.once", queue="notes")
@exactly_once
def once(name: str) -> None:
    Group.objects.create(name=name)


@task(name="works.last", queue="notes", max_attempts=1, on_exhausted=lambda job, error: done.append(type(error)))
def last() -> None:
    raise ZeroDivisionError


logging.getLogger("django_delayq.worker.notifier").addHandler(logging.NullHandler())
