"""The demo, run as a user runs it: an unpaid order is cancelled by the worker, a paid one is not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.processes import alive, children, wait_until
from tests.support.redis_box import free_port

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "example_project" / "demo.py"
LIMIT = 120  # s; what a slow machine may need


@pytest.fixture
def demo(spawn: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``demo("--seconds", "8")``: the demo with a folder and a port of its own; ``.port`` and ``.folder`` tell them."""

    def start(*options: str, port: int | None = None, **env: str) -> Any:
        port = port or free_port()
        command = [sys.executable, DEMO, "--port", port, "--folder", tmp_path / "demo", *options]
        pythonpath = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        process = spawn(
            *command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={"PYTHONPATH": pythonpath, **env},
        )
        process.port, process.folder = port, tmp_path / "demo"
        return process

    yield start


def orders(folder: Path) -> dict[int, str]:
    """Order → status, as the database says."""
    with contextlib.closing(sqlite3.connect(folder / "shop.sqlite3")) as database:
        return dict(database.execute("SELECT id, status FROM shop_order").fetchall())


def paid_orders(folder: Path) -> set[int]:
    """Orders whose payment went through."""
    with contextlib.closing(sqlite3.connect(folder / "shop.sqlite3")) as database:
        return {row[0] for row in database.execute("SELECT order_id FROM shop_payment WHERE status = 'paid'")}


def test_the_demo_cancels_unpaid_orders_and_leaves_paid_ones_alone(demo: Callable[..., Any]) -> None:
    process = demo("--seconds", "9", "--cancel-after", "2", "--rate", "2", SHOP_GATEWAY_FAILURE_RATE="0.3")

    said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 0, said
    counts = json.loads((process.folder / "summary.json").read_text())
    assert counts["cancelled_by_worker"] == counts["cancelled"] > 0, said
    assert counts["paid"] > 0, said
    assert counts["earliest_s"] > -0.05, "cancelled before its time"
    found = orders(process.folder)
    assert found[2] == "cancelled"  # the traffic never pays the second order
    assert {found[pk] for pk in paid_orders(process.folder)} == {"paid"}
    assert "CANCELLED, not paid in time" in said
    assert f"http://127.0.0.1:{process.port}/admin/" in said
    assert "login admin, password admin" in said


@pytest.mark.slow
def test_a_second_demo_in_a_folder_is_refused_until_the_first_has_ended_and_then_continues(
    demo: Callable[..., Any],
) -> None:
    first = demo("--cancel-after", "3", "--rate", "5")
    assert read_until(first, "Ctrl-C stops everything")
    with urlopen(f"http://127.0.0.1:{first.port}/what-happens/", timeout=10) as page:
        assert page.status == 200
    assert read_until(first, "placed by")
    pids = marked_children(first.pid)
    assert len(pids) >= 4, "web server, worker, customers, Redis"

    said, _ = (refused := demo()).communicate(timeout=LIMIT)
    assert refused.returncode == 1
    assert "Another demo is running" in said

    first.send_signal(signal.SIGINT)  # as Ctrl-C
    said, _ = first.communicate(timeout=LIMIT)

    assert first.returncode == 0, said
    assert not [pid for pid in pids if alive(pid)]
    left = {pk for pk, status in orders(first.folder).items() if status == "placed"}
    assert left, "nothing was waiting, so this test shows nothing"

    second = demo("--cancel-after", "3", "--rate", "0")
    assert read_until(second, "Ctrl-C stops everything")
    wait_until(lambda: {orders(second.folder)[pk] for pk in left} == {"cancelled"}, 30, "the end of the old orders")
    second.send_signal(signal.SIGTERM)
    said, _ = second.communicate(timeout=LIMIT)
    assert second.returncode == 0, said


@pytest.mark.slow
def test_a_killed_demo_leaves_nothing_running(demo: Callable[..., Any]) -> None:
    process = demo("--rate", "5")
    assert read_until(process, "placed by")
    pids = marked_children(process.pid)

    process.send_signal(signal.SIGKILL)

    wait_until(lambda: not [pid for pid in pids if alive(pid)], 30, "the end of its web server, worker, Redis")


def test_a_taken_port_is_named_with_a_free_one(demo: Callable[..., Any]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = demo(port=port)
        said, _ = process.communicate(timeout=LIMIT)

    assert process.returncode == 1
    assert f"Port {port} on 127.0.0.1 is taken" in said
    assert "make demo PORT=" in said
    assert "Traceback" not in said
    assert not process.folder.exists()


def test_missing_packages_are_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", DEMO, "--folder", tmp_path / "demo"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )

    assert done.returncode == 1
    assert "lacks: django, redis" in done.stderr
    assert "make demo" in done.stderr


def read_until(process: Any, text: str) -> bool:
    """Read the demo's lines until one contains ``text``."""
    deadline = time.monotonic() + LIMIT
    for line in process.stdout:
        if text in line:
            return True
        assert time.monotonic() < deadline, f"{text!r} was not said in {LIMIT} s"
    return False


def marked_children(pid: int) -> list[int]:
    """All processes below ``pid``."""
    found = [pid]
    for one in found:
        found += children(one)
    return found[1:]
