"""Examples for the OpenAPI document, of the operations whose views have none: what is asked, and what is answered."""

from __future__ import annotations

from typing import Any, Final

_DUE: Final = "2026-11-21T11:23:43.123Z"
_COUNTS: Final = {"delayed": 1200, "ready": 3, "reserved": 2, "gated": 0, "failed": 4, "morgue": 1}
_LIMITS: Final = {"max_length": 100_000, "morgue_max": None, "morgue_ttl": 604_800.0, "priorities": "strict"}
_QUEUE: Final = {
    "name": "mail",
    "kind": "pull",
    "shards": 2,
    "epoch": 0,
    "draining": False,
    "paused": "",
    "configured": False,
    "limits": _LIMITS,
}
_PAUSED: Final = {**_QUEUE, "paused": "out"}
_COUNTED: Final = {**_QUEUE, "counts": _COUNTS, "lag_seconds": 0.25, "counters": {"created": 5210, "acked": 4004}}
_JOB: Final = {
    "queue": "orders",
    "id": "order-5",
    "key": "6f1c0d3a" * 4,
    "task": "shop.cancel_order",
    "state": "delayed",
    "due": _DUE,
    "priority": 4,
    "merged": False,
    "failures": 0,
    "reserves": 0,
    "crashes": 0,
    "releases": 0,
    "quarantined": False,
    "context": {},
    "size": 3,
    "cut": False,
    "args": [5],
    "kwargs": {},
    "gated_due": None,
    "worker": None,
    "lease_ends": None,
    "buried": None,
    "reason": "",
    "outcome": "",
    "error": None,
}
_GRAVE: Final = {
    **_JOB,
    "state": "morgue",
    "failures": 3,
    "reserves": 3,
    "buried": _DUE,
    "reason": "exhausted",
    "outcome": "exhausted",
    "error": {"class": "TimeoutError", "message": "no answer", "traceback": ""},
}
_WORKER: Final[dict[str, Any]] = {
    "name": "web1-4711",
    "host": "web1",
    "pid": 4711,
    "queues": ["orders"],
    "threads": 8,
    "running": 1,
    "dispatcher": True,
    "quarantine": False,
    "stopping": False,
    "started": _DUE,
    "rss_mib": 61,
    "seen": _DUE,
    "seconds_ago": 1.2,
    "lost": False,
    "jobs": [{"slot": 0, "queue": "orders", "id": "order-5", "task": "shop.cancel_order", "started": _DUE, "ids": 1}],
}
_BULK: Final = {"complete": True, "seen": 1203, "total": 1203}


def _told(word: str) -> dict[str, str]:
    return {"worker": "web1-4711", "told": word}


def _results(*outcomes: str) -> dict[str, Any]:
    return {
        "results": [{"id": f"order-{17 + place}", "outcome": outcome} for place, outcome in enumerate(outcomes)],
        "counts": {outcome: outcomes.count(outcome) for outcome in outcomes},
    }


#: operation → example of the body
_ASKED: Final[dict[str, Any]] = {
    "reschedule_job": {"delay": 60},
}
#: operation → status → example of the answer
_ANSWERED: Final[dict[str, dict[str, Any]]] = {
    "list_queues": {"200": {"queues": [_COUNTED]}},
    "create_queue": {"200": _QUEUE, "201": _QUEUE},
    "get_queue": {
        "200": {
            **_COUNTED,
            "shards_left_out": 0,
            "by_shard": [
                {"number": number, "epoch": 0, "counts": dict.fromkeys(_COUNTS, 0), "lag_seconds": 0.0}
                for number in (0, 1)
            ],
        }
    },
    "limit_queue": {"200": _QUEUE},
    "pause_queue": {"200": _PAUSED},
    "resume_queue": {"200": _QUEUE},
    "reshard_queue": {"200": {**_QUEUE, "shards": 8, "epoch": 1, "draining": True}},
    "list_jobs": {"200": {"jobs": [_JOB], "cursor": None}},
    "produce_jobs": {"202": {"id": "order-5", "queue": "orders", "outcome": "outbox", "due": _DUE}},
    "get_job": {"200": _JOB},
    "cancel_job": {"200": {"outcome": "cancelled"}, "202": {"outcome": "outbox"}},
    "reschedule_job": {"200": {"outcome": "moved", "due": _DUE}, "202": {"outcome": "outbox", "due": None}},
    "cancel_jobs": {"200": _results("cancelled", "stopping")},
    "reschedule_jobs": {"200": _results("moved", "not_waiting")},
    "run_jobs_now": {"200": _results("moved", "moved")},
    "kill_failed_jobs": {"200": {"counts": {"killed": 4}, **_BULK}},
    "delete_failed_jobs": {"200": {"counts": {"deleted": 4}, **_BULK}},
    "list_morgue": {"200": {"jobs": [_GRAVE], "cursor": None}},
    "get_graves": {"200": {"jobs": [_GRAVE], "cursor": None}},
    "kick_jobs": {"200": _results("kicked", "live")},
    "discard_jobs": {"200": {"counts": {"discarded": 1203}, **_BULK}},
    "list_workers": {"200": {"workers": [_WORKER]}},
    "get_worker": {"200": {**_WORKER, "jobs": [{**_WORKER["jobs"][0], "lease_ends": _DUE}]}},
    "stop_worker": {"202": _told("stop")},
    "drain_worker": {"202": _told("drain")},
    "dump_worker": {"202": _told("dump")},
    "get_status": {
        "200": {
            "now": _DUE,
            "totals": _COUNTS,
            "queues": [{"name": "mail", **_COUNTS}],
            "workers": [],
            "recurring": [],
            "redis": {"version": "7.4.1", "mode": "standalone"},
        }
    },
}


def add_examples(operation: dict[str, Any]) -> None:
    """Examples where the view has none. A body is in one media type here, and so is an answer."""
    name = operation["operationId"]
    if name in _ASKED:
        _add(operation.get("requestBody", {}), _ASKED[name])
    for status, value in _ANSWERED.get(name, {}).items():
        _add(operation["responses"].get(status, {}), value)


def _add(part: dict[str, Any], value: Any) -> None:
    for content in part.get("content", {}).values():
        content.setdefault("examples", {"example": {"value": value}})
