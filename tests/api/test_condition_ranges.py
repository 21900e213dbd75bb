"""Ranges of ids and of burials over HTTP."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from django_delayq.api.requests import filter_of
from django_delayq.core.broker import Broker
from django_delayq.core.times import datetime_of
from tests.support.api_caller import Caller
from tests.support.moments import in_days

from .errands import bury, carry, ids, put, waiting

QUEUE = "v1/queues/errands"
pytestmark = pytest.mark.django_db


@pytest.fixture
def moments(delayq: Broker) -> list[float]:
    """Seconds at which jobs were buried, before each of them and after the last."""
    found = []
    for ident in ("a", "b", "c"):
        time.sleep(0.002)  # burials are dated in whole milliseconds: no two share one
        found.append(int(delayq.now_ms()) / 1000)
        put(delayq, carry, ident, id=ident)
        bury(delayq, ident)
    for ident in ("a", "b", "c", "d"):
        put(delayq, carry, ident, id=ident, at=in_days(30).timestamp())
    return [*found, delayq.now_ms() / 1000]


def test_lists_and_verbs_take_ranges_of_ids_and_burials(api: Caller, delayq: Broker, moments: list[float]) -> None:
    assert sorted(ids(api.get(f"{QUEUE}/jobs?id_from=b&id_to=c"))) == ["b", "c"]
    assert ids(api.get(f"{QUEUE}/morgue?id_from=b")) == ["b", "c"]
    assert ids(api.get(f"{QUEUE}/morgue?buried_from={moments[1]}&buried_before={moments[3] + 1}&id_to=b")) == ["b"]
    assert ids(api.get(f"{QUEUE}/jobs?buried_before={moments[3] + 1}")) == []
    where = {"buried_before": datetime.fromtimestamp(moments[3] + 1, UTC).isoformat(), "id_from": "c"}
    assert api.post(f"{QUEUE}/discard", {"where": where})[1]["counts"] == {"discarded": 1}
    assert api.post(f"{QUEUE}/cancel", {"where": {"id_from": "b", "id_to": "c"}})[1]["counts"] == {"cancelled": 2}
    assert sorted(waiting(delayq)) == ["a", "d"]


def test_a_range_without_ids_is_refused(api: Caller, delayq: Broker, moments: list[float]) -> None:
    status, body = api.post(f"{QUEUE}/cancel", {"where": {"id_from": "b", "id_to": "a"}})
    assert (status, "exchange id_from and id_to" in str(body)) == (400, True)
    assert api.get(f"{QUEUE}/jobs?id_from=b&id_to=a")[0] == 400


@pytest.mark.parametrize("text", [False, True])
def test_a_moment_is_the_very_millisecond_that_it_names(text: bool) -> None:
    """A sum in floating point would be a fraction above some of them, and leave out the job of that millisecond."""
    for ms in range(1_795_413_660_000, 1_795_413_661_000):
        moment = datetime_of(ms) if text else ms / 1000
        assert filter_of({"buried_from": moment}).buried_from_ms == ms
