"""Random campaigns: processes change durable and plain jobs of one queue while the relay sends and Redis goes away.

Afterwards the rows, Redis and what ran are compared with what the callers were told.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connections as databases

from django_delayq.connections import DjangoBroker
from django_delayq.core.errors import QueueUnavailable
from django_delayq.core.outcomes import ack
from django_delayq.core.redis.connection import RedisConfig, connect
from django_delayq.outbox.push import PATIENT
from tests.support.processes import wait_until
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .campaign_program import CALLERS, QUEUE
from .outbox_stage import Stage

pytestmark = pytest.mark.django_db(transaction=True)
Line = dict[str, Any]


class Campaign:
    """Two brokers of one Redis: the relay's goes through the proxy, that of the worker does not."""

    def __init__(self, box: RedisBox, proxy: TcpProxy, folder: Path) -> None:
        self.proxy = proxy
        self.folder = folder
        self.near = DjangoBroker(connect(RedisConfig.parse(box.url)), prefix="campaign")
        self.url = f"{proxy.url}?retries=0&socket_timeout=0.5"
        self.far = DjangoBroker(connect(RedisConfig.parse(self.url)), prefix="campaign")
        #: id → times of its starts (monotonic)
        self.starts: dict[str, list[float]] = defaultdict(list)
        self.lines: list[Line] = []
        self.errors: list[BaseException] = []
        self.near.queue(QUEUE)

    def close(self) -> None:
        self.near.connection.close()
        self.far.connection.close()

    def work(self) -> int:
        """Run the jobs that are due; return their number."""
        queue = self.near.queue(QUEUE)
        jobs = [job for number in queue.numbers for job in queue.reserve(number, 50, worker="w").jobs]
        for job in jobs:
            self.starts[job.id].append(time.monotonic())
        assert all(queue.settle([ack(job, 0, 0) for job in jobs])) if jobs else True
        return len(jobs)

    def keep_up(self, over: threading.Event, stage: Stage) -> None:
        """Relay and bookkeeping, as a dispatcher does them, until ``over``."""
        try:
            while not over.is_set():
                with suppress(QueueUnavailable):
                    stage.relay().turn()
                    stage.take_down()
                over.wait(0.05)
        except BaseException as error:
            self.errors.append(error)
        finally:
            databases.close_all()

    @contextmanager
    def dispatched(self) -> Iterator[None]:
        """Two relays work meanwhile."""
        over = threading.Event()
        relays = [threading.Thread(target=self.keep_up, args=(over, Stage(self.far))) for _ in range(2)]
        for relay in relays:
            relay.start()
        try:
            yield
        finally:
            over.set()
            for relay in relays:
                relay.join(30)

    def strike(self, seconds: float, dice: random.Random) -> None:
        """Let Redis go away and come back."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for mode, longest in ((self.proxy.refuse, 0.4), (self.proxy.passing, 1.5)):
                mode()
                pause = min(end, time.monotonic() + dice.uniform(0.0, longest))
                while time.monotonic() < pause:
                    time.sleep(0 if self.work() else 0.005)
        self.proxy.passing()

    def drain(self) -> None:
        """Send and run all that waits."""
        stage = Stage(self.near)
        deadline = time.monotonic() + 30
        while stage.table.filter(state__in=stage.table.model.WAITING).exists() or self.work() or stage.take_down()[0]:
            stage.relay().turn()
            assert time.monotonic() < deadline, stage.rows()


def run(campaign: Campaign, spawn: Callable[..., Any], env: dict[str, str], seed: int, seconds: float) -> None:
    """Run a campaign; what it breaks is in the assertion."""
    logs = [campaign.folder / f"{seed}-{number}.log" for number in range(CALLERS)]
    program = [sys.executable, "-m", "tests.app.campaign_program"]
    callers = [
        spawn(*program, str(number), str(seed), str(log), env=env, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for number, log in enumerate(logs)
    ]
    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), 30.0, "the first calls")
    with campaign.dispatched():
        campaign.strike(seconds, random.Random(seed))
        for caller in callers:
            caller.stdin.close()
        assert [caller.wait(30) for caller in callers] == [0] * CALLERS
    campaign.drain()
    assert campaign.errors == []
    campaign.lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert broken(campaign) == []


def broken(campaign: Campaign) -> list[str]:
    """Return the promises that were broken."""
    stage = Stage(campaign.near)
    waiting = {view.id for view in campaign.near.inspector.page(QUEUE, "waiting", limit=100_000).jobs}
    verbs: dict[str, list[Line]] = defaultdict(list)
    for line in campaign.lines:
        verbs[line["id"] or line["verb"]].append(line)
    assert Counter(line["verb"] for line in campaign.lines).keys() >= {"durable", "plain", "cancel", "run_now"}
    found = [
        f"rows {state} of {ident}, in Redis: {ident in waiting}"
        for ident, state in stage.rows().items()
        if state != "sent" or ident not in waiting
    ]
    found += [f"{ident} waits in Redis without a row" for ident in waiting - stage.rows().keys() if "durable" in ident]
    for ident, lines in verbs.items():
        if lines[0]["id"] and (made := next((line for line in lines if line["verb"] in ("durable", "plain")), None)):
            found += _broken_of(campaign, ident, made, lines, verbs, ident in waiting)
    return found


def _broken_of(
    campaign: Campaign, ident: str, made: Line, lines: list[Line], verbs: dict[str, list[Line]], waits: bool
) -> list[str]:
    """Return the broken promises of one job."""
    if made["reply"] not in ("created", "outbox", "on_commit"):
        return []  # a plain job that Redis did not accept
    starts, found = campaign.starts[ident], []
    ends = [line for line in lines if line["verb"] == "cancel" and line["reply"] is not False]
    ends += [line for line in verbs["purge"] if line["ended"] > made["began"]]
    wishes = [line for line in (*lines, *verbs["run_all"]) if line["verb"] in ("run_now", "run_all")]
    wishes = [line for line in wishes if line["ended"] > made["began"]]
    if len(starts) > 1:
        found.append(f"{ident} ran {len(starts)} times")
    if not (starts or waits or ends) and ident.startswith("durable"):
        found.append(f"{ident} is lost")
    if starts and not wishes:
        found.append(f"{ident} ran before it was due")
    found += [
        f"{ident} ran {starts[0] - line['ended']:.3f} s after it was cancelled"
        for line in lines
        if line["verb"] == "cancel" and line["reply"] == "cancelled" and starts and starts[0] > line["ended"]
    ]
    for line in verbs["purge"]:
        if (
            isinstance(line["reply"], dict)
            and made["ended"] < line["began"]
            and not any(wish["began"] < line["ended"] for wish in wishes)
            and not any(_overlap(line, one) for one in lines if one["verb"] == "reschedule")
            # A job that a relay was sending is cancelled behind its arrival.
            and (waits or any(at > line["ended"] + PATIENT for at in starts))
        ):
            found.append(f"{ident} lives after a purge ({'ran' if starts else 'waits'})")
    for line in verbs["run_all"]:
        later = [one for one in lines if one["verb"] == "reschedule" and one["ended"] > line["began"]]
        if isinstance(line["reply"], dict) and made["ended"] < line["began"] and waits and not later:
            found.append(f"{ident} still waits after all were run")
    return found


def _overlap(one: Line, other: Line) -> bool:
    return bool(one["began"] < other["ended"] and other["began"] < one["ended"])


@pytest.fixture
def campaign(
    redis_factory: Callable[..., RedisBox], proxy_factory: Callable[..., TcpProxy], tmp_path: Path
) -> Iterator[Campaign]:
    box = redis_factory(tcp=True)
    made = Campaign(box, proxy_factory(box.address), tmp_path)
    yield made
    made.proxy.passing()
    made.close()


@pytest.fixture
def callers_env(database_env: dict[str, str], campaign: Campaign) -> dict[str, str]:
    return {**database_env, "DELAYQ_TEST_URL": campaign.url, "DELAYQ_TEST_PREFIX": "campaign"}


def test_what_processes_were_told_agrees_with_rows_redis_and_what_ran(
    campaign: Campaign, spawn: Callable[..., Any], callers_env: dict[str, str]
) -> None:
    run(campaign, spawn, callers_env, seed=1, seconds=5.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 14))
def test_it_agrees_in_longer_campaigns(
    campaign: Campaign, spawn: Callable[..., Any], callers_env: dict[str, str], seed: int
) -> None:
    run(campaign, spawn, callers_env, seed, seconds=12.0)
