"""One trace over two processes: a request in one, the worker's runs in another."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django_delayq.core.broker import Broker
from tests.support.worker_stage import eventually

ROOT = Path(__file__).resolve().parents[2]
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REQUEST = f"""
import django
django.setup()
from tests.metrics.site import telemetry
telemetry.start()
from django.test import Client
assert Client().get("/pay", headers={{"traceparent": "{THEIRS}"}}).status_code == 200
"""


def test_a_trace_header_of_a_request_reaches_the_runs_of_a_worker(
    broker: Broker, manage_env: dict[str, str], spawn: Callable[..., Any], tmp_path: Path
) -> None:
    spans = tmp_path / "spans"
    env = {**manage_env, "DJANGO_SETTINGS_MODULE": "tests.metrics.site.settings", "SPANS": str(spans)}
    worker = spawn(sys.executable, "-m", "django", "delayq_worker", "--queues", "site", env=env, cwd=ROOT)
    request = spawn(sys.executable, "-W", "error", "-c", REQUEST, env=env, cwd=ROOT)
    assert request.wait(30) == 0
    eventually(lambda: broker.inspector.counts("site").counters.get("acked") == 2, "both jobs are done")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    by_parent = {span["parent_id"]: span for span in found}
    chain, parent = [], "0x" + THEIRS.split("-")[2]
    while parent in by_parent:
        chain.append(by_parent[parent]["name"])
        parent = by_parent[parent]["context"]["span_id"]
    assert chain == ["GET /pay", "schedule site.remind", "run site.remind", "schedule site.remind", "run site.remind"]
    assert {span["context"]["trace_id"] for span in found} == {"0x" + THEIRS.split("-")[1]}
    assert len({span["resource"]["attributes"]["process.pid"] for span in found}) == 2
