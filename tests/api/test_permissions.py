"""Access to the API: permissions of every route, the project's own rule ``API["allow"]``, and GETs that change nothing.

The URL configuration is walked, so a new route is covered, too.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core import checks
from django.test import Client

from django_delayq import connections
from django_delayq.core.job import NewJob, Payload, new_key
from django_delayq.core.outcomes import ack, bury, fail
from django_delayq.settings.conf import SETTING
from tests.support.api_caller import ALL, ROOT, Caller

from . import routes
from .routes import NOTHING, OPEN, Route, all_routes, ask, calls, picture

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
WORKER = "host.example:4711"


@pytest.fixture
def world(delayq: Any) -> Any:
    """Jobs in every place, also under the id that the sample addresses name."""
    mail, images = delayq.queue("mail", shards=2), delayq.queue("images", kind="pull")
    for queue, task in ((mail, "shop.mail"), (images, "raw")):
        for ident in ("buried", "failed", "held"):
            queue.schedule(NewJob(ident, task, b"[[],{}]"))
            (job,) = queue.reserve_id(ident, worker=WORKER, ttr_ms=60_000).jobs
            if ident != "held":
                settle = bury(job, 0, 1, reason="buried") if ident == "buried" else fail(job, 0, 1, delay_ms=0)
                queue.settle([settle])
        queue.schedule(NewJob("later", task, b"[[],{}]", delay_ms=60_000))
        queue.schedule(NewJob("7", task, b"[[],{}]"))
    mail.schedule(NewJob("many", "shop.merge", payload=Payload(b"1", "", new_key())))
    jobs = [{"slot": 0, "queue": "mail", "id": "held", "task": "shop.mail", "started_ms": 1, "ids": 1}]
    delayq.announce(WORKER, {"queues": ["mail"], "threads": 1, "running": 1, "jobs": jobs})
    delayq.keep_dump(WORKER, "stacks", delayq.now_ms())
    return delayq


def test_every_route_asks_for_what_is_promised() -> None:
    found: dict[str, set[str]] = {action: set() for action in ALL}
    for method, route, action in CALLS:
        address = route.path.partition("?")[0].replace("/mail", "/{}").replace("host.example:4711", "W")
        found[action].add(f"{method} {address}")
    assert found == {action: {one.strip() for one in said.split(";")} for action, said in PROMISED.items()}


def test_without_credentials_it_is_401(world: Any, caller: Callable[..., Caller]) -> None:
    before = picture(world)
    stranger, former = caller(anonymous=True), caller(*ALL)
    former.user.is_active = False
    former.user.save()
    for who, (method, route, _) in itertools.product((stranger, former), CALLS):
        assert (ask(who, method, route), who.response["WWW-Authenticate"]) == (401, "Token"), (method, route)
    assert picture(world) == before


def test_with_all_permissions_but_the_needed_one_it_is_403(world: Any, caller: Callable[..., Caller]) -> None:
    before = picture(world)
    for action in ALL:
        others = caller(*(one for one in ALL if one != action))
        for method, route, needed in CALLS:
            assert needed != action or ask(others, method, route) == 403, (method, route)
    assert picture(world) == before


def test_with_exactly_the_needed_permission_it_is_not_refused(world: Any, caller: Callable[..., Caller]) -> None:
    for method, route, action in CALLS:
        status = ask(caller(action), method, route)
        assert status not in (401, 403, 405) and status < 500, (method, route)


def test_no_route_answers_another_method(world: Any, caller: Callable[..., Caller]) -> None:
    before, everybody = picture(world), caller(*ALL)
    for route in all_routes():
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - route.actions.keys():
            assert ask(everybody, method, route) == 405, (method, route)
    assert picture(world) == before


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


# --- the project's own rule


#: what the rule was asked
asked: list[tuple[str, str]] = []


def refuse_all(request: Any, action: str, queue: str) -> bool:
    """A rule of a project."""
    asked.append((action, queue))
    return False


def refuse_queues(request: Any, action: str, queue: str) -> bool:
    return queue == ""


def only_mail(request: Any, action: str, queue: str) -> bool:
    """Another one: everything, but of one queue."""
    return queue in ("", "mail")


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


refusal = Refusal()
partly = functools.partial(refuse_with, "why")
twice = functools.partial(functools.partial(refuse_with), "why")
#: rules whose answer is still to come, as the check sees before any request
LATE = ("refuse", "refusal", "partly", "twice", "refuse_in_turn", "refuse_one_by_one")


def use(settings: Any, rule: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "API": {"allow": f"{__name__}.{rule}"}}


def test_what_the_projects_own_rule_refuses_is_403(world: Any, caller: Callable[..., Caller], settings: Any) -> None:
    use(settings, "refuse_all")
    everybody = caller(*ALL)
    for method, route, action in CALLS:
        asked.clear()
        assert ask(everybody, method, route) == 403, (method, route)
        assert asked, (method, route)
        assert set(asked) <= ({(action, "mail")} if route.has_queue else {(action, ""), (action, "mail")}), route


@pytest.mark.parametrize("rule", [*LATE, "refuse_later"])
def test_a_rule_whose_answer_is_still_to_come_refuses_and_says_so(
    rule: str, api: Caller, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    use(settings, rule)
    assert api.get("v1/queues")[0] == 403
    (record,) = [one for one in caplog.records if one.name == "django_delayq.api"]
    assert (record.levelname, rule in record.getMessage()) == ("ERROR", True)
    found = [one.msg for one in checks.run_checks() if one.id == "delayq.E016"]
    named = [f"{SETTING}['API']['allow']" in text and "plain function" in text for text in found]
    assert named == [True] * (rule in LATE)


def answered(api: Caller, route: Route) -> tuple[int, bool]:
    """The status of the same request each time, and whether the answer is the one that was kept."""
    bodies = {**routes.BODIES, "create_queue": {"name": "mail", "kind": "python"}}
    headers = {"Authorization": f"Token {api.token}", "Idempotency-Key": route.path}
    body = json.dumps(bodies.get(route.name, {}))
    response = api.client.generic("POST", ROOT + route.path, body, "application/json", headers=headers)
    return response.status_code, "Idempotent-Replayed" in response


def test_an_answer_that_is_kept_is_for_those_who_may_still_have_it(world: Any, api: Caller, settings: Any) -> None:
    allowed = settings.DELAYQ
    for method, route, action in CALLS:
        if method != "POST":
            continue
        first, _ = answered(api, route)
        assert (first, answered(api, route)) == (first, (first, True)) and first != 403, route
        use(settings, "refuse_queues" if route.has_queue or route.name in routes.BODIES else "refuse_all")
        assert answered(api, route) == (403, False), route
        settings.DELAYQ = allowed
        permission = Permission.objects.get(codename=f"api_{action}")
        api.user.user_permissions.remove(permission)
        assert answered(api, route) == (403, False), route
        api.user.user_permissions.add(permission)


# --- addresses and methods


def test_what_is_no_address_is_told_only_to_who_may_come_in(world: Any, caller: Callable[..., Caller]) -> None:
    assert len(NOTHING) == 1
    stranger, liar, known = caller(anonymous=True), caller(anonymous=True), caller()
    liar.token = "0123456789"
    for path in ("v1/nowhere", "nowhere"):
        for method in ("GET", "POST", "DELETE"):
            for nobody in (stranger, liar):
                status, body = nobody(method, path)
                assert (status, body["code"]) == (401, "not_authenticated")
                assert nobody.response["WWW-Authenticate"] == "Token"
                assert nobody.response["Content-Type"] == "application/problem+json"
            assert known(method, path) == (
                404,
                {
                    "type": "urn:django-delayq:problem:not_found",
                    "title": "Not Found",
                    "status": 404,
                    "code": "not_found",
                    "detail": "there is nothing at this address; GET v1/openapi.json lists the addresses",
                },
            )


def test_options_says_which_methods_there_are_and_nothing_else(world: Any, caller: Callable[..., Caller]) -> None:
    who, stranger = caller(), caller(anonymous=True)
    for route in (route for route in all_routes() if route.name != "metrics"):  # that one has GET only
        assert who("OPTIONS", route.path) == (204, None)
        assert set(who.response["Allow"].split(", ")) - {"OPTIONS", "HEAD"} == set(route.actions)
        assert stranger("OPTIONS", route.path)[0] == 401


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_looking_changes_nothing(method: str, world: Any, api: Caller) -> None:
    before = picture(world)
    for route in all_routes():
        status = ask(api, method, route)
        is_there = "GET" in route.actions and not (method == "HEAD" and route.name == "metrics")
        # job 7 waits, so nobody has buried it
        assert status == (405 if not is_there else 404 if route.name == "get_graves" else 200), route
        assert picture(world) == before, route
    for path in sorted(OPEN):
        assert (api(method, path)[0], picture(world)) == (200, before), path
    assert api.post("v1/queues/mail/reserve", {})[0] == 200
    assert picture(world) != before, "the picture shows a change"


@pytest.mark.parametrize("missing", ["rest_framework", "drf_spectacular"])
def test_a_missing_package_is_named_with_its_extra(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import django_delayq.api.urls"
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=60, check=False
    )
    assert answer.returncode == 1
    assert "pip install 'django-delayq[api]'" in answer.stderr.splitlines()[-1]


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "http.md"


@pytest.fixture
def shared(delayq: Any, settings: Any) -> Any:
    """Two queues, of which one is for the caller, and a worker that serves both."""
    for name in ("mail", "salaries"):
        queue = delayq.queue(name)
        queue.schedule(NewJob("1", "shop.pay", b"[[],{}]"))
        (job,) = queue.reserve_id("1", worker="w", ttr_ms=60_000, started=True).jobs
        settlement = ack(job, int(delayq.now_ms()), 7)
        queue.settle([settlement])
        delayq.tally.ended(name, [settlement])
    delayq.tally.flush()
    running = [
        {"slot": n, "queue": name, "id": f"{name}-7", "task": "shop.pay", "started_ms": 1, "ids": 1}
        for n, name in enumerate(("mail", "salaries"))
    ]
    delayq.announce("w1", {"queues": ["mail", "salaries"], "threads": 2, "running": 2, "jobs": running})
    use(settings, "only_mail")
    return connections.broker()


def test_what_the_projects_rule_hides_is_in_no_overview(shared: Any, api: Caller) -> None:
    for path in ("v1/status", "v1/workers", "v1/workers/w1", "v1/queues", "v1/queues?names_only=true"):
        status, body = api.get(path)
        text = json.dumps(body)
        assert (status, "mail" in text, "salaries" in text) == (200, True, False), path
    assert [api.get("v1/queues/salaries")[0], api.post("v1/queues", {"name": "other"})[0]] == [403, 403]
    _, body = api.get("v1/status")
    assert (body["totals"]["done"], body["totals"]["run_so_far"]["count"]) == (1, 1)
    assert [job["queue"] for worker in body["workers"] for job in worker["jobs"]] == ["mail"]
    assert set(shared.figures().lateness) == {"mail", "salaries"}


def test_health_needs_no_login_where_everything_else_does(delayq: Any, db: None, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    for path in ("healthz", "readyz"):
        assert Client().get(ROOT + path).status_code == 200
    assert Client().get(f"{ROOT}v1/queues").status_code == 401


def of_the_documentation(request: Any, action: str, queue: str) -> bool:
    (code,) = re.findall(r"```python\n(def may\(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return bool(namespace["may"](request, action, queue))


def test_the_documented_rule_keeps_everybody_to_his_own_queues(shared: Any, api: Caller, settings: Any) -> None:
    use(settings, "of_the_documentation")
    mine = f"{api.user.username}.mail"
    assert [api.post("v1/queues", {"name": name, "kind": "pull"})[0] for name in (mine, "other")] == [201, 403]
    assert api.post(f"v1/queues/{mine}/jobs", {"body": "x"})[0] == 201
    for names, status in (([mine], 200), ([mine, "mail"], 403), (["nowhere"], 403)):
        assert api.post("v1/reserve", {"queues": names})[0] == status
    for path in ("v1/status", "v1/workers", "v1/queues", "v1/openapi.json"):
        assert (api.get(path)[0], b"salaries" in api.response.content) == (200, False)
    for method, path in (
        ("GET", "metrics"),
        ("POST", "v1/workers/w1/stop"),
        ("POST", "v1/workers/w1/dump"),
        ("GET", "v1/workers/w1/dump"),
        ("GET", "v1/queues/salaries"),
    ):
        assert api(method, path)[0] == 403
