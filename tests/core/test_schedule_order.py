"""Order of one schedule_many call: jobs for the same id are applied in the order in which they are given."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.connection import AbstractConnection

from django_delayq.core import Broker, Inspector, NewJob, Payload, RedisConfig, ack, connect
from tests.support.core_calls import watch_begun
from tests.support.redis_box import RedisBox
from tests.support.tcp_proxy import TcpProxy

from .bulk_loads_stage import FAR, retire_now
from .epochs_stage import other, take_all
from .stage import Stage

pytestmark = pytest.mark.server

CHUNK = 250


def new(ident: str, args: bytes = b"[]", **options: Any) -> NewJob:
    return NewJob(ident, "work", args=args, due_ms=options.pop("due", FAR), delay_ms=None, **options)


def twice(between: int, *, on_conflict: str = "replace") -> list[NewJob]:
    """Return the id ``x`` first and last, with ``between`` other ids in the middle."""
    return [
        new("x", b"first", on_conflict=on_conflict),
        *(new(f"j{n}") for n in range(between)),
        new("x", b"last", on_conflict=on_conflict),
    ]


def content_of_x(queue: Any) -> bytes:
    view = Inspector(queue.registry).get(queue.name, "x")
    return bytes(view.job.args)


class SlowLine:
    """Network with one slow connection: the one of the first call.

    Its commands arrive after all commands sent on other connections meanwhile. Each connection keeps its order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line: Any = None
        self._held: list[Any] = []
        send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response

        def let_go() -> None:
            held, self._held = self._held, []
            for command in held:
                send(self.line, command)

        def slow_send(line: Any, command: Any, *args: Any, **options: Any) -> None:
            if self.line is None and b"EVALSHA" in b"".join(command):
                self.line = line
            if line is self.line:
                self._held.append(command)
                return
            send(line, command, *args, **options)
            if self._held:
                assert line.can_read(10)
                let_go()

        def slow_read(line: Any, *args: Any, **options: Any) -> Any:
            if line is self.line:
                let_go()
            return read(line, *args, **options)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", slow_send)
        monkeypatch.setattr(AbstractConnection, "read_response", slow_read)


@pytest.mark.one_server("lines of one server")
@pytest.mark.parametrize("between", [CHUNK - 1, 300, 2 * CHUNK - 1])
@pytest.mark.server
def test_a_chunk_never_overtakes_the_one_that_was_sent_before_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    stage.put("warm")
    with monkeypatch.context() as patched:
        slow = SlowLine(patched)
        outcomes = stage.queue.schedule_many(twice(between))
        assert slow.line
    assert (outcomes[0], outcomes[-1]) == ("created", "replaced")
    assert content_of_x(stage.queue) == b"last"


