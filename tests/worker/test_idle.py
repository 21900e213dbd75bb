"""Commands of an idle process, counted while its duties run through simulated minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_delayq.core import Broker, Connection, ack
from django_delayq.core.records.keys import depth_claim_key
from django_delayq.core.records.limit_frames import Allowance
from django_delayq.worker import dispatcher, heartbeat, reaper, rest, wake_listener
from django_delayq.worker.commands import WorkerCommands
from django_delayq.worker.dispatcher import dispatcher_duties
from django_delayq.worker.heartbeat import Heartbeat
from django_delayq.worker.loop import Duty
from django_delayq.worker.rest import SafetyCheck
from django_delayq.worker.scope import Scope
from django_delayq.worker.shard_selector import ShardSelector, build_sources
from tests.core.stage import T0

from .support import config, make_process, put, registry_of

NAME = "idle"
#: blocking reads of the wake listener in a minute, which the simulation leaves out
BLOCKING_READS = 60 / wake_listener.BLOCK


def work() -> None: ...


class Fetching:
    """Duty that reserves as the fetch loop does while nothing runs."""

    def __init__(self, selector: ShardSelector, now: Callable[[], float], found_at: dict[str, float]) -> None:
        self._selector = selector
        self._found_at = found_at
        self._now = now
        self._safety_check = SafetyCheck(selector)

    def run(self) -> float:
        now = self._now()
        while (source := self._selector.due(now)) is not None:
            self._selector.begin_reserve(source, now)
            batch = source.queue.reserve(source.shard, 100, worker=NAME)
            self._selector.apply_reply(source, now, batch.next_due_ms, batch.taken)
            source.queue.settle([ack(job, 1, 2) for job in batch.jobs])
            self._found_at.update((job.id, now) for job in batch.jobs)
        return min(self._safety_check.next(now), self._selector.next_due_at()) - now


class Process:
    """Worker process whose duties run one after another, each at its moment. Time passes in between only."""

    def __init__(self, broker: Broker, **changes: Any) -> None:
        self.broker = broker
        self.now = 1000.0
        #: when jobs were reserved, by id
        self.found_at: dict[str, float] = {}
        self._settings = config(queues=("default", "delayq"), **changes)

    def start(self) -> None:
        broker, settings = self.broker, self._settings
        process = make_process(broker, registry_of(work), settings, name=NAME)
        scope = Scope(broker, settings)
        scope.refresh()
        self._shards = [queue.shard(number) for queue in scope.queues for number in queue.numbers]
        self._set_clock()
        selector = ShardSelector(build_sources(scope.queues, settings, NAME))
        commands = WorkerCommands(broker, NAME, lambda word: None)
        self._duties: dict[str, Duty] = {
            "fetching": Fetching(selector, lambda: self.now, self.found_at),
            "heartbeat": Heartbeat(process, dict, None, None, lambda reply: None, commands),
        }
        if settings.dispatcher:
            self._duties |= dispatcher_duties(process, scope, selector)
        self._next_at = dict.fromkeys(self._duties, self.now)

    def pass_seconds(self, seconds: float = 60.0) -> None:
        """Run what is due within the next seconds."""
        until = self.now + seconds
        while (at := min(self._next_at.values())) < until:
            name = min(self._next_at, key=lambda name: self._next_at[name])
            self.now = max(self.now, at)
            self._set_clock()
            if name == "depth-sampler":
                self.broker.client.delete(depth_claim_key(self.broker.prefix))  # it expires on Redis's own clock
            self._next_at[name] = self.now + max(self._duties[name].run(), 0.0)
        self.now = until
        self._set_clock()

    def _set_clock(self) -> None:
        with self.broker.client.pipeline(transaction=False) as pipe:
            for shard in self._shards:
                pipe.hset(shard.names["meta"], "test_clock", int((T0 / 1000 + self.now) * 1e6))
            pipe.execute()


@pytest.fixture
def clocked(connection: Connection, prefix: str) -> Broker:
    broker = Broker(connection, prefix=prefix, test_clock=True)
    broker.queue("default", shards=5)
    return broker


@pytest.fixture
def start(clocked: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Process]:
    def started(**changes: Any) -> Process:
        process = Process(clocked, **changes)
        for module in (dispatcher, heartbeat, reaper, rest):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: process.now))
        process.start()
        return process

    return started


def commands_of_minutes(process: Process, minutes: int) -> list[Counter[str]]:
    """Return the commands of each of the next minutes; scripts by their names."""
    client, scripts = process.broker.client, process.broker.scripts
    counted: list[Counter[str]] = []
    with client.monitor() as monitor:
        for _ in range(minutes):
            process.pass_seconds()
            client.echo("a minute")
            counted.append(Counter())
            while (seen := monitor.next_command())["command"] != "ECHO a minute":
                if seen["client_type"] != "lua" and not seen["command"].startswith(("HSET", "DEL", "INFO")):
                    counted[-1][" ".join(seen["command"].split()[:2])] += 1
    names = {f"EVALSHA {sha}": name for name, (sha, _) in scripts._loaded.items()}
    return [Counter({names.get(word, word.split()[0]): n for word, n in minute.items()}) for minute in counted]


@pytest.mark.one_server("counts the commands of one server")
def test_an_idle_process_sends_less_than_a_command_a_second_with_the_samples(start: Callable[..., Process]) -> None:
    process = start()
    first, *minutes = commands_of_minutes(process, 5)
    for minute in minutes:
        assert minute["depth"] == minute["stats"] == 1, "a sample of all queues"
        assert minute["reserve"] == 0, "the dispatcher checks the shards"
        assert minute.total() + BLOCKING_READS < 50, minute
    assert first.total() + BLOCKING_READS < 60, first


@pytest.mark.one_server("counts the commands of one server")
def test_without_a_dispatcher_an_idle_process_checks_its_shards_in_rotation(start: Callable[..., Process]) -> None:
    process = start(dispatcher=False)
    _, minute = commands_of_minutes(process, 2)
    assert minute["reserve"] == 60 / rest.SAFETY_CHECK


@pytest.mark.one_server("counts the commands of one server")
def test_jobs_that_are_due_later_cost_nothing(start: Callable[..., Process], clocked: Broker) -> None:
    process = start()
    process.pass_seconds()
    for number in range(20):
        put(clocked, "work", id=str(number), delay_ms=3_600_000)
    process.pass_seconds()
    (minute,) = commands_of_minutes(process, 1)
    assert minute["reserve"] == 0
    assert minute.total() + BLOCKING_READS < 50, minute


@pytest.mark.parametrize("dispatcher", [True, False])
@pytest.mark.parametrize("parked", [True, False])
def test_a_job_whose_wake_token_was_lost_is_found_within_a_rotation(
    start: Callable[..., Process], clocked: Broker, dispatcher: bool, parked: bool
) -> None:
    """The simulated process never reads its tokens."""
    process, queue = start(dispatcher=dispatcher), clocked.queue("default")
    put_at: dict[str, float] = {}
    for number in range(12):
        process.pass_seconds(11.0)
        ident = str(number)
        put(clocked, "work", id=ident)
        if parked:
            queue.reserve(queue.shard_of(ident), 1, worker="other", allowances=[Allowance(("work",), 0)])
        put_at[ident] = process.now
    process.pass_seconds(60.0)
    assert process.found_at.keys() == put_at.keys()
    shards = 6
    assert max(process.found_at[ident] - put_at[ident] for ident in put_at) <= rest.SAFETY_CHECK * shards
