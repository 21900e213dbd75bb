"""The root of a history: marks, the lock, and URLs that cannot be opened."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from django_delayq.pipeline.errors import PipelineError
from django_delayq.pipeline.history import History, HistoryOptions
from django_delayq.pipeline.store import PendingDays, Store, pending_days

DAY = date(2026, 10, 20)
NEXT = DAY + timedelta(days=1)
LOCKED = """
import sys
from django_delayq.pipeline.store import Store
with Store(sys.argv[1]).alone(0, lambda: False):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a name that must not be taken apart."""
    return tmp_path / "a lake"


@pytest.mark.parametrize("kind", ["path", "url"])
def test_a_path_and_its_url_are_the_same_root(root: Path, kind: str) -> None:
    store = Store(str(root) if kind == "path" else f"file://{root}")
    assert (store.names("a"), store.below("a"), store.read("a/b"), root.exists()) == ([], [], None, False)
    assert (store.url("a/b"), store.uri("a/b")) == (f"file://{root}/a/b", f"{root}/a/b")
    store.delete("a/b")
    store.mark("a", "b")
    store.mark("a", "b")
    (root / "a" / "c").write_text("two\nlines é")
    assert (store.names("a"), store.read("a/b"), store.read("a/c")) == (["b", "c"], "", "two\nlines é")
    store.delete("a/b")
    assert store.names("a") == ["c"]


def test_a_store_that_deltalake_does_not_open_is_refused_with_those_that_it_does() -> None:
    with pytest.raises(PipelineError, match=r"does not open dqstore://.* s3a://.*, gs://, .*mounted as a folder"):
        Store("dqstore://bucket/history")


def test_a_run_needs_a_session_of_spark(root: Path) -> None:
    with pytest.raises(PipelineError, match="session of Spark"):
        History(None, HistoryOptions(str(root))).run()


def test_a_lock_holds_as_long_as_its_process_lives(root: Path) -> None:
    store = Store(str(root))
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        for wait_s, give_up in ((0, False), (60, True)):
            with (
                pytest.raises(PipelineError, match="Another process uses the history"),
                store.alone(wait_s, lambda give_up=give_up: give_up),
            ):
                pytest.fail("two at once")
        other.kill()
    with store.alone(10, lambda: False):
        pass


def test_marks_of_others_are_passed_over_and_kept(root: Path) -> None:
    store = Store(str(root))
    mine, others = PendingDays(store), PendingDays(store)
    mine.note([NEXT, DAY, DAY])
    store.mark("_pending_days", "README")
    assert mine.see() == [DAY, NEXT] == pending_days(store)
    others.note([DAY])
    mine.settle([DAY])
    assert pending_days(store) == [DAY, NEXT], "the other writer has not done its part of the day"
    others.settle([DAY, NEXT])
    assert pending_days(store) == [NEXT]
    PendingDays(store).settle([NEXT])
    assert pending_days(store) == [NEXT], "nobody has seen it"
    again = PendingDays(store)
    assert again.see() == [NEXT]
    again.settle([NEXT])
    assert store.names("_pending_days") == ["README"]


def test_a_closed_day_is_never_opened_again(root: Path) -> None:
    store = Store(str(root))
    assert store.closed_before() < DAY
    for day in (DAY, NEXT, DAY):
        store.close_before(day)
    assert store.closed_before() == NEXT
    assert store.names("_closed_before") == [str(NEXT)]
