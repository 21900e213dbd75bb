"""Permissions of every route. The URL configuration is walked, so a new route is covered, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.core.job import NewJob
from tests.support.api_caller import ALL, ROOT, Caller

from .routes import NOTHING, OPEN, Route, ask, calls, ids_of, picture

CALLS = calls()
CHANGING = [call for call in CALLS if call[0] != "GET"]
#: the promise: action → "METHOD address", where {} is the queue "mail". Whoever adds a route says here what it asks
PROMISED = {
    "view": """
        GET v1/queues; GET v1/queues/{}; GET v1/queues/{}/depth; GET v1/queues/{}/jobs; GET v1/queues/{}/jobs/7;
        GET v1/queues/{}/morgue; GET v1/queues/{}/morgue/7; GET v1/workers; GET v1/workers/W; GET v1/producers;
        GET v1/recurring; GET v1/workers/W/dump; GET v1/status; GET v1/history/hours;
        GET v1/history/runs; GET v1/openapi.json; GET v1/queues/{}/limits; GET metrics
    """,
    "produce": "POST v1/queues/{}/jobs",
    "consume": """
        POST v1/reserve; POST v1/queues/{}/reserve; POST v1/queues/{}/ack; POST v1/queues/{}/fail;
        POST v1/queues/{}/release; POST v1/queues/{}/bury; POST v1/queues/{}/touch
    """,
    "operate": """
        PATCH v1/queues/{}; POST v1/queues/{}/pause; POST v1/queues/{}/resume; DELETE v1/queues/{}/jobs/7;
        PATCH v1/queues/{}/jobs/7; POST v1/queues/{}/cancel; POST v1/queues/{}/reschedule; POST v1/queues/{}/run-now;
        POST v1/queues/{}/kill-failed; POST v1/queues/{}/delete-failed; POST v1/queues/{}/kick;
        POST v1/queues/{}/discard; POST v1/workers/W/dump; POST v1/workers/W/watch; POST v1/workers/W/ignore;
        POST v1/recurring/T/pause; POST v1/recurring/T/resume; POST v1/recurring/T/run-now;
        PUT v1/queues/{}/limits; DELETE v1/queues/{}/limits; PUT v1/tasks/T/limits; DELETE v1/tasks/T/limits
    """,
    "admin": """
        POST v1/queues; DELETE v1/queues/{}; POST v1/queues/{}/reshard; POST v1/workers/W/stop;
        POST v1/workers/W/drain; POST v1/producers/pause; POST v1/producers/resume
    """,
}
#: what the project's own rule was asked
asked: list[tuple[str, str]] = []


def refuse_all(request: Any, action: str, queue: str) -> bool:
    """A rule of a project."""
    asked.append((action, queue))
    return False


def only_mail(request: Any, action: str, queue: str) -> bool:
    """Another one: everything, but of one queue."""
    return queue in ("", "mail")


@pytest.fixture
def world(delayq: Any) -> Any:
    """The queues that the sample addresses name, with a job each."""
    delayq.queue("mail").schedule(NewJob("7", "shop.mail", b"[[],{}]", delay_ms=60_000))
    delayq.queue("images", kind="pull").schedule(NewJob("7", "raw", b"bytes"))
    delayq.announce("host.example:4711", {"queues": ["mail"], "threads": 1, "running": 0})
    return delayq


def test_every_route_asks_for_what_is_promised() -> None:
    found: dict[str, set[str]] = {action: set() for action in ALL}
    for method, route, action in CALLS:
        address = route.path.partition("?")[0].replace("/mail", "/{}").replace("host.example:4711", "W")
        found[action].add(f"{method} {address}")
    assert found == {action: {one.strip() for one in said.split(";")} for action, said in PROMISED.items()}


def test_without_credentials_it_is_401(world: Any, caller: Callable[..., Caller]) -> None:
    before = picture(world)
    stranger = caller(anonymous=True)
    for method, route, _ in CALLS:
        assert (ask(stranger, method, route), stranger.response["WWW-Authenticate"]) == (401, "Token"), (method, route)
    assert picture(world) == before


def test_with_all_permissions_but_the_needed_one_it_is_403(world: Any, caller: Callable[..., Caller]) -> None:
    before = picture(world)
    for action in ALL:
        others = caller(*(one for one in ALL if one != action))
        for method, route, needed in CALLS:
            assert needed != action or ask(others, method, route) == 403, (method, route)
    assert picture(world) == before


@pytest.mark.parametrize(("method", "route", "action"), CALLS, ids=ids_of(CALLS))
def test_with_exactly_the_needed_permission_it_is_not_refused(
    method: str, route: Route, action: str, world: Any, caller: Callable[..., Caller]
) -> None:
    status = ask(caller(action), method, route)
    assert status not in (401, 403, 405)
    assert status < 500


def test_a_user_that_is_not_active_is_refused(world: Any, caller: Callable[..., Caller]) -> None:
    former = caller(*ALL)
    former.user.is_active = False
    former.user.save()
    for method, route, _ in CALLS:
        assert ask(former, method, route) == 401, (method, route)


def test_a_session_without_a_csrf_token_changes_nothing(world: Any, caller: Callable[..., Caller]) -> None:
    before = picture(world)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(caller(*ALL).user)
    for method, route, _ in CHANGING:
        response = browser.generic(method, ROOT + route.path, "{}", content_type="application/json")
        assert (response.status_code, "CSRF" in response.json()["detail"]) == (403, True), (method, route)
    assert picture(world) == before


def test_a_session_with_a_csrf_token_is_as_good_as_a_token(world: Any, caller: Callable[..., Caller]) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(caller("operate").user)
    browser.cookies["csrftoken"] = secret = "k" * 32
    response = browser.post(
        f"{ROOT}v1/queues/mail/pause",
        json.dumps({"direction": "in"}),
        "application/json",
        headers={"X-CSRFToken": secret},
    )
    assert (response.status_code, response.json()["paused"]) == (200, "in")


def test_a_session_may_look(world: Any, caller: Callable[..., Caller]) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(caller("view").user)
    assert browser.get(f"{ROOT}v1/status").status_code == 200


def test_who_may_only_consume_can_do_nothing_else(world: Any, caller: Callable[..., Caller]) -> None:
    consumer = caller("consume")
    allowed = {f"{method} {route.path}" for method, route, action in CALLS if action == "consume"}
    refused = {
        f"{method} {route.path}"
        for method, route, _ in CALLS
        if f"{method} {route.path}" not in allowed and ask(consumer, method, route) == 403
    }
    assert refused == {f"{method} {route.path}" for method, route, _ in CALLS} - allowed


def test_what_the_projects_own_rule_refuses_is_403(world: Any, caller: Callable[..., Caller], settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.refuse_all"}}
    everybody = caller(*ALL)
    for method, route, action in CALLS:
        asked.clear()
        assert ask(everybody, method, route) == 403, (method, route)
        assert asked, (method, route)
        assert set(asked) <= ({(action, "mail")} if route.has_queue else {(action, ""), (action, "mail")}), route


def test_the_projects_own_rule_hides_queues(world: Any, caller: Callable[..., Caller], settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.only_mail"}}
    everybody = caller(*ALL)
    assert everybody.get("v1/queues?names_only=true") == (200, {"names": ["mail"]})
    assert [queue["name"] for queue in everybody.get("v1/status")[1]["queues"]] == ["mail"]
    assert everybody.get("v1/queues/images")[0] == 403
    assert everybody.post("v1/queues", {"name": "other"})[0] == 403


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_is_open_to_everybody(path: str, world: Any, caller: Callable[..., Caller]) -> None:
    assert caller(anonymous=True).get(path)[0] == 200


@pytest.mark.parametrize("path", ["v1/nowhere", "nowhere"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_what_is_no_address_is_told_only_to_who_may_come_in(
    path: str, method: str, world: Any, caller: Callable[..., Caller]
) -> None:
    assert len(NOTHING) == 1
    assert caller(anonymous=True)(method, path)[0] == 401
    assert caller()(method, path)[0] == 404
