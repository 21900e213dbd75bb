"""Recurring tasks that operators paused. Redis keeps them, so a pause outlives all processes.

Nothing else keeps them: after a loss of Redis's data the ticks fire again. (Pauses of queues are restored from the
layouts that processes know.)
"""

from __future__ import annotations

from .deployment import Deployment
from .records.keys import recurring_key
from .redis.scripts import clear_errors


def pause(deployment: Deployment, task: str) -> None:
    """Let no tick of a recurring task fire until it is resumed; jobs that are there already run."""
    now_ms = deployment.now_ms()
    with clear_errors():
        deployment.client.hsetnx(recurring_key(deployment.prefix), task, int(now_ms))


def resume(deployment: Deployment, *names: str) -> None:
    """End :func:`pause` under each of these names of a task."""
    with clear_errors():
        deployment.client.hdel(recurring_key(deployment.prefix), *names)


def is_paused(deployment: Deployment, *names: str) -> bool:
    """Return True if a recurring task is paused under one of its names, so that its ticks do not fire now."""
    with clear_errors():
        stored: list[bytes | None] = deployment.client.hmget(recurring_key(deployment.prefix), names)
    return any(since is not None for since in stored)


def paused_since(deployment: Deployment) -> dict[str, int]:
    """Return since when tasks are paused, Unix ms, by task."""
    with clear_errors():
        stored: dict[bytes, bytes] = deployment.client.hgetall(recurring_key(deployment.prefix))
    return {task.decode(): int(since) for task, since in stored.items()}
