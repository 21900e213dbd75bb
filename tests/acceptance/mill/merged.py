"""Merged tasks: the payloads of an id in one call, several ids in one call."""

from __future__ import annotations

import random
import time
from typing import Any

from django_delayq import PartialFailure, current_job, task
from django_delayq.core.retry import fixed

from .trace import leave_each

AT_ONCE = fixed(0)
Payloads = dict[str, list[Any]]


def dice_of_attempt() -> random.Random:
    """Return dice that fall the same way for the same jobs in the same attempts, so that a run can be repeated."""
    batch = current_job()
    assert batch is not None
    return random.Random(repr([(job.id, job.attempt, job.scores) for job in batch.jobs]))


@task(merge=True, queue="blend", batch_size=3, retry_in=AT_ONCE, max_attempts=1_000, crash_limit=1_000)
def blend(payloads_by_id: Payloads) -> None:
    """Takes a moment; now and then some of its ids fail, now and then all of them."""
    leave_each("start", payloads_by_id)
    dice = dice_of_attempt()
    time.sleep(dice.uniform(0, 0.006))
    luck = dice.random()
    failed = {ident for ident in payloads_by_id if luck < 0.02 or dice.random() < 0.05}
    leave_each("end", payloads_by_id, failed=failed)
    if luck < 0.02:
        raise ValueError("all of them")
    if failed:
        raise PartialFailure({ident: ValueError(ident) for ident in failed})


@task(merge=True, queue="hundred", batch_size=100, retry_in=AT_ONCE)
def knead_hundred(payloads_by_id: Payloads) -> None:
    """Of its ids those fail that have a payload "sour"; but only the first time."""
    leave_each("start", payloads_by_id)
    sour = {ident for ident, payloads in payloads_by_id.items() if "sour" in payloads}
    if len(payloads_by_id) > 1 and sour:
        raise PartialFailure({ident: ValueError(f"{ident} is sour") for ident in sour})


@task(merge=True, queue="crush", batch_size=3, retry_in=AT_ONCE, max_attempts=2, crash_limit=2)
def crush(payloads_by_id: Payloads) -> None:
    """Fails so often that payloads are given up."""
    leave_each("start", payloads_by_id)
    dice = dice_of_attempt()
    time.sleep(dice.uniform(0, 0.006))
    failed = {ident for ident in payloads_by_id if dice.random() < 0.3}
    leave_each("end", payloads_by_id, failed=failed)
    if failed:
        raise PartialFailure({ident: ValueError(ident) for ident in failed})
