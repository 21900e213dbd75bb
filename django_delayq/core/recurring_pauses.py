"""Recurring tasks that operators paused. Redis keeps them, so a pause outlives all processes.

Nothing else keeps them: after a loss of Redis's data the ticks fire again. (Pauses of queues are restored from the
layouts that processes know.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .records.keys import recurring_key
from .redis.scripts import clear_errors

if TYPE_CHECKING:
    from .broker import Broker


def pause(broker: Broker, task: str) -> None:
    """Let no tick of a recurring task fire until it is resumed; jobs that are there already run."""
    now_ms = broker.now_ms()
    with clear_errors():
        broker.client.hsetnx(recurring_key(broker.prefix), task, int(now_ms))


def resume(broker: Broker, *names: str) -> None:
    """End :func:`pause` under each of these names of a task."""
    with clear_errors():
        broker.client.hdel(recurring_key(broker.prefix), *names)


def is_paused(broker: Broker, *names: str) -> bool:
    """Return True if a recurring task is paused under one of its names, so that its ticks do not fire now."""
    with clear_errors():
        stored: list[bytes | None] = broker.client.hmget(recurring_key(broker.prefix), names)
    return any(since is not None for since in stored)


def paused_since(broker: Broker) -> dict[str, int]:
    """Return since when tasks are paused, Unix ms, by task."""
    with clear_errors():
        stored: dict[bytes, bytes] = broker.client.hgetall(recurring_key(broker.prefix))
    return {task.decode(): int(since) for task, since in stored.items()}
