"""Requests that make no sense: each is refused with the place of its mistake, and nothing that is stored changes.

A row is the query or the body, the JSON pointer of its only error (None: the error has no place), and a piece of its
text where that matters.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_delayq import connections
from django_delayq.core.broker import Broker
from tests.support.api_caller import Caller

from .errands import bury, carry, contents, fail, put

LOST = "0.1234567890123456"
#: stands for the lease of the job that is held
LEASE = "the lease"
#: deeper than arguments may be, and not too deep for a request
DEEP = json.loads("[" * 40 + "]" * 40)

LIMITS = [("limit=0", "/limit"), ("limit=x", "/limit"), ("colour=red", "/colour")]
CONDITIONS = [
    ("failures=x", "/failures"),
    ("failures_to=x", "/failures_to"),
    ("due_from=soon", "/due_from"),
    ("text=" + "x" * 1001, "/text"),
    ("prefix=a%00", "/prefix"),
    ("id_from=b&id_to=a", "", "exchange id_from and id_to"),
]
#: address → queries
QUERIES: dict[str, list[Any]] = {
    "queues": [("name_only=1", "/name_only")],
    "queues/errands/jobs": [
        *LIMITS,
        *CONDITIONS,
        ("limit=251", "/limit"),
        ("limit=%C2%B2", "/limit"),
        ("state=morgue", "/state"),
        ("state=reserved&by=due", "/by"),
        ("by=size", "/by"),
        ("order=up", "/order"),
        ("min=soon", "/min"),
        ("max=2030-01-01", "/max"),
        ("max=1e17", "/max"),
        ("min=nan", "/min"),
        ("state=failed&by=failures&min=2030-01-01T00:00:00Z", "/min"),
        ("id=x&min=5", "/min"),
        ("id=x&cursor=y", "/cursor"),
        ("id=a%00b", "/id"),
        ("id=" + "x" * 300, "/id"),
    ],
    "queues/errands/morgue": [
        *LIMITS,
        ("by=due", "/by"),
        ("state=waiting", "/state"),
        ("by=id&min=%00", "/min"),
        ("order=", "/order"),
        ("id=a&max=b", "/max"),
        ("min=x", "/min"),
    ],
    "queues/errands/morgue/dead": [*LIMITS, ("limit=251", "/limit"), ("cursor=x", "/cursor"), ("order=asc", "/order")],
    "queues/errands/depth": [(f"minutes={minutes}", "/minutes") for minutes in (0, 1441, "many")],
    "history/hours": [
        *LIMITS,
        ("limit=5000", "/limit"),
        ("from=yesterday", "/from"),
        ("to=2026-11-20", "/to"),
        ("from=1e300", "/from"),
        ("from=9999-12-31T23:59:59-12:00", "/from"),
        ("cursor=5", "/cursor"),
        ("cursor=x-1", "/cursor"),
        ("cursor=1--1", "/cursor"),
        ("cursor=1-1~", "/cursor"),
        ("cursor=%D9%A2-1", "/cursor"),
        ("cursor=1-" + "9" * 30, "/cursor"),
        ("queue=%00", "/queue"),
    ],
    "history/runs": [
        *LIMITS,
        ("cursor=x", "/cursor"),
        ("cursor=" + "9" * 40, "/cursor"),
        ("state=odd", "/state"),
        ("kind=odd", "/kind"),
    ],
}

UNCLEAR = [
    ({}, ""),
    ({"ids": []}, "/ids"),
    ({"ids": "a"}, "/ids"),
    ({"ids": [None]}, "/ids/0"),
    ({"ids": ["a", "b\n"]}, "/ids/1"),
    ({"all": False}, "/all"),
    ({"all": 1}, "/all"),
    ({"ids": ["a"], "all": True}, ""),
    ({"where": {"task": "a"}, "all": True}, "", "exactly one"),
    ({"id": "a"}, "/id"),
    ([], ""),
    ("5", ""),
]
WHERE = [
    ({"where": {}}, "/where", "at least one condition"),
    ({"where": {"colour": "red"}}, "/where/colour", "unknown member"),
    ({"where": {"failures": -1}}, "/where/failures", "failures"),
    ({"where": {"failures": 5, "failures_to": 4}}, "/where"),
    ({"where": {"due_from": "soon"}}, "/where/due_from", "no moment"),
    ({"where": {"text": "x" * 2000}}, "/where/text", "up to 1000"),
    ({"where": {"id_from": "b", "id_to": "a"}}, "/where", "exchange id_from and id_to"),
    ({"where": 5}, "/where"),
    ({"where": {"task": "a"}, "cursor": "x"}, "/cursor", "is not a cursor"),
    ({"where": {"task": "a"}, "cursor": ["x"]}, "/cursor", "a cursor is a text"),
]
DUES = [
    ({}, ""),
    ({"delay": 5, "at": 5}, ""),
    ({"delay": "5"}, "/delay"),
    ({"delay": None}, "/delay"),
    ({"delay": 10**15}, "/delay"),
    ({"at": "2030-01-01T00:00:00"}, "/at"),
    ({"at": -5}, "/at"),
    ({"delay": 5, "x": 1}, "/x"),
]
RECORDS = [
    ({"jobs": []}, "/jobs"),
    ({"jobs": ["a"]}, "/jobs/0"),
    ({"jobs": [{"key": "00" * 16}]}, "/jobs/0/id"),
    ({"jobs": [{"id": "a", "key": "zz"}]}, "/jobs/0/key"),
    ({"jobs": [{"id": "a", "key": "é" * 32}]}, "/jobs/0/key"),
    ({"jobs": [{"id": "a", "key": 5}]}, "/jobs/0/key"),
    ({"jobs": [{"id": "a", "x": 1}]}, "/jobs/0/x"),
    ({"ids": ["a"], "jobs": [{"id": "a"}]}, ""),
]
LEASES = [
    ({"id": "a", "lease": "x"}, "/lease"),
    ({"id": "a", "lease": "1.2.3"}, "/lease"),
    ({"id": "a", "lease": "0.9999999999999999"}, "/lease"),
    ({"id": "a", "lease": "0.１２"}, "/lease"),
    ({"id": "a", "lease": None}, "/lease"),
    ({"id": "a"}, "/lease"),
    ({"lease": LOST}, "/id"),
    ({"id": "", "lease": LOST}, "/id"),
    ({"id": "a\0b", "lease": LOST}, "/id"),
    ({"id": "é" * 128, "lease": LOST}, "/id"),
    ({"id": ["a"], "lease": LOST}, "/id"),
    ({"id": "a", "lease": LOST, "leese": 1}, "/leese"),
    ("a", ""),
]
#: wrong members of each way to end a job
ENDS: dict[str, list[tuple[str, Any]]] = {
    "ack": [("delay", 1)],
    "fail": [
        ("error", 5),
        ("error", {"code": "x"}),
        ("error", {"class": 5}),
        ("delay", True),
        ("delay", "5"),
        ("delay", 1e12),
    ],
    "release": [("delay", True), ("priority", 8)],
    "bury": [("reason", "r" * 201)],
    "touch": [("ttr", 0), ("ttr", 3601)],
}
POLICIES = [
    ({"max_length": 0}, "/max_length"),
    ({"max_length": "many"}, "/max_length"),
    ({"morgue_ttl": 0.5}, "/morgue_ttl"),
    ({"priorities": "none"}, "/priorities"),
    ({"priorities": None}, "/priorities"),
    ({"starve_after": 0}, "/starve_after"),
    ({"shard": 2}, "/shard"),
]
#: what a job of a task may not have
CALLS = [
    ({"at": 5, "delay": 5}, "/delay"),
    ({"on_conflict": "merge"}, "/on_conflict"),
    ({"expires": "2001-01-01T00:00:00Z"}, "/expires"),
    ({"context": {"x": "y" * 70_000}}, "/context"),
    ({"task": None}, "/task"),
    ({"task": ["errands.carry"]}, "/task"),
    ({"queue": "other"}, "/queue"),
    ({"using_db": "default"}, "/using_db"),
    ({"a/b~c": 1}, "/a~1b~0c"),
    ({"payload": 1}, "/payload"),
    ({"score": 1}, "/score"),
    ({"body": "x"}, "/body"),
    ({"args": [DEEP]}, "/args/0"),
    ({"args": [1], "kwargs": {"x": DEEP}}, "/kwargs/x"),
]
#: address → bodies
BODIES: dict[str, list[Any]] = {
    "POST queues": [
        ({}, "/name"),
        *(({"name": name}, "/name") for name in ("1mail", "mail\n", "m" * 65, "a:{b}", ["mail"])),
        ({"name": "mail", "kind": "ruby"}, "/kind"),
        *(({"name": "mail", "shards": shards}, "/shards") for shards in (0, 1025, 10**30)),
        *(({"name": "mail", **policy}, pointer) for policy, pointer in POLICIES),
        (["mail"], ""),
    ],
    "PATCH queues/errands": [
        *(({"morgue_max": 7, **one}, pointer) for one, pointer in POLICIES),
        ({"shards": 2}, "/shards"),
    ],
    "POST queues/errands/reshard": [
        ({"shards": many}, "/shards") for many in (0, -1, 1025, 1.5, "two", None, True, [2])
    ],
    "POST queues/errands/pause": [
        ({}, "/direction"),
        ({"direction": "sideways"}, "/direction"),
        ({"direction": "in", "for": 5}, "/for"),
        *(({"direction": "out", "seconds": seconds}, "/seconds") for seconds in (0, -1, "10m")),
    ],
    "PUT queues/errands/limits": [
        ({}, ""),
        ({"burst": 3}, ""),
        ({"concurrency": 0}, "/concurrency"),
        ({"rate": "often"}, "/rate"),
        ({"rate": 1, "burst": 0}, "/burst"),
        ({"group": "", "rate": 1}, "/group"),
        ({"group": "a\0b", "rate": 1}, "/group"),
        ({"rate": 1, "queue": "mail"}, "/queue"),
    ],
    "POST queues/errands/jobs": [
        *(({"task": "errands.carry", **one}, *more) for one, *more in CALLS),
        ({"jobs": [{"task": "errands.carry"}] * 251, "all_or_none": True}, None, "all_or_none"),
        ({"jobs": [{"task": "errands.carry"}, {"task": "errands.keep"}], "all_or_none": True}, None, "all_or_none"),
        ({"jobs": [{"task": "errands.carry"}], "all_or_none": 1}, "/all_or_none"),
        *(({"jobs": jobs}, "/jobs") for jobs in ({}, [], "x")),
        ({"jobs": [1], "delay": 5}, "/delay"),
        ({"body": "x"}, "/task", "a body goes into a queue of kind pull"),
        ({"task": "errands.greet", "kwargs": {"nam": "Ada"}}, "", "missing a required argument: 'name'"),
        ({"task": "errands.collect", "id": "m", "args": [1]}, "/args"),
        ({"task": "errands.collect", "payload": 1}, "", "needs an id"),
        *((json.dumps(body), None) for body in ([], "x", 5, None)),
    ],
    "POST queues/feed/jobs": [
        ({}, "/body"),
        ({"body": "x", "body_base64": "eA=="}, "/body"),
        ({"body": 5}, "/body"),
        ({"body_base64": "no!"}, "/body_base64"),
        ({"body_base64": "é"}, "/body_base64"),
        ({"body_base64": 1}, "/body_base64"),
        ({"body": "x", "task": "errands.carry"}, "/task"),
        ({"body": "x", "durable": True}, "/durable"),
        ({"body": "x", "delay": "soon"}, "/delay"),
        ({"body": "x", "on_conflict": "merge"}, "/on_conflict"),
        *(({"body": "x", "wait_for_room": room}, "/wait_for_room") for room in (-1, 21, "1")),
        ({"body": "x", "wait_for_confirmation": "no"}, "/wait_for_confirmation"),
        ({"body": "x", "wait_for_confirmation": True}, "/wait_for_confirmation", "WAIT_REPLICAS"),
    ],
    "PATCH queues/errands/jobs/a": [*DUES, ([], "")],
    "POST queues/errands/reschedule": [({"ids": ["a"], **one}, pointer) for one, pointer in DUES],
    "POST queues/errands/cancel": [*UNCLEAR, *WHERE],
    "POST queues/errands/run-now": [*UNCLEAR, *WHERE],
    "POST queues/errands/kill-failed": [({"all": True}, "/all"), ({"cursor": ""}, "/cursor", "goes with where")],
    "POST queues/errands/kick": [
        *UNCLEAR,
        *WHERE,
        *RECORDS,
        ({"ids": ["a"], "delay": "soon"}, "/delay"),
        ({"ids": ["a"], "delay": 1e300}, "/delay"),
        ({"ids": ["a"], "replace": 1}, "/replace"),
        *(({"all": True, "per_second": pace}, "/per_second") for pace in (0, -1, 1e-300, "5")),
        ({"ids": ["a"], "per_second": 5}, "/per_second"),
        ({"ids": ["a"], "older_than": 5}, "/older_than"),
        *(
            ({"all": True, "per_second": 50, "cursor": one}, "/cursor")
            for one in ("x", "-1", "nan", "inf", "1e3", "", "MQ")
        ),
        ({"all": True, "cursor": "1"}, "/cursor"),
        ({"where": {"task": "a"}, "cursor": 5}, "/cursor", "a cursor is a text"),
    ],
    "POST queues/errands/discard": [
        *UNCLEAR,
        *WHERE,
        *RECORDS,
        ({"ids": ["a"], "older_than": 5}, "/older_than"),
        ({"where": {"task": "a"}, "older_than": 5}, "/older_than", "goes with all"),
        ({"all": True, "older_than": -5}, "/older_than"),
        ({"all": True, "older_than": None}, "/older_than"),
    ],
    "POST reserve": [
        *(({"queues": queues}, "/queues") for queues in ([], "feed", ["feed"] * 51, None)),
        ({"queues": ["feed", 5]}, "/queues/1"),
        ({"queues": ["feed", "errands"], "id": "a"}, "/id", "unknown member"),
    ],
    "POST queues/feed/reserve": [
        *(({"max": most}, "/max") for most in (0, 251, True, "1")),
        *(({"wait": wait}, "/wait") for wait in (20.1, -1, "nan")),
        *(({"ttr": ttr}, "/ttr") for ttr in (0, 3601, None)),
        *(({"worker": name}, "/worker") for name in ("w" * 201, "é" * 150, 5)),
        ({"limit": 5}, "/limit"),
        ({"id": "a", "max": 5}, "/id", "leave max and wait out"),
        ({"id": "a", "wait": 5}, "/id", "leave max and wait out"),
        ({"early": True}, "/early", "this goes with id"),
        ({"buried": True}, "/buried", "this goes with id"),
        ({"where": {"text": "a"}}, "/where", "unknown member"),
        ({"id": ""}, "/id", "id"),
        ({"holding": []}, "/holding", "give deadline_margin, too"),
        ({"deadline_margin": 5}, "/deadline_margin", "give holding, too"),
        ({"holding": [], "deadline_margin": 0}, "/deadline_margin", "0.1 to 3600"),
        ({"holding": "soon", "deadline_margin": 5}, "/holding", "is a list"),
        ({"holding": [None] * 1001, "deadline_margin": 5}, "/holding", "no more than 1000"),
        ({"holding": [None, "soon"], "deadline_margin": 5}, "/holding/1", "moment"),
        ({"holding": [5], "deadline_margin": 5}, "/holding/0"),
        ({"id": "a", "holding": [], "deadline_margin": 5}, "/holding", "without waiting"),
    ],
    "POST workers/w1/watch": [({}, "/queue")],
    **{
        f"POST queues/feed/{verb}": [
            *(({"jobs": jobs}, "/jobs") for jobs in ([], "a", None, {})),
            *(({"jobs": [{"id": "held", "lease": LEASE}, entry]}, f"/jobs/1{pointer}") for entry, pointer in LEASES),
            *(({"jobs": [{"id": "a", "lease": LOST, name: value}]}, f"/jobs/0/{name}") for name, value in members),
        ]
        for verb, members in ENDS.items()
    },
}


@pytest.fixture
def stock(delayq: Broker, settings: Any) -> Broker:
    """One job in each place of the queue errands, and a held one in the queue feed."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"feed": {"kind": "pull"}}}
    put(delayq, carry, id="a", delay=60)
    for ident, end in (("failed", fail), ("dead", bury)):
        put(delayq, carry, id=ident)
        end(delayq, ident)
    delayq.announce("w1", {"queues": ["errands"], "threads": 1, "running": 0})
    return connections.broker()


