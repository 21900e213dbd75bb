"""Tasks for the tests of the Django shell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_delayq import task


@task(name="deeds.note")
def note(text: str, *, times: int = 1) -> str:
    return text * times


@task(name="deeds.send")
def send(password: str, *, api_key: str = "", n: int = 0) -> None:
    return None


@task(name="deeds.rest", queue="naps", priority=6, max_attempts=3)
def rest() -> None:
    return None


@task(name="deeds.keyed", on_conflict="ignore")
def keyed(number: int = 0) -> None:
    return None


@task(name="deeds.clash")
def clash(id: int, delay: int) -> None:
    return None


@task(name="deeds.slowly")
async def slowly(number: int = 0) -> None:
    return None


@task(name="deeds.sync", merge=True, batch_size=10, retry_in=60)
def sync(payloads_by_id: dict[str, list[Any]]) -> int:
    return len(payloads_by_id)


@task(name="deeds.newest", merge=True, queue="newest", payloads="last", score_policy="max", priority=2)
def newest(payloads_by_id: dict[str, list[Any]]) -> None:
    return None


@task(name="deeds.brief", expires=timedelta(minutes=5))
def brief(number: int = 0) -> None:
    return None
