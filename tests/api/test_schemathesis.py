"""The API is asked by a machine what no person would ask, and has to answer as its OpenAPI document says.

Covered: every operation of the document, each with bodies, queries, headers and addresses made from its schemas,
fitting ones and wrong ones, through the WSGI application in this process, on a real Redis and database. About half of
the calls are led to what there is (see :mod:`.world`: queues, ids, leases, tasks, a worker), so that they get inside;
before each call what an earlier one destroyed is put back. Not covered: waiting, which is ASGI's, and permissions
(``test_permissions.py``).

Checked of each answer: no server error; a status, a media type, headers and a body that the document names; an error is
a problem with a listed code. At the end the invariants of all queues hold (fixture ``delayq``).

``DELAYQ_API_CALLS=20000`` runs so many calls instead of the short run; ``-m slow`` at least 6,000.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from django_delayq import connections
from django_delayq.access.problems import CODES
from tests.support.api_caller import Caller

from .world import CANCEL, IDS, QUEUES, SECRET, SYNC, WORKER, World, tasks

# Timers of the process (a connection's age, a pause before a retry) draw from `random` while an example is made.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
HEALTH = ("/healthz", "/readyz")
MOST_SHARDS = 32
#: calls after which Redis is emptied: generated jobs would make every sweep longer
FRESH_AFTER = 250


@pytest.fixture
def world(delayq: Any, db: None, settings: Any) -> Iterator[World]:
    # So that a server error comes here with its traceback.
    settings.DEBUG_PROPAGATE_EXCEPTIONS = True
    settings.ALLOWED_HOSTS = ["localhost"]
    # As Django's own test client does it: the database connection is inside the test's transaction.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    try:
        with tasks():
            yield World()
    finally:
        for signal in (request_started, request_finished):
            signal.connect(close_old_connections)


@pytest.fixture
def operations(world: World, api: Caller) -> list[Any]:
    """The operations of the document as a client gets it."""
    generation = GenerationConfig(with_security_parameters=False, database="none")
    schema = schemathesis.openapi.from_wsgi(
        "/delayq/v1/openapi.json",
        get_wsgi_application(),
        config=SchemathesisConfig(projects=ProjectsConfig(default=ProjectConfig(generation=generation))),
        headers={"Authorization": f"Token {api.token}"},
    )
    return [result.ok() for result in schema.get_all_operations()]


class Machine:
    """Calls operations and counts what came back.

    Args:
        world: is put right before each call.
        token: of the caller.
    """

    def __init__(self, world: World, token: str) -> None:
        self._world = world
        self._headers = {"Authorization": f"Token {token}"}
        self.calls = 0
        self.answers: Counter[int] = Counter()

    def run(self, operation: Any, calls: int) -> None:
        @settings(
            max_examples=calls,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            derandomize=not _campaign(),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=_cases(operation), data=st.data())
        def call(case: Any, data: Any) -> None:
            self._prepare()
            if data.draw(st.booleans()):
                self._lead(case, data.draw)
            if isinstance(case.body, dict) and isinstance(case.body.get("shards"), int):
                # Every later look at all queues would take its time: one of so many shards is made by other tests.
                case.body["shards"] = min(case.body["shards"], MOST_SHARDS)
            response = case.call(headers=self._headers)
            self.calls += 1
            self.answers[response.status_code] += 1
            case.validate_response(response, checks=CHECKS)
            _check_problem(operation.path, response)

        call()

    def _prepare(self) -> None:
        if self.calls % FRESH_AFTER == FRESH_AFTER - 1:
            client = connections.broker().client
            for key in client.scan_iter(f"{connections.broker().prefix}:*"):
                client.delete(key)
            connections.close_broker()
            self._world = World()
        self._world.refresh()

    def _lead(self, case: Any, draw: Callable[[Any], Any]) -> None:
        """To what there is."""
        queue = draw(st.sampled_from(QUEUES))
        parts = case.path_parameters or {}
        for name, value in (("queue", queue), ("id", draw(st.sampled_from(IDS))), ("worker", WORKER)):
            if name in parts:
                parts[name] = value
        (case.headers or {}).pop("Idempotency-Key", None)  # most generated keys were used for something else
        if isinstance(case.body, dict):
            self._lead_body(case.body, queue, draw)

    def _lead_body(self, body: dict[str, Any], queue: str, draw: Callable[[Any], Any]) -> None:
        ident, lease = self._world.leases[queue]
        if "queues" in body:
            body["queues"] = list(QUEUES)
        if "ids" in body:
            body["ids"] = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=5))
        if "task" in body:
            body["task"] = draw(st.sampled_from([CANCEL, SYNC, SECRET]))
        for entry in body["jobs"] if isinstance(body.get("jobs"), list) else ():
            if isinstance(entry, dict):
                if "lease" in entry:
                    entry.update(id=ident, lease=lease)
                elif "task" in entry:
                    entry["task"] = draw(st.sampled_from([CANCEL, SYNC]))
                elif "key" in entry:
                    entry["id"] = f"{queue}-morgue"


def _cases(operation: Any) -> Any:
    """Fitting calls, and wrong ones where something can be wrong."""
    good = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
    if not (operation.body or operation.query or operation.path_parameters):
        return good
    return good | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)


def _check_problem(path: str, response: Any) -> None:
    if response.status_code >= 400 and path not in HEALTH:
        problem = json.loads(response.content)
        status, _ = CODES[problem["code"]]
        assert (status, problem["status"]) == (response.status_code, response.status_code), problem


def _campaign() -> int:
    return int(os.environ.get("DELAYQ_API_CALLS", "0"))


@pytest.mark.parametrize("calls", [200, pytest.param(6000, marks=pytest.mark.slow)])
def test_who_may_everything_is_answered_as_the_document_says(
    calls: int, operations: list[Any], world: World, api: Caller
) -> None:
    machine = Machine(world, api.token)
    each = -(-(_campaign() or calls) // len(operations))
    failures: list[Exception] = []
    for operation in operations:
        try:
            machine.run(operation, each)
        except Exception as failure:  # the other operations are worth knowing of, too
            failures.append(failure)
    if failures:
        raise ExceptionGroup(f"{len(failures)} operations", failures)
    # A machine that never gets in, or never does anything wrong, tests nothing.
    assert machine.calls >= 0.8 * calls
    assert {200, 201, 204, 400, 404} <= set(machine.answers), machine.answers
