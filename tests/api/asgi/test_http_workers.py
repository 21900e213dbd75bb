"""The workers of the documentation do what it says, and fit on a page."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.job import NewJob
from tests.support.processes import wait_until

from .stage import PATIENCE, Server

DOCS = Path(__file__).resolve().parents[3] / "docs"
EVERY_BYTE = bytes(range(256))
#: one is no text, and one is longer than an argument of a command may be
BODIES = {"text": "grün \"\\n'$HOME".encode(), "bytes": EVERY_BYTE, "none": b"", "long": b"x" * 300_000}

_COMMAND = """
import hashlib, pathlib, sys
body = sys.stdin.buffer.read()
if body == b"bad":
    sys.exit("no such thing")
(pathlib.Path(sys.argv[1]) / hashlib.sha1(body).hexdigest()).write_bytes(body)
"""
_HANDLER = """
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
export default async (body, job) => {
  if (String(body) === "bad") throw new TypeError("no such thing");
  writeFileSync(`DONE/${createHash("sha1").update(body).digest("hex")}`, body);
};
"""
Start = Callable[[Server, Path], list[str]]


def shell(server: Server, folder: Path) -> list[str]:
    if not (shutil.which("curl") and shutil.which("jq")):
        pytest.skip("curl or jq is missing")
    (folder / "command.py").write_text(_COMMAND)
    return [
        "sh",
        str(DOCS / "http_worker.sh"),
        "feed",
        shutil.which("python3") or "python3",
        str(folder / "command.py"),
        str(folder / "done"),
    ]


def javascript(server: Server, folder: Path) -> list[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing")
    (folder / "handler.mjs").write_text(_HANDLER.replace("DONE", str(folder / "done")))
    return [node, str(DOCS / "http_worker.mjs"), "feed", "./handler.mjs"]


def go(server: Server, folder: Path) -> list[str]:
    compiler = shutil.which("go")
    if compiler is None:
        pytest.skip("go is missing")
    (folder / "command.py").write_text(_COMMAND)
    program = folder / "http_worker"
    cache = {**os.environ, "GOCACHE": os.environ.get("GOCACHE", str(folder / "cache")), "GOFLAGS": ""}
    command = [compiler, "build", "-o", str(program), str(DOCS / "http_worker.go")]
    subprocess.run(command, env=cache, check=True, timeout=280)
    python = shutil.which("python3") or "python3"
    return [str(program), "feed", python, str(folder / "command.py"), str(folder / "done")]


@pytest.mark.parametrize("worker", [shell, javascript, go])
def test_a_worker_in_another_language_works_off_a_queue(
    worker: Start, asgi: Server, spawn: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "done").mkdir()
    env = {"DELAYQ_URL": f"http://127.0.0.1:{asgi.port}/delayq", "DELAYQ_TOKEN": asgi.token}
    queue = asgi.broker.queue("feed")
    started = spawn(*worker(asgi, tmp_path), env=env, cwd=tmp_path)
    asgi.wait_until(sleeping=1)  # it waits before there is anything
    queue.schedule_many([NewJob(name, "raw", body) for name, body in BODIES.items()])
    queue.schedule(NewJob("bad", "raw", b"bad"))
    wait_until(lambda: asgi.places("feed") == {"delayed": 1, "failed": 1}, PATIENCE, "all jobs to have ended")
    assert sorted(file.read_bytes() for file in (tmp_path / "done").iterdir()) == sorted(BODIES.values())
    (failed,) = asgi.broker.inspector.page("feed", "failed").jobs
    assert (failed.id, failed.job.failures) == ("bad", 1)
    assert "no such thing" in failed.error["message"]
    started.send_signal(signal.SIGTERM)
    assert queue.cancel("bad") == "cancelled"
    queue.schedule(NewJob("last", "raw", b"last"))
    assert started.wait(PATIENCE) == 0, "it ends when the job in hand has"
    while found := asgi.post("reserve", {"max": 250})["jobs"]:
        asgi.post("ack", {"jobs": [{"id": job["id"], "lease": job["lease"]} for job in found]})
    assert asgi.places("feed") == {}


@pytest.mark.parametrize(("name", "most"), [("http_worker.sh", 40), ("http_worker.mjs", 40), ("http_worker.go", 130)])
def test_the_workers_are_short_and_shown(name: str, most: int) -> None:
    text = (DOCS / name).read_text()
    assert len(text.splitlines()) <= most
    assert text in (DOCS / "http_consumers.md").read_text()


def test_the_collector_of_the_document_stops_before_a_lease_ends(asgi: Server, tmp_path: Path) -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("node is missing")
    worker, document = (DOCS / "http_worker.mjs").read_text(), (DOCS / "http_consumers.md").read_text()
    post = re.search(r"^const sleep.*?^}$", worker, re.M | re.S)
    collect = re.search(r"^async function collect.*?^}$", document, re.M | re.S)
    assert post and collect
    call = "console.log(JSON.stringify((await collect(100)).map((job) => job.id)));"
    short = collect[0].replace("wait: 20", "wait: 20, ttr: 12")
    text = f'const queue = "feed", stopping = false;\n{post[0]}\n{short}\n{call}'
    (tmp_path / "collect.mjs").write_text(text)
    jobs = [NewJob(f"j{n}", "raw", b"", delay_ms=n * 300) for n in range(3)]
    asgi.broker.queue("feed").schedule_many(jobs)
    env = {"DELAYQ_URL": f"http://127.0.0.1:{asgi.port}/delayq", "DELAYQ_TOKEN": asgi.token}
    done = subprocess.run([node, tmp_path / "collect.mjs"], env=env, capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == ["j0", "j1", "j2"]
    assert asgi.places("feed") == {"reserved": 3}
