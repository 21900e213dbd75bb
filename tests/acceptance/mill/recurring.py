"""Recurring tasks. Only where ``MILL_CLOCK`` is set: every dispatcher that knows them fires their ticks."""

from __future__ import annotations

import os

from django_delayq import task

from .trace import leave

if os.environ.get("MILL_CLOCK"):

    @task(queue="clock", every=1)
    def strike() -> None:
        leave("start")
        leave("end")
