"""The list of metrics, and what is made from it by hand: documentation, dashboard, alert rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

import django_delayq
from django_delayq.core.counts import Counts
from django_delayq.metrics import definitions
from django_delayq.metrics.definitions import METRICS
from django_delayq.status import QueueStatus, Snapshot

from .deeds import samples_of

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "grafana" / "django_delayq.json"
ALERTS = ROOT / "docs" / "prometheus" / "alerts.yml"
BEGIN, END = "<!-- the list: made from django_delayq/metrics/definitions.py -->\n", "<!-- the end of the list -->"

COMMANDS = {path.stem for path in (ROOT / "django_delayq" / "management" / "commands").glob("delayq_*.py")}
SAMPLES = {sample: metric for metric in METRICS for sample in samples_of(metric)}
#: the values of labels that are not made by users
VALUES = {
    "state": {*definitions._STATES, "running", "stopping", "lost", "waiting", "sent", "buried", "refused"},
    "priority": set("01234567"),
    "direction": {"in", "out", "enqueue", "dequeue"},
    "result": set(definitions.RESULTS),
    "outcome": set(definitions.OUTCOMES),
    "verb": set(definitions.VERBS),
}
NAME = re.compile(r"\b(delay(?:q|ed_queue)_[a-z_]+)\s*(\{[^}]*\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def fields(of: Any, wanted: set[str]) -> Iterator[str]:
    """Every text under one of these names, however deep."""
    if isinstance(of, dict):
        for name, value in of.items():
            if name in wanted and isinstance(value, str):
                yield value
            else:
                yield from fields(value, wanted)
    elif isinstance(of, list):
        for value in of:
            yield from fields(value, wanted)


def wrong_in(expression: str) -> list[str]:
    """Return names and labels in an expression that do not exist."""
    found = []
    labels = {"job", "instance", "le"}
    for name, matchers in NAME.findall(expression):
        metric = SAMPLES.get(name)
        if metric is None:
            found.append(f"no metric {name}")
            continue
        labels |= set(metric.labels)
        for label, _, text in MATCHER.findall(matchers):
            if label not in {*metric.labels, "job"}:
                found.append(f"{name} has no label {label}")
            elif not text.startswith("$"):
                found += [f"{name} has no {label} {one}" for one in text.split("|") if one not in VALUES[label]]
    for group in GROUPING.findall(expression):
        found += [f"nothing has a label {one}" for one in re.split(r",\s*", group) if one not in labels]
    if sum(map(expression.count, "([{")) != sum(map(expression.count, ")]}")):
        found.append("brackets do not match")
    return found


def test_what_is_wrong_in_an_expression_is_found() -> None:
    assert wrong_in('sum by (shop) (delayq_jobs{state="reddy", queue=~"$queue"})') == [
        "delayq_jobs has no state reddy",
        "nothing has a label shop",
    ]
    assert wrong_in("rate(delayq_run_seconds[5m])") == ["no metric delayq_run_seconds"]
    assert wrong_in('max(delayq_lag_seconds{task="a"}') == [
        "delayq_lag_seconds has no label task",
        "brackets do not match",
    ]


def test_every_expression_of_the_dashboard_asks_for_what_there_is() -> None:
    expressions = [text for text in fields(dashboard(), {"expr", "query", "definition"}) if "(" in text]
    assert len(expressions) > 50
    assert [(one, wrong) for one in expressions if (wrong := wrong_in(one))] == []


def test_the_dashboard_shows_every_metric_but_those_that_only_describe() -> None:
    shown = {SAMPLES[name] for one in fields(dashboard(), {"expr"}) for name, _ in NAME.findall(one)}
    described = ("info", "redis_info", "queue_shards", "fsck_timestamp_seconds", "reserved_total")
    hidden = {getattr(definitions, name) for name in described}
    assert set(METRICS) - shown - hidden == set()


def test_the_dashboard_is_one_that_grafana_10_takes() -> None:
    board = dashboard()
    panels = board["panels"]
    assert board["schemaVersion"] >= 38
    rows = ["Overview", "Queues", "Lateness and runs", "Workers", "Redis", "Outbox of durable jobs"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == rows
    assert len({panel["id"] for panel in panels}) == len(panels)
    kinds = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
    assert kinds == {"datasource": "datasource", "job": "query", "queue": "query"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        x, y, width, height = (panel["gridPos"][name] for name in "xywh")
        cells = set(product(range(x, x + width), range(y, y + height)))
        assert x + width <= 24 and not cells & taken, f"{panel['title']} lies on another one"
        taken |= cells
        if panel["type"] != "row":
            sources = {json.dumps(panel["datasource"]), *(json.dumps(one["datasource"]) for one in panel["targets"])}
            assert {json.loads(one)["uid"] for one in sources} == {"${datasource}"}
            assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert wrong_in(rule["expr"]) == []
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["alert"].startswith("Delayq")
    texts = " ".join(rule["annotations"].values())
    labels = {label for name, _ in NAME.findall(rule["expr"]) for label in SAMPLES[name].labels}
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= {*labels, "job"}
    assert {name for name, _ in NAME.findall(texts)} <= {metric.name for metric in METRICS} | COMMANDS


def table() -> str:
    """Return the metrics as a Markdown table for the documentation."""
    lines = ["| name | labels | OpenTelemetry | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        otel = "" if metric.kind == "histogram" else f"`{metric.otel}`"
        lines.append(f"| `{metric.name}` ({metric.kind}) | {labels} | {otel} | {metric.help} |")
    return "\n".join(lines)


def test_the_documentation_has_the_list_as_it_is_and_speaks_of_no_other_metric() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    listed = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert listed == table(), "write the answer of table() into docs/metrics.md"
    assert {name for name, _ in NAME.findall(text)} - COMMANDS <= {metric.name for metric in METRICS}


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert re.fullmatch(r"delay(q|ed_queue)_[a-z_]+", metric.name)
        assert metric.help.endswith(".")
    for of in ({metric.name for metric in METRICS}, {metric.otel for metric in METRICS}):
        assert len(of) == len(METRICS)


def exported(counter: str) -> list[definitions.Metric]:
    """Return the counters that have the value of a counter of the scripts."""
    queue = QueueStatus("notes", "python", Counts("notes", counters={counter: 1}), 1, 0)
    found = definitions.read(Snapshot(0.0, (queue,)))
    return [metric for metric, values in found.items() if metric.kind == "counter" and 1 in values.values()]


def test_every_counter_of_the_scripts_is_exported() -> None:
    """A counter that the scripts keep and no list here has would be missing without notice."""
    scripts = Path(django_delayq.__file__).parent / "core" / "lua"
    source = "\n".join(path.read_text() for path in scripts.rglob("*.lua"))
    counted = set(re.findall(r"\bcount\('(\w+)'", source))
    counted |= set(re.findall(r"'HINCRBY', KEYS\[3\], '(\w+)'", source))
    for table in re.findall(r"COUNTERS = \{(.+?)\}", source, re.DOTALL):
        counted |= set(re.findall(r"= '(\w+)'", table))
    counted |= set(re.findall(r"counts\.(\w+) =", source)) | set(re.findall(r"increment_count\('(\w+)'\)", source))
    counted |= set(re.findall(r"return '([a-z]{5,})'", (scripts / "lib" / "settle.lua").read_text()))
    counted -= {"idle", "fired"}  # schedule.lua: nothing was changed
    outcomes = {"failed", "timeout", "crashed"}  # a fail counts under the outcome that it is given
    assert len(counted) > 15
    lost = [name for name in sorted(counted | outcomes) if not exported(name)]
    assert lost == []
