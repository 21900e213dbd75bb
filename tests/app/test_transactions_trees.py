"""Nested transactions of any shape: Redis has the jobs of the committed part, in the order of the calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings, strategies as st

from django_delayq import IdTaken, cancel, connections, reschedule, schedule
from django_delayq.core.broker import Broker
from django_delayq.core.codec import decode, decode_args
from django_delayq.core.fsck import assert_invariants
from django_delayq.models import OutboxJob

from .deeds import note, sync
from .outbox_stage import Stage

pytestmark = pytest.mark.django_db(transaction=True)
MERGED = "deeds.sync"


class Undo(Exception):
    """Rolls a block back."""


# -- what is done ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A job of a plain task; without an id it has one of its own."""

    id: str
    durable: bool
    conflict: str = "replace"
    due: str = "replace"
    delay: int = 100


@dataclass(frozen=True)
class Merged:
    id: str
    durable: bool
    delay: int = 100


@dataclass(frozen=True)
class Cancel:
    id: str
    merged: bool


@dataclass(frozen=True)
class Move:
    id: str
    merged: bool
    delay: int = 100


Verb = Plain | Merged | Cancel | Move


@dataclass(frozen=True)
class Block:
    """``atomic()`` around what is in it. ``savepoint``: of its own; without one it takes the block around it along."""

    within: tuple[Verb | Block, ...]
    undone: bool = False
    savepoint: bool = True


ids = st.sampled_from(["a", "b"])
delays = st.sampled_from([100, 200, 300, 400])
verbs: st.SearchStrategy[Verb] = st.one_of(
    st.builds(
        Plain,
        st.sampled_from(["a", "b", ""]),
        st.booleans(),
        st.sampled_from(["replace", "replace", "ignore", "error"]),
        st.sampled_from(["replace", "replace", "keep", "earliest"]),
        delays,
    ),
    st.builds(Merged, ids, st.booleans(), delays),
    st.builds(Cancel, ids, st.booleans()),
    st.builds(Move, ids, st.booleans(), delays),
)
seldom = st.sampled_from([False, False, False, True])


def block(within: st.SearchStrategy[Any], undone: st.SearchStrategy[bool]) -> st.SearchStrategy[Block]:
    return st.builds(Block, st.lists(within, min_size=1, max_size=6).map(tuple), undone, seldom.map(lambda no: not no))


innermost = block(verbs, st.booleans())
inner = block(verbs | innermost, st.booleans())
programs = st.lists(block(verbs | inner, seldom) | verbs, min_size=1, max_size=4).map(tuple)


# -- what it comes to --------------------------------------------------------------------------------------------------


@dataclass
class World:
    """The jobs as they would be if the committed calls had been made one after the other."""

    plain: dict[str, tuple[int, int, bool]] = field(default_factory=dict)  # id -> number, delay, durable
    merged: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)  # of the merged ones

    def do(self, number: int, verb: Verb) -> None:
        if isinstance(verb, Plain):
            self.put(number, verb)
        elif isinstance(verb, Merged):
            self.merged.setdefault(verb.id, []).append((number, verb.durable))
            self.delays.setdefault(verb.id, verb.delay)
        elif isinstance(verb, Cancel):
            (self.merged if verb.merged else self.plain).pop(verb.id, None)
            if verb.merged:
                self.delays.pop(verb.id, None)
        elif verb.merged:
            if verb.id in self.delays:
                self.delays[verb.id] = verb.delay
        elif verb.id in self.plain:
            there = self.plain[verb.id]
            self.plain[verb.id] = (there[0], verb.delay, there[2])

    def put(self, number: int, verb: Plain) -> None:
        there = self.plain.get(verb.id or f"#{number}")
        delay = verb.delay
        if there is not None:
            if verb.conflict != "replace":
                return
            delay = {"replace": delay, "keep": there[1], "earliest": min(delay, there[1])}[verb.due]
        self.plain[verb.id or f"#{number}"] = (number, delay, verb.durable)