@pytest.mark.one_server("lines of one server")
def test_jobs_of_one_due_time_run_in_the_order_in_which_they_were_given(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.queue("q")
    queue.schedule(new("warm"))
    with monkeypatch.context() as patched:
        slow = SlowLine(patched)
        queue.schedule_many(new(f"j{n}", b"first", due=1) for n in range(900))
        assert slow.line
    order = [job.id for _ in range(4) for job in queue.reserve(0, 250, worker="w").jobs]
    assert order == [f"j{n}" for n in range(900)]


@pytest.mark.one_server("scripts of one server")
def test_a_chunk_that_a_server_did_not_understand_is_not_overtaken(broker: Broker) -> None:
    """The server lost its scripts, and another client loaded them again before the next chunk arrived."""
    queue = broker.queue("q")
    queue.schedule(new("warm", on_conflict="replace"))
    source = broker.scripts.loaded("schedule")[1]

    def forget(number: int) -> None:
        if number == 0:
            broker.client.script_flush()

    def learn(number: int) -> None:
        if number == 0:
            for _ in range(2):  # it has seen by then what came before
                broker.client.ping()
            broker.client.script_load(source)

    with watch_begun(broker, before=forget, after=learn) as begun:
        outcomes = queue.schedule_many(twice(300))
    assert len(begun) == 2
    assert (outcomes[0], outcomes[-1]) == ("created", "replaced")
    assert content_of_x(queue) == b"last"


def test_chunks_of_several_shards_are_sent_together_and_those_of_one_shard_wait_for_each_other(
    broker: Broker, most: list[int]
) -> None:
    one, four = broker.queue("one"), broker.queue("four", shards=4)
    most.clear()
    one.schedule_many(new(f"j{n}") for n in range(2000))
    assert most == [1] * 8
    most.clear()
    four.schedule_many(new(f"j{n}") for n in range(2000))
    assert max(most) == 4


@pytest.mark.parametrize("cut", ["cut_after_request", "cut_before_request"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_lost_line_does_not_change_the_order(
    redis_box: RedisBox, redis_url: str, prefix: str, proxy_factory: Callable[[Any], TcpProxy], cut: str, nth: int
) -> None:
    proxy = proxy_factory(str(redis_box.socket_path))
    connection = connect(RedisConfig.parse(proxy.url))
    told: list[tuple[str, bool]] = []
    broker = Broker(connection, prefix=prefix, observe=lambda verb, _, failed: told.append((verb, failed)))
    queue = broker.queue("q")
    queue.schedule(new("warm", on_conflict="replace"))
    told.clear()
    getattr(proxy, cut)(nth, when=lambda chunk: chunk.count(b"EVALSHA"))  # two may arrive at once
    outcomes = queue.schedule_many(new(f"j{n}", due=1) for n in range(900))
    assert proxy.cuts_done == 1
    assert outcomes == ["created"] * 900
    order = [job.id for _ in range(4) for job in queue.reserve(0, 250, worker="w").jobs]
    assert order == [f"j{n}" for n in range(900)]
    assert told.count(("schedule", False)) == 4
    connection.close()


def mixed(chance: random.Random, n: int, at: dict[int, Callable[[], object]]) -> Iterator[NewJob]:
    for number in range(n):
        at.get(number, lambda: None)()
        if chance.random() < 0.3:
            payload = Payload(b"%d" % number, "0", number.to_bytes(16, "big"))
            yield NewJob(
                f"m{chance.randrange(3)}", "sync", due_ms=1, delay_ms=None, payload=payload, on_conflict="merge"
            )
        else:
            yield new(f"r{chance.randrange(40)}", b"%d" % number, due=1, on_conflict="replace")


@pytest.mark.parametrize("heard_at", [100, 300, 499])
def test_what_went_to_an_epoch_that_is_no_more_is_not_overtaken_by_what_goes_to_the_next_one(
    broker: Broker, heard_at: int
) -> None:
    """The layout is reloaded elsewhere in this process while the first chunks are packed, or being sent."""
    broker.queue("q")
    stale = other(broker).queue("q")
    broker.reshard("q", 2)
    assert retire_now(broker) == [0]

    def news() -> Iterator[NewJob]:
        for place, job in enumerate(twice(1000)):
            if place == heard_at:
                assert stale.reload()
            yield job

    outcomes = stale.schedule_many(news())
    assert (outcomes[0], outcomes[-1]) == ("created", "replaced")
    assert content_of_x(stale) == b"last"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_becomes_of_the_shards_meanwhile_the_last_content_and_the_order_of_payloads_stay(
    broker: Broker, seed: int
) -> None:
    queue = broker.queue("q", shards=2)

    def change(shards: int, heard: bool) -> Callable[[], object]:
        def act() -> None:
            other(broker).reshard("q", shards)
            if heard:
                queue.reload()

        return act

    changes = {
        400 + 37 * seed: change(3, heard=bool(seed % 2)),
        900: change(1, heard=True),
        1333: change(4, heard=False),
    }
    given = list(mixed(random.Random(seed), 1800, {}))
    outcomes = queue.schedule_many(mixed(random.Random(seed), 1800, changes))
    assert set(outcomes) <= {"created", "replaced", "merged"}
    last: dict[str, bytes] = {}
    payloads: defaultdict[str, list[bytes]] = defaultdict(list)
    for job in given:
        if job.payload is None:
            last[job.id] = job.args
        else:
            payloads[job.id].append(job.payload.data)
    queue.reload()
    taken: defaultdict[str, list[bytes]] = defaultdict(list)
    found: dict[str, bytes] = {}
    while held := take_all(queue):
        for job in held:
            if job.payloads:
                taken[job.id] += [payload.data for payload in job.payloads]
            else:
                found[job.id] = job.args
        queue.settle([ack(job, 1, 2) for job in held])
    assert found == last
    assert taken == payloads
