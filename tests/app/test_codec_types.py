"""``DELAYQ["CODEC_TYPES"]``: a project's own types travel in jobs."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from django.core.checks import run_checks

from django_delayq import InvalidJob, get_job, schedule, task
from django_delayq.core.broker import Broker
from django_delayq.core.codec import ValueType, decode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.core.task import registry
from django_delayq.runtime import wiring
from django_delayq.settings.conf import Conf, conf
from django_delayq.worker.worker import Worker

HERE = "tests.app.test_codec_types"


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str


class Weight:
    def __init__(self, grams: int) -> None:
        self.grams = grams


stored_money = ("money", Money, lambda money: [money.amount, money.currency], lambda stored: Money(*stored))
stored_weight = ValueType("weight", Weight, lambda weight: weight.grams, Weight)
clashing = ("money", Weight, lambda weight: weight.grams, Weight)
incomplete = ("money", Money)
FIVE = Money(Decimal("5.00"), "EUR")
paid: list[Any] = []


@pytest.fixture
def known(delayq: Broker, settings: Any) -> None:
    """Both types are in the settings."""
    settings.DELAYQ = {**settings.DELAYQ, "CODEC_TYPES": [f"{HERE}.stored_money", f"{HERE}.stored_weight"]}


@pytest.fixture
def pay(request: pytest.FixtureRequest) -> Any:
    """A task, known until the test ends."""

    @task(name="codec_types.pay")
    def pay(price: Any, *, tip: Any = None) -> None:
        paid.append((price, tip))

    request.addfinalizer(lambda: registry.remove(pay))
    paid.clear()
    return pay


@pytest.mark.usefixtures("known")
def test_a_handler_gets_the_projects_own_types_as_they_were(pay: Any) -> None:
    from django_delayq import connections

    schedule(pay, FIVE, tip={"also": [FIVE]})
    config = wiring.make_config(conf(), queues=("default",), threads=1, burst=True, dispatcher=False)
    worker = Worker(connections.broker(), registry, config, wiring.make_hooks(conf()))
    worker.start()
    assert worker.done.wait(10)
    assert worker.stop()
    assert paid == [(FIVE, {"also": [FIVE]})]


@pytest.mark.usefixtures("known")
def test_a_job_shows_them_too(pay: Any) -> None:
    view = get_job(schedule(pay, FIVE, delay=60))
    assert view is not None
    assert decode_args(view.job.args) == ([FIVE], {})


def test_without_the_setting_the_type_is_refused_as_before(delayq: Broker, pay: Any) -> None:
    with pytest.raises(InvalidJob, match=r"argument 0: .*Money is a dataclass"):
        schedule(pay, FIVE)


def test_what_a_test_puts_into_the_setting_is_gone_after_it(settings: Any, delayq: Broker, pay: Any) -> None:
    before = settings.DELAYQ
    settings.DELAYQ = {**before, "CODEC_TYPES": [f"{HERE}.stored_money"]}
    assert schedule(pay, FIVE, delay=60).outcome == "created"
    settings.DELAYQ = before
    with pytest.raises(InvalidJob, match="is a dataclass"):
        schedule(pay, FIVE)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["no.such.thing"], "no.such.thing cannot be imported"),
        ([f"{HERE}.incomplete"], r"a ValueType or a tuple \(tag, type, dump, load\) was expected"),
        ([f"{HERE}.stored_money", f"{HERE}.clashing"], "'money' stands for Money already"),
    ],
)
def test_a_wrong_path_is_told_by_a_check_and_stops_a_worker(settings: Any, paths: list[str], message: str) -> None:
    settings.DELAYQ = {"REDIS": "redis://localhost:6379/0", "CODEC_TYPES": paths}
    (finding,) = run_checks(tags=["delayq"])
    assert finding.id == "delayq.E011"
    with pytest.raises(Misconfigured, match=message):
        wiring.make_hooks(conf())


@pytest.mark.parametrize("value", ["shop.money", ["money"], [5]])
def test_the_setting_is_a_list_of_dotted_paths(value: object) -> None:
    with pytest.raises(Misconfigured, match="CODEC_TYPES"):
        Conf.read("DELAYQ", {"CODEC_TYPES": value})
