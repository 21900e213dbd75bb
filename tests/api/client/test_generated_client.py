"""A client that a public generator makes from the OpenAPI document works as it stands."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from django_delayq.api.openapi import document
from tests.support.api_caller import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the package of the generated client."""
    pytest.importorskip("openapi_python_client")
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document(ROOT), default=str))
    config = tmp_path / "config.json"
    config.write_text('{"post_hooks": []}')  # by default it looks for ruff on the PATH to format what it made
    program = "from openapi_python_client.cli import app; app()"
    options = ["--path", str(file), "--config", str(config), "--meta", "none", "--fail-on-warning"]
    command = [sys.executable, "-c", program, "generate", *options, "--output-path", str(tmp_path / "made_client")]
    subprocess.run(command, check=True, timeout=120)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "made_client"


def test_it_schedules_reserves_and_settles_a_job(generated: str, delayq: Any, live_server: Any, token: str) -> None:
    delayq.queue("images", kind="pull")
    models, base = import_module(f"{generated}.models"), live_server.url + ROOT.rstrip("/")
    client = import_module(generated).AuthenticatedClient(base, token, prefix="Token")

    def call(group: str, name: str, body: Any) -> Any:
        return import_module(f"{generated}.api.{group}.{name}").sync("images", client=client, body=body)

    made = call("jobs", "produce_jobs", models.BytesRequest(body="5.png", id="picture-5"))
    assert (made.id, made.outcome) == ("picture-5", "created")
    (job,) = call("consuming", "reserve", models.ReserveRequest(max_=1)).jobs
    assert (job.id, job.body) == ("picture-5", "5.png")
    entry = models.AckEntryRequest(id=job.id, lease=job.lease)
    assert [one.counted for one in call("consuming", "ack", models.AckRequest(jobs=[entry])).results] == [True]
    assert [one.counted for one in call("consuming", "ack", models.AckRequest(jobs=[entry])).results] == [False]
    client.get_httpx_client().close()
