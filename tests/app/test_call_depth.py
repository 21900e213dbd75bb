"""A warm ``schedule()`` call: its stack at the socket, the modules that it touches, and changed settings."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from types import FrameType
from typing import Any

import pytest

from django_delayq import InvalidJob, schedule, task
from django_delayq.core.broker import Broker

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.one_server("a client of a cluster finds the node first"),
]

#: functions of C that write to the socket or read from it
_SOCKET = ("sendall", "send", "recv", "recv_into")
#: most frames of the package on the stack while the socket is used, and most modules that run in the whole call
MOST_FRAMES = 7
MOST_MODULES = 14


@task(name="call_depth.work")
def work(number: int) -> None:
    return None


def _ours(frame: FrameType | None) -> list[str]:
    """The modules of the package on the stack, the innermost first."""
    found = []
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("django_delayq."):
            found.append(name)
        frame = frame.f_back
    return found


def test_a_warm_schedule_call_is_flat(delayq: Broker) -> None:
    for number in range(20):  # the first calls make the queue, load the scripts, connect, and wake consumers
        schedule(work, number, delay=timedelta(minutes=30))
    stacks: list[list[str]] = []
    modules: set[str] = set()

    def watch(frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            modules.update(_ours(frame)[:1] if frame.f_globals.get("__name__", "").startswith("django_delayq.") else ())
        elif event == "c_call" and getattr(what, "__name__", "") in _SOCKET:
            stacks.append(_ours(frame))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        handle = schedule(work, 5, delay=timedelta(minutes=30))
    finally:
        sys.setprofile(before)
    assert handle.outcome == "created"
    assert len(stacks) == 2, "one request is sent and one reply is read"
    assert max(map(len, stacks)) <= MOST_FRAMES, stacks
    assert len(modules) <= MOST_MODULES, " ".join(sorted(modules))


def test_a_changed_setting_holds_for_the_next_call_of_a_warm_task(delayq: Broker, settings: Any) -> None:
    schedule(work, 5)
    settings.DELAYQ = {**settings.DELAYQ, "MAX_ARGS_BYTES": 2}
    with pytest.raises(InvalidJob, match="at most 2"):
        schedule(work, 5)
    settings.DELAYQ = {**settings.DELAYQ, "MAX_ARGS_BYTES": 100}
    naive = datetime(2030, 1, 1)
    with pytest.raises(InvalidJob, match="no time zone"):
        schedule(work, 5, at=naive)
    settings.USE_TZ = False
    assert schedule(work, 5, at=naive).outcome == "created"
