"""Operations for which the clients have no method: they are requests like any other."""

from __future__ import annotations

from typing import Any


def create_queue(client: Any, name: str, **policy: Any) -> Any:
    return client.request("POST", "v1/queues", {"name": name, "kind": "pull", **policy})


def pause(client: Any, name: str, direction: str = "in") -> Any:
    return client.request("POST", f"v1/queues/{name}/pause", {"direction": direction})


def resume(client: Any, name: str) -> Any:
    return client.request("POST", f"v1/queues/{name}/resume", {"direction": "both"})


def counts_of(client: Any, name: str) -> dict[str, int]:
    found: dict[str, int] = client.request("GET", f"v1/queues/{name}")["counts"]
    return found
