"""``delayq_jobs`` with conditions, on jobs of the morgue."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_delayq import schedule
from django_delayq.core.broker import Broker
from django_delayq.core.outcomes import bury
from tests.app.deeds import note, send


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("delayq_jobs", *arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def listed(*arguments: str) -> list[str]:
    return sorted(one["id"] for one in json.loads(run("list", "--place", "morgue", "--json", *arguments)))


def put_dead(broker: Broker, ident: str) -> None:
    task, *args = (send, "to south") if ident.startswith("south") else (note, "to north")
    schedule(task, *args, id=ident)
    queue = broker.queue("default")
    (job,) = queue.reserve(queue.shard_of(ident), 10, worker="w").jobs
    queue.settle([bury(job, 0, 5, reason="exhausted", outcome="exhausted", error_class="ValueError")])


@pytest.fixture
def middle(delayq: Broker) -> str:
    """A moment at which the first two of four jobs were in the morgue."""
    for ident in ("north-1", "north-2"):
        put_dead(delayq, ident)
    time.sleep(0.05)
    moment = datetime.fromtimestamp(delayq.now_ms() / 1000, UTC).isoformat()
    time.sleep(0.05)
    for ident in ("north-3", "south-1"):
        put_dead(delayq, ident)
    return moment


def test_the_morgue_is_listed_by_conditions(middle: str) -> None:
    assert listed("--prefix", "north", "--buried-before", middle) == ["north-1", "north-2"]
    assert listed("--buried-from", middle) == ["north-3", "south-1"]
    assert listed("--id-from", "north-2", "--id-to", "north-3") == ["north-2", "north-3"]
    assert listed("--text", "TO SOUTH") == ["south-1"]
    assert listed("--task", "deeds.note") == ["north-1", "north-2", "north-3"]
    assert listed("--failures", "2") == []
    assert run("list", "--prefix", "nobody").strip() == "no job found"


def test_jobs_that_meet_conditions_are_retried_or_discarded(delayq: Broker, middle: str) -> None:
    assert run("retry", "--buried-before", middle, "--per-second", "10").strip() == "2 retried"
    with pytest.raises(CommandError, match=r"Delete up to 2 morgue jobs of all queues, for good\?"):
        run("discard", "--prefix", "south")
    assert run("discard", "--prefix", "south", "--buried-before", "1h", "--yes").strip() == "nothing to do"
    assert run("discard", "--prefix", "south", "--buried-before", "0.001s", "--yes").strip() == "1 discarded"
    assert run("retry", "--id-from", "north-3", "--queue", "default", "--limit", "5").strip() == "1 retried"
    counts = delayq.inspector.counts("default")
    assert (counts.delayed + counts.ready, counts.morgue) == (3, 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["retry", "--all", "--prefix", "n"], "retry which jobs"),
        (["retry", "--id", "a", "--prefix", "n"], "leave the conditions out"),
        (["list", "--id", "a", "--task", "n"], "leave the conditions out"),
        (["discard", "--id-from", "b", "--id-to", "a"], "exchange id_from and id_to"),
        (["discard", "--text", ""], "The text is empty"),
        (["discard", "--prefix", "n", "--per-second", "5"], "--per-second is for retry"),
    ],
)
def test_conditions_that_do_not_fit_are_refused(delayq: Broker, middle: str, arguments: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        run(*arguments)
    assert delayq.inspector.counts("default").morgue == 4
