"""``delayq_check`` names pauses that do not end by themselves; producers that are paused are a metric."""

from __future__ import annotations

import pytest

from django_delayq import status
from django_delayq.connections import DjangoBroker
from django_delayq.core.registry import pause_recurring
from django_delayq.management import diagnosis
from django_delayq.metrics import definitions
from django_delayq.metrics.definitions import read


@pytest.fixture(autouse=True)
def _mail(delayq: DjangoBroker) -> None:
    delayq.queue("mail")


def found(broker: DjangoBroker, level: str = "WARN") -> list[str]:
    """Return the texts of the findings about pauses."""
    return [one.text for one in diagnosis.snapshot(broker) if (one.level, one.check) == (level, "pauses")]


@pytest.mark.parametrize(
    ("direction", "effect"),
    [
        ("in", "takes no new jobs"),
        ("out", "starts no jobs"),
        ("both", "takes no new jobs and starts no jobs"),
    ],
)
def test_a_paused_queue_is_a_warning(delayq: DjangoBroker, direction: str, effect: str) -> None:
    assert found(delayq, "OK") == ["nothing is paused for good"]
    delayq.pause("mail", direction)
    assert found(delayq) == [f"Queue mail is paused and {effect}. Resume: manage.py delayq_queue resume mail"]


def test_a_pause_that_ends_by_itself_is_none(delayq: DjangoBroker) -> None:
    delayq.pause("mail", "in", seconds=600)
    assert found(delayq) == []
    delayq.pause("mail", "out")
    assert found(delayq) == ["Queue mail is paused and starts no jobs. Resume: manage.py delayq_queue resume mail"]


def test_a_paused_recurring_task_is_a_warning(delayq: DjangoBroker) -> None:
    pause_recurring(delayq, "shop.nightly")
    (text,) = found(delayq)
    assert text.startswith("Recurring task shop.nightly is paused for ")
    assert text.endswith(". Resume: manage.py delayq_recurring resume shop.nightly")


def test_paused_producers_are_a_warning_and_a_metric(delayq: DjangoBroker) -> None:
    for paused in (0.0, 1.0, 0.0):
        (delayq.pause_producers if paused else delayq.resume_producers)()
        assert read(status.take(delayq, outbox=False))[definitions.producers_paused] == {(): paused}
        assert [text.startswith("Producers are paused for ") for text in found(delayq)] == [True] * int(paused)
        assert "Resume: manage.py delayq_queue resume-producers" in "".join(found(delayq)) or not paused
