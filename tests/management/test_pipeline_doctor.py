"""manage.py delayq_pipeline doctor: it finds what the pipeline needs and does not have."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from django_delayq.connections import DjangoBroker
from tests.support.event_entries import add, pack


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_pipeline", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    return out.getvalue()


def doctor(*arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Return the exit code, and levels and texts by topic."""
    out, code = StringIO(), 0
    try:
        call_command("delayq_pipeline", "doctor", "--json", *arguments, stdout=out, stderr=StringIO(), no_color=True)
    except SystemExit as error:
        code = int(str(error.code))
    result = json.loads(out.getvalue())
    assert out.getvalue().count("\n") == 1
    found: dict[str, list[tuple[str, str]]] = {}
    for one in result["findings"]:
        found.setdefault(one["what"], []).append((one["level"], one["text"]))
    assert result["ok"] is (code == 0)
    assert set(result["missing"]) == {
        what for what, texts in found.items() if any(level == "ERROR" for level, _ in texts)
    }
    return code, found


@pytest.fixture
def root(delayq: DjangoBroker, settings: Any, tmp_path: Path) -> Path:
    """Set a folder for the history, which does not exist yet."""
    folder = tmp_path / "deep" / "history"
    settings.DELAYQ = {**settings.DELAYQ, "PIPELINE": {"root": str(folder)}}
    return folder


@pytest.mark.django_db
def test_a_doctor_finds_a_whole_machine_whole(root: Path, delayq: DjangoBroker) -> None:
    pytest.importorskip("pyspark")
    code, found = doctor()
    assert code == 0
    assert {what for what, texts in found.items() if texts[0][0] == "OK"} >= {
        "python",
        "pyspark",
        "pyarrow",
        "pandas",
        "deltalake",
        "java",
        "root",
    }
    assert found["python"][0][1].endswith(f"{sys.executable}; Spark's workers use the same one")
    assert "GiB free" in found["root"][0][1]
    assert found["events"][0][0] == "WARN", "no events were read yet"
    assert not root.parent.exists(), "the check leaves no files behind"
    lines = run("doctor").splitlines()
    assert lines[-1] == "All requirements are met."
    assert lines[0].startswith("OK    python: 3.")


@pytest.mark.django_db
@pytest.mark.one_server("another server")
def test_a_redis_that_is_away_is_found(root: Path, settings: Any, redis_factory: Callable[..., Any]) -> None:
    from django_delayq import connections

    box, whole = redis_factory(), settings.DELAYQ
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": box.url}
    box.close()
    connections.close_broker()
    code, found = doctor()
    assert code == 3
    assert found["events"][0][0] == "ERROR"
    assert "DELAYQ['REDIS']" in found["events"][0][1]
    settings.DELAYQ = whole
    connections.close_broker()


@pytest.mark.django_db
def test_a_folder_that_cannot_be_written_is_found(root: Path) -> None:
    root.parent.parent.mkdir(exist_ok=True)
    root.parent.write_text("a file in the way")
    code, found = doctor()
    assert code == 3
    assert found["root"] == [
        ("ERROR", f"{root} cannot be written: set DELAYQ['PIPELINE']['root'] to a writable folder")
    ]
    assert root.parent.read_text() == "a file in the way"


@pytest.mark.django_db
def test_the_package_of_the_historys_tables_is_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    code, found = doctor()
    assert code == 3
    assert "needs deltalake: pip install 'django-delayq[spark]'" in found["pyspark"][0][1]


def happen(broker: DjangoBroker, count: int, *, apart_ms: int = 1000, after_ms: int = 0) -> None:
    """Add events to one shard, at equal distances."""
    place = broker.queue("default", shards=1).numbers[0]
    moments = [after_ms + number * apart_ms for number in range(1, count + 1)]
    add(broker, "default", place, [(ms, [pack(outcome="succeeded", id=ms)]) for ms in moments])


def read_up_to(position: str, root: Path) -> None:
    """Make the history one that has read the shard up to a position."""
    from django_delayq.pipeline.delta import EventTable

    table = EventTable(str(root))
    latest = table.open()
    table.commit(latest, [], latest.version(), {("default", 0): position})


@pytest.mark.django_db
def test_a_stream_nearly_full_of_unread_events_is_reported(root: Path, delayq: DjangoBroker, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "EVENTS": {"cap": 100}}
    happen(delayq, 60)
    assert doctor()[1]["events"][0][0] == "WARN", "it has not read any"
    read_up_to("0-0", root)
    assert doctor()[1]["events"] == [("OK", "60 events are unread; a shard keeps its latest 100")]
    read_up_to("50-50000", root)
    assert doctor()[1]["events"] == [("OK", "10 events are unread; a shard keeps its latest 100")]
    read_up_to("0-0", root)
    happen(delayq, 15, apart_ms=1, after_ms=10**7)
    ((level, text),) = doctor()[1]["events"]
    assert level == "WARN"
    assert "75 events are unread; a shard keeps its latest 100: run delayq_pipeline run now" in text
    settings.DELAYQ = {**settings.DELAYQ, "EVENTS": {"cap": 0}}
    assert doctor()[1]["events"][0][0] == "ERROR"
