"""Rows that have to go or to come are found whatever the counts say, and nothing newer is deleted on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection as database

from django_delayq import connections
from django_delayq.core import bulk
from django_delayq.core.broker import Broker
from django_delayq.mirror.index_mirror import Index, IndexMirror
from django_delayq.mirror.rows import FAILED
from django_delayq.models import FailedJob
from django_delayq.settings.conf import conf

from .mirror_stage import Trouble, finish, tables

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def trouble(delayq: Broker) -> Trouble:
    return Trouble(delayq)


def reviewed(trouble: Trouble, *, fully: bool = False) -> list[str]:
    """The rows of failed jobs after one review."""
    for _ in IndexMirror(conf().mirror, trouble.queue, 0, FAILED).review(fully=fully):
        pass
    return tables()["failed"]


def test_a_full_look_finds_one_row_too_many_beside_one_too_few(trouble: Trouble) -> None:
    trouble.fail("a", "b", "c")
    finish(trouble.mirror())
    FailedJob.objects.filter(job_id="b").update(job_id="nobody")
    assert reviewed(trouble) == ["a x1", "c x1", "nobody x1"], "the numbers are equal"
    assert reviewed(trouble, fully=True) == ["a x1", "b x1", "c x1"]


def test_a_row_that_was_stored_anew_meanwhile_is_not_deleted(trouble: Trouble) -> None:
    """It had an old score when it was read; another dispatcher has copied the last failure since."""
    trouble.fail("a", "b", "c")
    finish(trouble.mirror())
    trouble.queue.cancel("b")
    last = FailedJob.objects.get(job_id="c").updated_us + 1_000_000

    def meanwhile(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith("DELETE") and not done:
            done.append(sql)
            FailedJob.objects.filter(job_id="b").update(updated_us=last)
        return execute(sql, *args)

    done: list[str] = []
    with database.execute_wrapper(meanwhile):
        assert "b x1" in reviewed(trouble)
    assert done


def test_a_review_that_broke_off_is_made_again(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble.fail("old")
    trouble.fail("new")
    mirror = trouble.mirror()
    finish(mirror)
    FailedJob.objects.filter(job_id="old").delete()
    trouble.note()
    mirror._next_turn = 0.0
    for shadow in mirror._mirrors.values():
        shadow.count_at = 0.0

    review = IndexMirror.review

    def broken(shadow: IndexMirror, **options: Any) -> Iterator[None]:
        if shadow.place is FAILED:
            raise ConnectionError("the database went away")
        return review(shadow, **options)

    with monkeypatch.context() as patch:
        patch.setattr(IndexMirror, "review", broken)
        with pytest.raises(ConnectionError):
            mirror.run()
    assert trouble.copied(mirror)["failed"] == ["new x1", "old x1"]


def test_more_entries_of_one_moment_than_a_page_are_all_rows(trouble: Trouble) -> None:
    idents = [f"j{number}" for number in range(2500)]
    trouble.fail("first", "last", *idents)
    key = trouble.queue.shard(0).names["failed"]
    moment = trouble.broker.client.zscore(key, "j0")
    trouble.broker.client.zadd(key, {**dict.fromkeys(idents, moment), "first": moment - 5, "last": moment + 5})
    assert len(reviewed(trouble, fully=True)) == 2502
    trouble.queue.cancel("j300")
    FailedJob.objects.filter(job_id="j400").delete()
    FailedJob.objects.filter(job_id="first").delete()
    assert set(reviewed(trouble, fully=True)) == {f"{ident} x1" for ident in ("first", "last", *idents)} - {"j300 x1"}


def test_thousands_of_rows_without_jobs_go_in_batches_beside_one_that_stays(trouble: Trouble) -> None:
    trouble.fail(*[f"j{number}" for number in range(2500)])
    finish(trouble.mirror())
    bulk.change(trouble.queue, bulk.DELETE_FAILED)
    trouble.fail("new")
    deletions: list[str] = []

    def count(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        deletions.extend([sql] * sql.startswith("DELETE"))
        return execute(sql, *args)

    with database.execute_wrapper(count):
        assert reviewed(trouble) == ["new x1"]
    assert len(deletions) == 3


def test_a_row_that_another_dispatcher_stores_meanwhile_is_kept(trouble: Trouble, monkeypatch: Any) -> None:
    trouble.fail("old")
    finish(trouble.mirror())
    page = Index.page

    def meanwhile(index: Index, low: int) -> Any:
        found = page(index, low)
        if index.place is FAILED and not others:
            others.append(1)
            trouble.fail("new")
            list(IndexMirror(conf().mirror, trouble.queue, 0, FAILED).copy())
        return found

    others: list[int] = []
    monkeypatch.setattr(Index, "page", meanwhile)
    assert reviewed(trouble, fully=True) == ["new x1", "old x1"]
    assert others


def test_a_job_that_left_the_index_while_it_was_read_is_no_row(trouble: Trouble) -> None:
    trouble.fail("gone", "replaced", "stays")
    shadow = IndexMirror(conf().mirror, trouble.queue, 0, FAILED)
    entries = shadow.index.between(0, 1 << 53)
    trouble.queue.cancel("gone")
    trouble.put("replaced", on_conflict="replace", due_policy="replace")
    assert [row.job_id for row in shadow.index.rows(entries)] == ["stays"]


def test_the_shards_of_a_queue_together_keep_at_least_as_many_rows_as_are_to_be_kept(
    settings: Any, delayq: Broker
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR": {"max_rows": 5}}
    trouble = Trouble(connections.broker(), shards=3)
    trouble.bury(*[f"m{number:02}" for number in range(30)])
    assert 5 <= len(trouble.copied()["morgue"]) <= 7
