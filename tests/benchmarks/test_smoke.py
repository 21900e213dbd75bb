"""The benchmarks run: two of them for real and small, the others as far as importing goes. No figure is judged here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from benchmarks import __main__ as command
from benchmarks.report import Bar, Report, percentile


@pytest.mark.parametrize("name", command.NAMES)
def test_every_benchmark_can_be_called(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


@pytest.mark.parametrize("name", ["memory", "bulk"])
def test_a_quick_run_prints_a_table_and_one_json_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, "--quick", "--jobs", "2000"]) == 0
    *table, line = capsys.readouterr().out.strip().splitlines()
    assert table[0].startswith(f"== {name}: 2,000 ")
    found = json.loads(line)
    assert found["bench"] == name and found["quick"] and "error" not in found
    assert all(bar["value"] > 0 for bar in found["bars"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runs", "snapshot", "spark_bulk", "reconcile"])
def test_a_quick_run_of_the_larger_ones_gives_its_figures(name: str) -> None:
    quick = [sys.executable, "-m", "benchmarks", name, "--quick", "--jobs", "2000", "--rounds", "1"]
    done = subprocess.run(quick, stdout=subprocess.PIPE, check=True, timeout=600)
    assert json.loads(done.stdout.splitlines()[-1])["figures"]


def test_a_failed_benchmark_is_reported_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> Report:
        raise RuntimeError("no redis-server")

    monkeypatch.setattr("benchmarks.scripts.run", broken)
    assert command.main(["scripts"]) == 1
    captured = capsys.readouterr()
    assert "no redis-server" in captured.err
    assert json.loads(captured.out)["error"] == "RuntimeError: no redis-server"


def test_a_missed_bar_says_by_how_much() -> None:
    assert str(Bar("jobs/s", 15_000.0, 20_000.0)) == "jobs/s: 15,000 (bar ≥ 20,000) MISSED by 25.0%"
    assert Bar("p99 ms", 5.0, 5.0, at_most=True).met


def test_percentiles_take_the_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
