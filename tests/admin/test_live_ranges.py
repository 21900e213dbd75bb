"""The job browser: ranges of ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_delayq.core.broker import Broker
from tests.admin.support import Yard, cells

pytestmark = pytest.mark.django_db

LIST = "/admin/django_delayq/livejob/"


@pytest.fixture
def operator(client: Client, staff: Callable[..., Any], delayq: Broker) -> Client:
    yard = Yard(delayq, shards=2)
    for ident in ("a", "b", "c"):
        yard.put(ident)
        yard.buried(yard.take_one())
    for ident in ("a", "b", "c", "d"):
        yard.put(ident)
    client.force_login(staff("view_livejob"))
    return client


def ids(client: Client, **asked: Any) -> list[str]:
    answer = client.get(LIST, asked)
    assert answer.status_code == 200
    return sorted(row[0] for row in cells(answer.content))


def test_jobs_are_listed_by_ranges(operator: Client) -> None:
    assert ids(operator, id_from="b", id_to="c") == ["b", "c"]
    assert ids(operator, id_from="c") == ["c", "d"]
    assert ids(operator, id_from="c", id_to="a") == ["a", "b", "c", "d"], "a range that cannot be is left out"


def test_a_range_stays_in_the_form(operator: Client) -> None:
    waiting = operator.get(LIST, {"id_from": "b"}).content
    assert b'name="id_from" value="b"' in waiting
