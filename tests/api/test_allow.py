"""``API["allow"]``, the project's own rule: it fails closed, and it decides before anything that is stored is shown."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core import checks

from django_delayq.settings.conf import SETTING
from tests.support.api_caller import ROOT, Caller

from . import routes
from .routes import Route, all_routes, calls, ids_of

#: bodies of requests that get as far as an answer that is kept
BODIES = {**routes.BODIES, "create_queue": {"name": "mail", "kind": "pull"}}
STORED = [call for call in calls() if call[0] == "POST"]
KEY = {"Idempotency-Key": "k1"}


class Refusal:
    async def __call__(self, request: Any, action: str, queue: str) -> bool:
        return False


async def refuse(request: Any, action: str, queue: str) -> bool:
    return False


async def refuse_with(reason: str, request: Any, action: str, queue: str) -> bool:
    return False


async def refuse_in_turn(request: Any, action: str, queue: str) -> AsyncIterator[bool]:
    yield False


def refuse_one_by_one(request: Any, action: str, queue: str) -> Iterator[bool]:
    yield False


def refuse_later(request: Any, action: str, queue: str) -> Any:
    return refuse(request, action, queue)


def refuse_all(request: Any, action: str, queue: str) -> bool:
    return False


def refuse_queues(request: Any, action: str, queue: str) -> bool:
    return queue == ""


refusal = Refusal()
partly = functools.partial(refuse_with, "why")
twice = functools.partial(functools.partial(refuse_with), "why")
SEEN = ("refuse", "refusal", "partly", "twice", "refuse_in_turn", "refuse_one_by_one")


def use(settings: Any, rule: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.{rule}"}}


# --- a rule that answers later


@pytest.mark.parametrize("rule", [*SEEN, "refuse_later"])
def test_a_rule_whose_answer_is_still_to_come_refuses_and_says_so(
    rule: str, api: Caller, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    use(settings, rule)
    assert api.get("v1/queues")[0] == 403
    (record,) = [one for one in caplog.records if one.name == "django_delayq.api"]
    assert (record.levelname, rule in record.getMessage()) == ("ERROR", True)


@pytest.mark.django_db
@pytest.mark.parametrize("rule", SEEN)
def test_the_check_finds_a_rule_whose_answer_is_still_to_come(rule: str, settings: Any) -> None:
    use(settings, rule)
    found = [one for one in checks.run_checks() if one.id == "delayq.E016"]
    assert [f"{SETTING}['API']['allow']" in one.msg and "plain function" in one.msg for one in found] == [True]


# --- answers that are kept


def answered(api: Caller, route: Route) -> tuple[int, bool]:
    """The status of the same request each time, and whether the answer is the one that was kept."""
    body = json.dumps(BODIES.get(route.name, {}))
    headers = {"Authorization": f"Token {api.token}", **KEY}
    response = api.client.generic("POST", ROOT + route.path, body, "application/json", headers=headers)
    return response.status_code, "Idempotent-Replayed" in response


@pytest.fixture
def mail(delayq: Any) -> None:
    delayq.queue("mail", kind="pull")
    delayq.announce("host.example:4711", {"queues": ["mail"], "threads": 1, "running": 0})


@pytest.mark.usefixtures("mail")
@pytest.mark.parametrize(("method", "route", "action"), STORED, ids=ids_of(STORED))
def test_an_answer_that_is_kept_is_not_given_to_a_user_who_lost_the_permission(
    method: str, route: Route, action: str, api: Caller
) -> None:
    first = answered(api, route)
    assert answered(api, route) == (first[0], True)
    api.user.user_permissions.remove(Permission.objects.get(codename=f"api_{action}"))
    assert answered(api, route) == (403, False)


@pytest.mark.usefixtures("mail")
@pytest.mark.parametrize(("method", "route", "action"), STORED, ids=ids_of(STORED))
def test_an_answer_that_is_kept_is_not_given_to_a_user_whom_the_rule_refuses_by_now(
    method: str, route: Route, action: str, api: Caller, settings: Any
) -> None:
    assert answered(api, route)[0] != 403
    use(settings, "refuse_queues" if route.has_queue or route.name in BODIES else "refuse_all")
    assert answered(api, route) == (403, False)


# --- OPTIONS


@pytest.mark.usefixtures("mail")
def test_options_says_which_methods_there_are_and_nothing_else(caller: Callable[..., Caller]) -> None:
    who, stranger = caller(), caller(anonymous=True)
    for route in (route for route in all_routes() if route.name != "metrics"):  # that one has GET only
        assert who("OPTIONS", route.path) == (204, None)
        assert set(who.response["Allow"].split(", ")) - {"OPTIONS", "HEAD"} == set(route.actions)
        assert stranger("OPTIONS", route.path)[0] == 401
