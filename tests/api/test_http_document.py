"""Checks of docs/http.md: its commands run, and its tables match the code."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from django_delayq import models
from django_delayq.access.problems import CODES
from django_delayq.api.openapi import document
from django_delayq.client import Client, HeldJob
from django_delayq.settings.conf import ApiConf
from tests.support.api_caller import ALL, Caller

from .errands import carry, put

CONSUMERS = (Path(__file__).resolve().parents[2] / "docs" / "http_consumers.md").read_text()
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.django_db(transaction=True)
def test_the_walk_with_curl_works_as_it_stands(
    delayq: Any, transactional_db: None, live_server: Any, caller: Callable[..., Caller], tmp_path: Path
) -> None:
    script = "set -euo pipefail\n" + "\necho; echo ---\n".join(blocks("sh"))
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
        env={"PATH": __import__("os").environ["PATH"], "URL": f"{live_server.url}/delayq", "TOKEN": caller(*ALL).token},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    steps = [json.loads(f"[{step.strip().replace('}{', '},{')}]") for step in done.stdout.split("---")]
    defined, made, looked, taken, ended, morgue, many, figures = steps
    assert (defined, taken) == ([], [])
    assert (made[0]["kind"], made[1]["outcome"]) == ("pull", "created")
    assert set(json.loads(blocks("json")[0])) == set(made[1])
    assert (looked[0]["state"], looked[1]["counts"]) == ("delayed", {"moved": 1})
    assert [one["results"][0].get("held", one["results"][0].get("counted")) for one in ended] == [True, True]
    assert json.loads(blocks("json")[1]) == ended[1]
    assert [morgue[0]["counts"], [job["id"] for job in morgue[1]["jobs"]], morgue[2]["counts"]] == [
        {"killed": 1},
        ["picture-5"],
        {"kicked": 1},
    ]
    assert many[0]["counts"] == {"created": 2}
    assert figures[0]["counts"]["delayed"] + figures[0]["counts"]["ready"] == 3


def test_its_table_of_codes_is_the_one_of_the_document() -> None:
    table = TEXT.split("<!-- codes")[1].split("<!-- end -->")[0]
    found = re.findall(r"^\| `(\w+)` \| (\d+) \| (.*) \|$", table, re.M)
    assert {code: (int(status), text) for code, status, text in found} == CODES


def test_its_table_of_settings_has_all_of_them() -> None:
    table = TEXT.split('`DELAYQ["API"]`')[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == list(ApiConf.__dataclass_fields__)


def test_its_table_of_permissions_has_all_of_them() -> None:
    names = re.findall(r"^\| \w+ \| `django_delayq\.(\w+)`", TEXT, re.M)
    assert names == [codename for codename, _ in models.HttpApi._meta.permissions]


def test_its_table_of_routes_has_all_of_them() -> None:
    table = TEXT.split("## Routes")[1].split("## Errors")[0]
    found = set()
    for cell in re.findall(r"^\| (`.*?) \|", table, re.M):
        first, *others = re.findall(r"`([^`]+)`", cell)
        found.add(first)
        for other in others:  # "/resume" stands for a route beside the first one, "/morgue/{id}" below the same queue
            base = first if other.startswith("/") else ""
            found.add(base.rpartition("/")[0] + other if base else other)
    assert {f"/{one}" for one in found} == set(document("/")["paths"])


#: routes of Grape's server
GRAPE = {
    *("POST tube/create", "POST tube/delete", "GET tube/list", "GET tube/stats", "GET tube/stats/:tubeName"),
    *("POST job/produce", "DELETE job/delete", "GET job/consume", "DELETE job/finish", "PUT job/release"),
    *("PUT job/bury", "PUT job/failure", "GET job/peek", "PUT job/kick", "DELETE job/discard"),
}


def test_its_table_of_the_verbs_of_grape_names_routes_that_exist_and_their_members() -> None:
    table = TEXT.split("<!-- grape")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| `(.*?)` \| `(\w+) (\S+)` \| (.*?)\|$", table, re.M)
    assert {verb for verb, _, _, _ in rows} == GRAPE
    made = document("/")
    for _, method, path, cell in rows:
        known = members_of(made, made["paths"][f"/{path}"][method.lower()])
        assert set(re.findall(r"`([a-z_0-9]+)`", cell)) <= known, (method, path)


def members_of(made: dict[str, Any], operation: dict[str, Any]) -> set[str]:
    """Return the names of the parameters of an operation, and of the members of its body, at any depth."""
    found = {one["name"] for one in operation.get("parameters", ()) if "name" in one}
    bodies: list[Any] = [operation.get("requestBody", {})]
    while bodies:
        one = bodies.pop()
        if isinstance(one, list):
            bodies += one
        elif isinstance(one, dict):
            if "$ref" in one:
                bodies.append(made["components"]["schemas"][one["$ref"].rpartition("/")[2]])
            found |= one.get("properties", {}).keys()
            bodies += [inner for name, inner in one.items() if name != "examples"]
    return found


def test_the_errors_that_it_puts_beside_those_of_grape_exist() -> None:
    table = TEXT.split("| Grape's code |")[1]
    found = re.findall(r"(\d{3}) `(\w+)`", table)
    assert (
        found
        and {code: int(status) for status, code in found}.items()
        <= {code: status for code, (status, _) in CODES.items()}.items()
    )


VALUES: list[Any] = [
    datetime.fromisoformat("2026-11-21T11:23:43+01:00"),
    date(2026, 11, 21),
    time(11, 23, 43),
    timedelta(seconds=90.5),
    Decimal("1.50"),
    UUID(int=5),
    b"\x00\xff",
    {"$dt": 5},
]


def test_values_that_json_lacks_have_the_forms_of_its_table_reserved_and_shown(api: Caller, delayq: Any) -> None:
    table = CONSUMERS.split("<!-- values")[1].split("<!-- end -->")[0]
    rows = re.findall(r"^\| (?:`(\w+)`|a dict.*?) \| `(.*?)`.*? \| `(.*?)`.*? \|$", table, re.M)
    assert [name for name, _, _ in rows] == [*(type(value).__name__ for value in VALUES[:-1]), ""]
    put(delayq, carry, *VALUES, id="a")
    assert api.get("v1/queues/errands/jobs/a")[1]["args"] == [json.loads(shown) for _, _, shown in rows]
    (job,) = api.post("v1/queues/errands/reserve")[1]["jobs"]
    assert job["args"] == [json.loads(held) for _, held, _ in rows]


def signatures(kind: type) -> set[str]:
    """As ``put(queue, body, **options)``: without types, and without the object itself."""
    found = set()
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            _, *some = inspect.signature(method).parameters.values()
            bare = inspect.Signature([one.replace(annotation=inspect.Parameter.empty) for one in some])
            found.add(name + str(bare).replace("'", '"'))
    return found


@pytest.mark.parametrize(("mark", "kind"), [("methods", Client), ("held", HeldJob)])
def test_its_tables_of_the_client_have_every_method_with_its_arguments(mark: str, kind: type) -> None:
    table = TEXT.split(f"<!-- {mark}")[1].split("<!-- end -->")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.M)
    found = [one for cell in cells for one in re.findall(r"`([^`]+)`", cell)]
    assert sorted(found) == sorted(signatures(kind))