@pytest.fixture
def lease(stock: Broker, api: Caller) -> str:
    """That of the job held."""
    assert api.post("v1/queues/feed/jobs", {"id": "held", "body": "x"})[0] == 201
    (job,) = api.post("v1/queues/feed/reserve", {"ttr": 600})[1]["jobs"]
    return str(job["lease"])


def mistakes(answer: tuple[int, Any], text: str = "") -> Any:
    """Return the pointers of a refusal with this text; anything else as it is."""
    status, problem = answer
    if (status, problem.get("code"), text in problem.get("detail", "")) != (400, "invalid", True):
        return answer
    return [error["pointer"] for error in problem.get("errors", ())]


def expected(rows: list[Any]) -> list[Any]:
    return [(asked, [] if pointer is None else [pointer]) for asked, pointer, *_ in rows]


@pytest.mark.parametrize("address", QUERIES)
def test_a_query_that_makes_no_sense_is_refused(address: str, api: Caller, stock: Broker) -> None:
    found = [(query, mistakes(api.get(f"v1/{address}?{query}"), *text)) for query, _, *text in QUERIES[address]]
    assert found == expected(QUERIES[address])


@pytest.mark.parametrize("address", BODIES)
def test_a_body_that_makes_no_sense_is_refused(address: str, api: Caller, stock: Broker, lease: str) -> None:
    (method, path), before, found = address.split(), contents(stock), []
    for body, _, *text in BODIES[address]:
        sent = body if isinstance(body, str) else json.dumps(body).replace(LEASE, lease)
        found.append((body, mistakes(api(method, f"v1/{path}", sent), *text)))
    assert found == expected(BODIES[address])
    assert contents(stock) == before
