"""Liveness and readiness checks. They need no credentials and return nothing but the state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from django.db import Error as DatabaseTrouble
from django.db import connections as databases
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.response import Response

from .. import connections
from ..core.errors import DelayQError, QueueUnavailable
from ..core.redis.scripts import clear_errors
from ..settings.conf import conf
from . import responses
from .base import ApiView, operation

logger: Final = logging.getLogger("django_delayq.api")

#: seconds in which the database has to answer
BUDGET: Final = 1.0
#: any name: the script only reads, and its shard need not exist
_NOWHERE: Final = "readyz"


class Health(ApiView):
    """Checks for load balancers."""

    tag = "deployment"
    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()

    def get_authenticators(self) -> list[Any]:
        """Return none: the checks are open to everybody."""
        return []

    @operation("", returns=responses.Health)
    def healthz(self, request: Request) -> Response:
        """Return 200 as long as the process responds; no other system is checked."""
        return Response({"status": "ok"})

    @operation("", returns={200: responses.Health, 503: responses.Health})
    def readyz(self, request: Request) -> Response:
        """Return 200 if the process can serve requests, else 503.

        Redis has to run our scripts, and the databases of durable jobs have to answer.
        The timeout for Redis is the same as after a commit (`OUTBOX["budget"]`, at most a second for each step), so the
        check leaves no thread blocked.
        """
        states = {"redis": _state_of("redis", redis_answers), "database": _state_of("database", databases_answer)}
        ready = all(state == "ok" for state in states.values())
        return Response({"status": "ok" if ready else "away", **states}, status=200 if ready else 503)


def redis_answers() -> None:
    """Send a PING, and a script that only reads, to Redis.

    Raises:
        DelayQError: Redis does not answer in time, or not correctly.
    """
    broker = connections.swift_broker()
    with clear_errors():
        broker.client.ping()
    shard = broker.shard(_NOWHERE, 0)
    broker.scripts.call("stats", shard.keys, b"", shard.constants)


def databases_answer() -> None:
    """Run SELECT 1 in each database that has an outbox.

    A connection that broke since its last use is reopened, as its next user would do.

    Raises:
        DatabaseTrouble: a database does not answer.
        QueueUnavailable: a database answered too late.
    """
    for alias in conf().outbox.databases:
        began = time.monotonic()
        _select_one(alias)
        took = time.monotonic() - began
        if took > BUDGET:
            raise QueueUnavailable(f"the database {alias!r} took {took:.1f} s to answer SELECT 1")


def _select_one(alias: str) -> None:
    connection = databases[alias]
    was_open = connection.connection is not None
    try:
        _execute(connection)
    except DatabaseTrouble:
        if not was_open or connection.in_atomic_block:
            raise
        connection.close()
        _execute(connection)


def _execute(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def _state_of(what: str, ask: Callable[[], None]) -> str:
    """Return ok or away; the reason is only logged."""
    try:
        ask()
    except _TROUBLES as error:
        logger.warning("not ready, %s is away: %s", what, error)
        return "away"
    return "ok"


_TROUBLES: Final[tuple[type[Exception], ...]] = (DelayQError, DatabaseTrouble, RedisError, OSError)
