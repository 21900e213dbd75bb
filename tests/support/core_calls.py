"""Calls of a broker to Redis: watched, held up and cut off; their scripts, their wake-ups and their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from django_delayq.core import Broker
from django_delayq.core.redis.composition import compose, script_names
from django_delayq.core.redis.faults import Fault, classify
from django_delayq.core.redis.loop_link import WINDOW
from django_delayq.core.redis.scripts import Reply, pack_command
from django_delayq.core.replay import run_verb
from django_delayq.core.sending.chunks import IN_FLIGHT
from django_delayq.core.wake import ChannelWaker, Waker, wake

__all__ = [
    "IN_FLIGHT",
    "WINDOW",
    "ChannelWaker",
    "Fault",
    "Reply",
    "ScriptCall",
    "Waker",
    "before_layout_change",
    "classify",
    "compose",
    "pack_command",
    "run_verb",
    "script_names",
    "wake",
    "watch_calls",
]


@dataclass
class ScriptCall:
    """Call of a script."""

    name: str
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    #: what the script returned; None before that
    reply: Any = None


def _nothing(call: ScriptCall) -> None:
    """No-op."""


@contextmanager
def watch_calls(
    broker: Broker,
    *,
    before: Callable[[ScriptCall], object] = _nothing,
    after: Callable[[ScriptCall], object] = _nothing,
) -> Iterator[list[ScriptCall]]:
    """Record the calls of scripts that the block makes through this broker.

    Calls that wait for their reply and those that are begun and read later are recorded alike, in the order in which
    they are sent; coroutines and confirmed calls are not.

    Args:
        before: runs before each call is sent. What it raises is raised in place of the call.
        after: runs when the reply of a call has come.
    """
    calls: list[ScriptCall] = []
    scripts = broker.scripts
    send, begin = scripts.call, scripts.begin

    def noted(name: str, keys: tuple[bytes, ...], args: tuple[Any, ...]) -> ScriptCall:
        call = ScriptCall(name, keys, args)
        before(call)
        calls.append(call)
        return call

    def watched_send(name: str, keys: tuple[bytes, ...], *args: Any, **limits: Any) -> Any:
        call = noted(name, keys, args)
        call.reply = send(name, keys, *args, **limits)
        after(call)
        return call.reply

    def watched_begin(name: str, keys: tuple[bytes, ...], *args: Any) -> Reply:
        call = noted(name, keys, args)
        read = begin(name, keys, *args)

        def reply(until: float | None = None) -> Any:
            call.reply = read(until)
            after(call)
            return call.reply

        return reply

    with mock.patch.object(scripts, "call", watched_send), mock.patch.object(scripts, "begin", watched_begin):
        yield calls


@contextmanager
def before_layout_change(broker: Broker, act: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Run ``act`` with the new layout each time that the block is about to store one for a queue."""
    store = broker.swap_layout

    def late(name: str, stored: bytes, layout: dict[str, Any], **prepared: Any) -> bool:
        act(layout)
        return store(name, stored, layout, **prepared)

    with mock.patch.object(broker, "swap_layout", late):
        yield