class Run:
    """Does it, and notes which calls were committed."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.committed: list[tuple[int, Verb]] = []
        self.names: dict[str, str] = {}

    def run(self, node: Verb | Block) -> None:
        if not isinstance(node, Block):
            number = next(self.numbers)
            self.committed.append((number, node))
            with suppress(IdTaken):  # outside of all blocks
                self.call(number, node)
            return
        before = len(self.committed)
        outermost = not transaction.get_connection().in_atomic_block
        try:
            with transaction.atomic(savepoint=node.savepoint):
                for inner in node.within:
                    self.run(inner)
                if node.undone:
                    raise Undo
        except Undo:
            del self.committed[before:]
            if not (node.savepoint or outermost):
                raise

    def call(self, number: int, verb: Verb) -> None:
        if isinstance(verb, Plain):
            options: dict[str, Any] = {"id": verb.id} if verb.id else {}
            handle = schedule(
                note,
                str(number),
                delay=verb.delay * 1000,
                durable=verb.durable,
                on_conflict=verb.conflict,
                due_policy=verb.due,
                **options,
            )
            self.names[handle.id] = verb.id or f"#{number}"
        elif isinstance(verb, Merged):
            schedule(sync, id=verb.id, payload=number, score=number, delay=verb.delay * 1000, durable=verb.durable)
        elif isinstance(verb, Cancel):
            cancel(sync if verb.merged else note, id=verb.id)
        else:
            reschedule(sync if verb.merged else note, id=verb.id, delay=verb.delay * 1000)


def looked_at(broker: Broker, names: dict[str, str]) -> tuple[World, set[bytes]]:
    """Return the content of Redis and its durable keys."""
    world, keys = World(), set()
    now = broker.now_ms()
    for name in ("default", MERGED):
        queue = broker.known_queue(name)
        for view in broker.inspector.page(name, "waiting", limit=1000).jobs if queue is not None else ():
            assert queue is not None
            delay = round((view.due_ms - now) / 100_000_000) * 100
            (job,) = queue.reserve_id(view.id, worker="w", early=True).jobs
            if name == MERGED:
                world.merged[view.id] = [(decode(one.data), one.key[0] > 127) for one in job.payloads]
                world.delays[view.id] = delay
                keys |= {one.key for one in job.payloads if one.key[0] > 127}
            else:
                ((number,), _) = decode_args(job.args)
                world.plain[names[view.id]] = (int(number), delay, job.key[0] > 127)
                keys |= {job.key} if job.key[0] > 127 else set()
    return world, keys


def ended(broker: Broker) -> Iterator[bytes]:
    """Keys of durable jobs of which Redis says that they are over."""
    for name in ("default", MERGED):
        queue = broker.known_queue(name)
        for number in queue.numbers if queue is not None else ():
            assert queue is not None
            yield from (mark.key for mark in queue.marks(number))


_prefixes = itertools.count()


def check(program: tuple[Verb | Block, ...], config: Any) -> None:
    config.DELAYQ = {**config.DELAYQ, "PREFIX": f"tree{next(_prefixes)}"}
    OutboxJob.objects.all().delete()
    run = Run()
    for node in program:
        run.run(node)
        if OutboxJob.objects.filter(state__in=OutboxJob.WAITING).exists():
            # A job behind a row of its id that is to be moved, by the same transaction, is the relay's.
            Stage(connections.broker()).relay().turn()
    expected = World()
    for number, verb in run.committed:
        expected.do(number, verb)
    broker = connections.broker()
    assert set(OutboxJob.objects.values_list("state", "claim")) <= {("sent", None)}
    found, keys = looked_at(broker, run.names)
    assert found == expected
    # Each durable job has its row; a row without one waits for the mark that is there already.
    rows = {key.bytes for key in OutboxJob.objects.values_list("key", flat=True)}
    assert keys <= rows <= keys | set(ended(broker))
    assert_invariants(broker)


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(programs)
@example((Block((Plain("a", True, delay=100), Plain("a", True, "replace", "keep", 200))),))
@example(
    (Plain("a", True), Block((Cancel("a", False), Plain("a", False, "ignore"), Block((Cancel("a", False),), True))))
)
@example((Block((Plain("a", False), Block((Plain("b", False),), undone=True))),))
@example((Block((Plain("a", False), Block((Plain("b", False),), undone=True), Plain("", False))),))
@example((Plain("a", True), Block((Plain("a", False), Plain("a", True, "ignore"), Move("a", False, 300)))))
@example((Block((Merged("a", True), Block((Cancel("a", True),), undone=True), Merged("a", False))),))
@example((Block((Block((Plain("a", True), Block((), True, savepoint=False))), Plain("b", True))),))
def test_what_is_in_redis_is_what_was_committed(
    delayq: Broker, settings: Any, program: tuple[Verb | Block, ...]
) -> None:
    check(program, settings)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=QUIET)
@given(programs)
def test_what_is_in_redis_is_what_was_committed_of_many_programs(
    delayq: Broker, settings: Any, program: tuple[Verb | Block, ...]
) -> None:
    check(program, settings)
