"""The outbox in a look that is taken where no request begins or ends: a terminal, the thread of an exporter."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from django_delayq.connections import DjangoBroker
from django_delayq.core.broker import Broker
from django_delayq.status import take
from tests.app.outbox_stage import Stage, State

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "postgres"])


def test_a_database_that_was_away_is_there_again(delayq: Broker, settings: Any, postgres_alias: str) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "OUTBOX": {"databases": [postgres_alias]}}
    before = take(delayq).outbox
    connections[postgres_alias].connection.close()  # as the server does when it is started anew
    broken = take(delayq).outbox
    assert before is not None
    assert broken is None
    assert take(delayq).outbox == before


@pytest.mark.django_db
def test_only_what_was_never_sent_is_said_to_wait_and_since_when(delayq: DjangoBroker) -> None:
    stage = Stage(delayq)
    stage.sent("again")
    stage.table.update(state=State.UNSENT)
    stage.age(3600)
    stage.write("new")
    outbox = take(delayq).outbox
    assert outbox is not None
    assert outbox["waiting"] == 2
    assert outbox["oldest_waiting_seconds"] == pytest.approx(0, abs=60)
