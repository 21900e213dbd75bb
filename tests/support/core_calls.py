"""Calls of a broker to Redis: watched, held up and cut off; their scripts, their wake-ups and their faults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from django_delayq.core import Broker, Job, Queue, reading, wake
from django_delayq.core.deployment import Deployment
from django_delayq.core.job import Generation
from django_delayq.core.redis.faults import Fault, classify
from django_delayq.core.redis.scripts import Call, SentCalls, compose, script_names
from django_delayq.core.wake import ChannelWaker, Waker


@dataclass
class ScriptCall:
    """Call of a script."""

    name: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    #: what the script returned; None before that
    reply: Any = None


def _nothing(_: object) -> None:
    """No-op."""


@contextmanager
def _sent_by(
    broker: Deployment, send: Callable[[Callable[..., SentCalls], Sequence[Call]], SentCalls]
) -> Iterator[None]:
    """Send the calls that the broker makes together in the block with ``send(original, calls)``."""
    with mock.patch.object(broker.scripts, "send_many", partial(send, broker.scripts.send_many)):
        yield


@contextmanager
def watch_calls(
    broker: Deployment,
    *,
    before: Callable[[ScriptCall], object] = _nothing,
    after: Callable[[ScriptCall], object] = _nothing,
) -> Iterator[list[ScriptCall]]:
    """Record the calls of scripts that the block makes through this broker.

    Calls that wait for their reply and those that are begun and read later are recorded alike, in the order in which
    they are sent; so are those that are confirmed.

    Args:
        before: runs before each call is sent. What it raises is raised in place of the call.
        after: runs when the reply of a call has come; it may raise, too.
    """
    calls: list[ScriptCall] = []
    scripts = broker.scripts
    send = scripts.call

    def noted(name: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> ScriptCall:
        call = ScriptCall(name, keys, args)
        before(call)
        calls.append(call)
        return call

    def watched_send(name: str, keys: tuple[bytes, ...], *args: Any, **limits: Any) -> Any:
        if limits.get("confirm"):  # recorded where it is sent
            return send(name, keys, *args, **limits)
        call = noted(name, keys, args)
        call.reply = send(name, keys, *args, **limits)
        after(call)
        return call.reply

    def watched_send_many(send_many: Callable[..., SentCalls], together: Sequence[Call]) -> SentCalls:
        watched = [noted(call.name, call.keys, call.args) for call in together]
        sent = send_many(together)
        read = sent.read

        def watched_read() -> None:
            read()
            for call, script_call in zip(together, watched, strict=True):
                script_call.reply = call.reply
                after(script_call)

        sent.read = watched_read  # type: ignore[method-assign]
        return sent

    with mock.patch.object(scripts, "call", watched_send), _sent_by(broker, watched_send_many):
        yield calls


@contextmanager
def send_twice(broker: Broker, between: Callable[[], object] = lambda: None) -> Iterator[list[tuple[Any, Any]]]:
    """Send each call of a script a second time, as after a lost reply; yield the list of the pairs of replies.

    Args:
        between: runs after the first time.
    """
    scripts, send = broker.scripts, broker.scripts.call
    replies: list[tuple[Any, Any]] = []

    def twice(name: str, keys: tuple[bytes, ...], *args: Any, **limits: Any) -> Any:
        first = send(name, keys, *args, **limits)
        between()
        replies.append((first, send(name, keys, *args, **limits)))
        return first

    with mock.patch.object(scripts, "call", twice):
        yield replies


def held_by(queue: Queue, worker: str, *numbers: int) -> list[Job]:
    """Return the jobs that a worker holds, in these shards or in all."""
    leases = (job for number in numbers or queue.numbers for job in queue.leases(number))
    return [job for job in leases if job.worker == worker]


def locate(queue: Queue, ident: str, generation: Generation) -> str:
    """Return where a job is, by the script alone: live (it waits or runs), gated (behind another one), or ""."""
    return reading.locate(queue, ident, generation)


def begin_stats(queue: Queue, number: int) -> Callable[[], Any]:
    """Send a call that reads the counts of a shard; return a function that reads the reply."""
    call = Call.on_shard("stats", queue.shard(number))
    sent = queue.deployment.scripts.send_many([call])

    def reply() -> Any:
        sent.read()
        return call.reply

    return reply


def call_stats(queue: Queue, number: int) -> Any:
    """Read the counts of a shard, in the form of the script."""
    shard = queue.shard(number)
    return queue.deployment.scripts.call("stats", shard.keys, b"", shard.constants)


@contextmanager
def watch_begun(
    broker: Broker, before: Callable[[int], object] = _nothing, after: Callable[[int], object] = _nothing
) -> Iterator[list[ScriptCall]]:
    """Record the calls that are sent together with others, or before something else is done.

    Args:
        before: gets the number of the next call, from 0, before it is sent.
        after: the same when it was sent; its reply was not read yet.
    """
    calls: list[ScriptCall] = []

    def watched(send: Callable[..., SentCalls], together: Sequence[Call]) -> SentCalls:
        number = len(calls)
        before(number)
        sent = send(together)
        after(number)
        calls.extend(ScriptCall(call.name, call.keys, call.args) for call in together)
        return sent

    with _sent_by(broker, watched):
        yield calls


@contextmanager
def watch_commands(broker: Broker, before: Callable[[], object] = lambda: None) -> Iterator[list[str]]:
    """Record the names of the commands that the block sends beside scripts and pipelines.

    Args:
        before: runs before each command is sent. What it raises is raised in place of the command.
    """
    client, send = broker.client, broker.client.execute_command
    names: list[str] = []

    def watched(name: str, *words: Any, **options: Any) -> Any:
        before()
        names.append(name)
        return send(name, *words, **options)

    with mock.patch.object(client, "execute_command", watched):
        yield names


@contextmanager
def watch_pipelines(broker: Broker, after: Callable[[], object] = lambda: None) -> Iterator[list[Any]]:
    """Record the replies of the pipelines that the block executes; ``after`` runs when they have come."""
    client, make = broker.client, broker.client.pipeline
    replies: list[Any] = []

    def watched(*args: Any, **options: Any) -> Any:
        pipe = make(*args, **options)
        execute = pipe.execute

        def execute_watched(*words: Any, **limits: Any) -> Any:
            replies.append(execute(*words, **limits))
            after()
            return replies[-1]

        pipe.execute = execute_watched
        return pipe

    with mock.patch.object(client, "pipeline", watched):
        yield replies


def scripts_used(broker: Broker) -> set[str]:
    """Return a set that collects the names of the scripts that the broker runs from now on, in whichever way."""
    names: set[str] = set()
    loaded = broker.scripts.loaded

    def remember(name: str) -> tuple[str, str]:
        names.add(name)
        return loaded(name)

    broker.scripts.loaded = remember  # type: ignore[method-assign]
    return names


@contextmanager
def broker_clock(broker: Broker, now_ms: Callable[[], float]) -> Iterator[None]:
    """Let a broker take the time of Redis, Unix ms, from a function."""
    with mock.patch.object(broker, "now_ms", now_ms):
        yield


def source_of(broker: Broker, name: str, *, test_clock: bool = False) -> str:
    """Return the source of a script in the form that the broker's server needs."""
    return compose(name, flags=broker.scripts._server_knows_flags(), test_clock=test_clock)


def replace_script(broker: Broker, name: str, source: str) -> None:
    """Let a broker run another source for a script."""
    broker.scripts._loaded[name] = (hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), source)


def in_use(pool: Any) -> int:
    """Return the number of connections of a pool that callers hold."""
    return len(pool._in_use_connections)


def lock_of(part: Any) -> Any:
    """Return the lock that guards a part of the package: a broker, a pool of connections, a tally."""
    return part._lock


def port_of(waker: ChannelWaker) -> int:
    """Return the port of the node at which a waker listens."""
    port: int = waker._pubsub.connection.port
    return port


@contextmanager
def before_layout_change(broker: Broker, act: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Run ``act`` with the new layout each time that the block is about to store one for a queue."""
    store = broker.registry.swap_layout

    def late(name: str, stored: bytes, layout: dict[str, Any], **prepared: Any) -> bool:
        act(layout)
        return store(name, stored, layout, **prepared)

    with mock.patch.object(broker.registry, "swap_layout", late):
        yield


@contextmanager
def silence_is_checked_after(seconds: float) -> Iterator[None]:
    """Let those who wait for wake-ups check a node in the block when it has been silent for so long."""
    with mock.patch.object(wake, "_SILENT_SECONDS", seconds):
        yield
