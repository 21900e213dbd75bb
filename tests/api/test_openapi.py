"""The OpenAPI document says everything that there is, and nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import jsonschema
import pytest
from django.core.management import call_command
from django.urls import URLPattern, URLResolver, include as include_urls, path
from drf_spectacular import plumbing
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import spectacular_settings
from drf_spectacular.validation import validate_schema

import django_delayq
from django_delayq.access.problems import CODES
from django_delayq.api import openapi, urls
from django_delayq.api.openapi import TAGS
from tests.support.api_caller import Caller

METHODS = ("get", "post", "put", "patch", "delete")
PACKAGE = Path(django_delayq.__file__).parent
#: for Prometheus, in its own format, and of a view that is a function
METRICS = ("/metrics", "get")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """As a client gets it."""
    made: dict[str, Any] = json.loads(json.dumps(openapi.document("/delayq/"), default=str))
    return made


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for where, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield where, method, operation


def resolved(document: Mapping[str, Any], part: Any) -> Any:
    """The thing itself, where there is a reference to it."""
    while isinstance(part, Mapping) and "$ref" in part:
        found: Any = document
        for word in part["$ref"].removeprefix("#/").split("/"):
            found = found[word]
        part = found
    return part


def routes(patterns: list[Any], prefix: str = "/") -> Iterator[tuple[str, Any]]:
    for one in patterns:
        where = prefix + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(one.pattern))
        if isinstance(one, URLResolver):
            yield from routes(one.url_patterns, where)
        elif isinstance(one, URLPattern) and one.name != "nothing":
            yield where, one.callback


def methods_of(view: Any) -> set[str]:
    """Those that do something; HEAD and OPTIONS come for free."""
    return {"get"} if not hasattr(view, "cls") else set(view.actions) - {"head"}


def test_it_is_valid(document: dict[str, Any]) -> None:
    validate_schema(document)  # raises


def test_every_default_is_one_that_may_be_said(document: dict[str, Any]) -> None:
    def walk(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if "default" in part and "type" in part:
                yield part
            part = list(part.values())
        if isinstance(part, list):
            for one in part:
                yield from walk(one)

    found = list(walk(document))
    assert found
    for one in found:
        check(document, one, one["default"], str(one))


def test_generating_it_warns_of_nothing() -> None:
    openapi._generated.cache_clear()
    openapi.document("/delayq/")
    assert (dict(GENERATOR_STATS._warn_cache), dict(GENERATOR_STATS._error_cache)) == ({}, {})


def test_it_has_every_route_and_method_and_no_other(document: dict[str, Any]) -> None:
    there = {(where, method) for where, view in routes(urls.urlpatterns) for method in methods_of(view)}
    said = {(where, method) for where, method, _ in operations(document)}
    assert said == there


def test_every_operation_is_complete(document: dict[str, Any]) -> None:
    found = list(operations(document))
    names = [operation["operationId"] for *_, operation in found]
    assert sorted(set(names)) == sorted(names)
    for where, method, operation in found:
        place, parameters = (where, method), operation.get("parameters", ())
        assert 0 < len(operation["summary"]) < 80 and operation["description"], place
        assert len(operation["tags"]) == 1 and operation["tags"][0] in TAGS, place
        in_path = {one["name"]: one for one in parameters if one.get("in") == "path"}
        assert set(in_path) == set(re.findall(r"{(\w+)}", where)), place
        assert all(one["description"] and {"pattern", "maxLength"} & set(one["schema"]) for one in in_path.values()), (
            place
        )
        headers = [one["name"] for one in parameters if one["in"] == "header"]
        assert headers == (["Idempotency-Key"] if method == "post" else []), place
        is_open = where in ("/healthz", "/readyz", "/metrics")
        assert operation.get("security") == (None if is_open else [{"tokenAuth": []}, {"cookieAuth": []}]), place
        good = {status: answer for status, answer in operation["responses"].items() if status < "300"}
        assert good, place
        for status, answer in good.items():
            assert (status != "204") == any(one["schema"] for one in answer.get("content", {}).values()), place


def check(document: dict[str, Any], schema: Any, value: Any, what: str) -> None:
    """As OpenAPI 3.0.3 has it: ``nullable`` adds null to the ``type`` beside it, and allows nothing else."""
    whole = {**_plain(schema), "components": _plain(document["components"])}
    errors = list(jsonschema.Draft4Validator(whole).iter_errors(value))
    assert errors == [], (what, [error.message for error in errors])


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _plain(one) for name, one in schema.items()}
    if made.pop("nullable", False) is True and "type" in made:
        made["type"] = [made["type"], "null"]
    return made


def answer_of(document: Mapping[str, Any], where: str, method: str, status: int) -> Any:
    """The schema of an answer."""
    answer = resolved(document, document["paths"][where][method]["responses"][str(status)])
    return answer["content"]["application/json"]["schema"]


def test_a_job_that_never_failed_is_what_the_document_says_listed_and_alone(
    api: Caller, delayq: Any, document: dict[str, Any]
) -> None:
    delayq.queue("mail", kind="pull")
    api.post("v1/queues/mail/jobs", {"body": "x", "id": "5", "delay": 60})
    for address, where in (("jobs", "/v1/queues/{queue}/jobs"), ("jobs/5", "/v1/queues/{queue}/jobs/{id}")):
        status, answer = api.get(f"v1/queues/mail/{address}")
        job = answer["jobs"][0] if "jobs" in answer else answer
        assert (status, job["error"], job["worker"]) == (200, None, None)
        check(document, answer_of(document, where, "get", 200), answer, address)


def test_what_was_there_already_is_answered_as_the_document_says_one_or_many(
    api: Caller, delayq: Any, document: dict[str, Any]
) -> None:
    delayq.queue("mail", kind="pull")
    job = {"body": "x", "id": "5", "delay": 60, "on_conflict": "ignore"}
    api.post("v1/queues/mail/jobs", job)
    for asked in (job, {"jobs": [job]}):
        status, answer = api.post("v1/queues/mail/jobs", asked)
        assert status == 200
        check(document, answer_of(document, "/v1/queues/{queue}/jobs", "post", status), answer, str(asked))


def test_without_the_package_of_prometheus_there_are_no_metrics_to_speak_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(openapi.metrics_path()) == {"/metrics"}
    monkeypatch.setattr(openapi, "find_spec", lambda name: None)
    assert openapi.metrics_path() == {}


def test_errors_are_problems_and_every_code_that_the_views_use_is_listed(document: dict[str, Any]) -> None:
    for where, method, operation in operations(document):
        content = resolved(document, operation["responses"]["default"])["content"]
        assert list(content) == ["application/problem+json"], (where, method)
        assert content["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
    assert codes_in_use() == {(status, code) for code, (status, _) in CODES.items()}


def codes_in_use() -> set[tuple[int, str]]:
    """``Problem("conflict", …)`` wherever the source of the API has it, and what DRF raises by itself."""
    found = {
        (400, "malformed"),
        (401, "not_authenticated"),
        (403, "permission_denied"),
        (404, "not_found"),
        (405, "method_not_allowed"),
        (406, "not_acceptable"),
        (415, "unsupported_media_type"),
        (429, "throttled"),
        (400, "invalid"),
    }
    for file in sorted([*(PACKAGE / "api").rglob("*.py"), *(PACKAGE / "access").rglob("*.py")]):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="Problem"), args=[ast.Constant(str(code)), *_]):
                    found.add((CODES[code][0], code))
    return found


def test_a_body_that_is_said_to_be_needed_is_and_no_other(api: Caller, document: dict[str, Any], delayq: Any) -> None:
    delayq.queue("mail", kind="pull")
    delayq.queue("other", kind="pull")
    needed, refused = set(), set()
    for route, methods in document["paths"].items():
        for method, operation in methods.items():
            if "requestBody" not in operation:
                continue
            if operation["requestBody"].get("required"):
                needed.add(operation["operationId"])
            address = route.removeprefix("/").format(queue="mail", id="x", worker="w", task="t")
            status, answer = api(method.upper(), address)
            if status == 400 and answer["code"] == "invalid":
                refused.add(operation["operationId"])
    assert needed == refused


def test_every_operation_names_its_permission_which_is_the_one_that_is_asked_for(document: dict[str, Any]) -> None:
    wanted = {
        (where, method): permission
        for where, view in routes(urls.urlpatterns)
        if hasattr(view, "cls")
        for method in methods_of(view)
        if (permission := getattr(view.cls, view.actions[method]).operation.permission)
    }
    wanted[METRICS] = "view"
    said = {
        (where, method): one["x-permission"] for where, method, one in operations(document) if "x-permission" in one
    }
    assert said == wanted


def test_the_view_answers_with_it_for_the_place_where_it_is_included(
    api: Caller, document: dict[str, Any], settings: Any
) -> None:
    status, body = api.get("v1/openapi.json")
    assert (status, body) == (200, document)
    assert body["servers"] == [{"url": "/delayq"}]
    assert body["info"]["version"] == django_delayq.__version__


elsewhere = [path("intern/queues/", include_urls("django_delayq.api.urls"))]


def test_included_elsewhere_it_says_so(api: Caller, settings: Any) -> None:
    module = ModuleType("elsewhere")
    module.urlpatterns = elsewhere  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = module
    response = api.client.get("/intern/queues/v1/openapi.json", headers={"Authorization": f"Token {api.token}"})
    assert response.json()["servers"] == [{"url": "/intern/queues"}]


def test_the_settings_of_the_projects_own_document_do_not_change_it(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drf_spectacular.settings import spectacular_settings

    theirs = {"TITLE": "Shop", "CAMELIZE_NAMES": True, "SCHEMA_PATH_PREFIX_INSERT": "/x"}
    for name, value in theirs.items():
        monkeypatch.setattr(spectacular_settings, name, value)
    openapi._generated.cache_clear()
    made = json.loads(json.dumps(openapi.document("/delayq/"), default=str))
    assert made == document
    assert {name: getattr(spectacular_settings, name) for name in theirs} == theirs


@pytest.mark.parametrize(
    "options",
    [{}, {"urlconf": "django_delayq.api.urls", "custom_settings": "django_delayq.api.openapi.SETTINGS"}],
    ids=["in a project's own document", "alone"],
)
def test_the_spectacular_command_finds_it_without_a_warning(
    options: dict[str, str], document: dict[str, Any], capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    from rest_framework.settings import api_settings

    settings.REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}
    api_settings.reload()
    out = StringIO()
    call_command("spectacular", "--fail-on-warn", "--validate", "--format", "openapi-json", stdout=out, **options)
    found = {operation["operationId"] for *_, operation in operations(json.loads(out.getvalue()))}
    views = {
        one["operationId"]
        for where, method, one in operations(document)
        if "x-permission" in one and (options or (where, method) != METRICS)  # a plain path, which ours alone has
    }
    assert views <= found
    assert "arning" not in capsys.readouterr().err


def test_while_the_document_is_made_other_threads_find_the_settings_of_the_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    generate = SchemaGenerator.get_schema

    def project() -> dict[str, Any]:
        return {name: getattr(spectacular_settings, name) for name in openapi.SETTINGS}

    def held_open(*args: Any, **kwargs: Any) -> Any:
        other = Thread(target=lambda: seen.append(project()))
        other.start()
        other.join()
        return generate(*args, **kwargs)

    before = project()
    openapi._generated.cache_clear()
    monkeypatch.setattr(SchemaGenerator, "get_schema", held_open)
    assert openapi.document("/")["info"]["title"] == openapi.SETTINGS["TITLE"] != before["TITLE"]
    assert seen == [before] == [project()]


def test_names_of_its_enums_are_not_kept_for_the_document_of_the_project() -> None:
    plumbing._load_enum_name_overrides.cache_clear()  # of the whole process
    openapi._generated.cache_clear()
    openapi.document("/")
    assert plumbing.load_enum_name_overrides() == {}
