"""Packed form of a job in the outbox: all of it but its due time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st

from django_delayq.core import NewJob, Payload
from django_delayq.outbox.rows import pack_job, unpack_job
from tests.support.core_values import CONFLICTS, DUE_POLICIES, PAYLOAD_POLICIES, SCORE_POLICIES, Undecodable

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=80)
keys = st.binary(min_size=16, max_size=16)
payloads = st.builds(Payload, st.binary(max_size=200), texts, keys)
news = st.builds(
    NewJob,
    id=texts,
    task=texts,
    args=st.binary(max_size=200),
    due_ms=st.none() | st.integers(),
    delay_ms=st.none() | st.integers(),
    priority=st.integers(0, 7),
    options=st.binary(max_size=100),
    key=st.just(b"") | keys,
    on_conflict=st.sampled_from(CONFLICTS),
    due_policy=st.sampled_from(DUE_POLICIES),
    reset_retries=st.booleans(),
    payload=st.none() | payloads,
    score_policy=st.sampled_from(SCORE_POLICIES),
    payloads=st.sampled_from(PAYLOAD_POLICIES),
    max_payloads=st.integers(1, 1 << 32),
    fresh=st.booleans(),
    group=texts,
)


@given(news)
def test_a_record_gives_back_all_of_a_job_but_its_due_time(new: NewJob) -> None:
    assert unpack_job(pack_job(new)) == replace(new, due_ms=None, delay_ms=0)


def test_every_field_of_a_job_is_kept() -> None:
    # A field that is added to NewJob and forgotten in the record fails here, and below in the strategy.
    other = NewJob(
        "i",
        "t",
        b"a",
        5,
        None,
        1,
        b"{}",
        b"k" * 16,
        "error",
        "latest",
        False,
        Payload(b"d", "1", b"p" * 16),
        "max",
        "last",
        7,
        True,
        group="customer-7",
    )
    usual = NewJob("", "")
    # `repeatable`, `room_ms` and `confirmed` are of the call, `joined` of its answer.
    usual_still = [one.name for one in fields(NewJob) if getattr(other, one.name) == getattr(usual, one.name)]
    assert usual_still == ["repeatable", "room_ms", "confirmed", "joined"]
    assert unpack_job(pack_job(other)) == replace(other, due_ms=None, delay_ms=0)


def test_the_bytes_of_the_first_version_are_read_for_ever() -> None:
    stored = bytes.fromhex(
        "01 86 a26964 a76f726465722d35 a47461736b ab73686f702e63616e63656c a461726773 c4035b355d"
        "a87072696f72697479 01 a36b6579 c41080000000000000000000000000000001 a56672657368 c3"
    )
    key = b"\x80" + bytes(14) + b"\1"
    assert unpack_job(stored) == NewJob("order-5", "shop.cancel", b"[5]", priority=1, key=key, fresh=True)
    assert pack_job(unpack_job(stored)) == stored


@given(st.binary(max_size=100))
def test_any_bytes_are_a_job_or_undecodable_and_nothing_else(record: bytes) -> None:
    for bytes_ in (record, b"\1" + record):
        with suppress(Undecodable):
            unpack_job(bytes_)


@given(news, st.data())
def test_a_record_that_was_cut_off_is_not_taken_for_another_job(new: NewJob, data: st.DataObject) -> None:
    stored = pack_job(new)
    with pytest.raises(Undecodable):
        unpack_job(stored[: data.draw(st.integers(0, len(stored) - 1))])


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (b"", "cannot read record version None"),
        (b"\x02", "cannot read record version 2; upgrade django_delayq"),
        (b"\x01\x81\xa1x\x01", "cannot be read .*'x'.*is it of a newer"),
        (b"\x01\x81\xa2id\xa9abc", "cannot be read .*incomplete"),
        (b"\x01", "cannot be read .*incomplete"),
        (b"\x01\x81\xa7payload\x01", "cannot be read"),
        (b"\x01\x01", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(stored: bytes, error: str) -> None:
    with pytest.raises(Undecodable, match=error):
        unpack_job(stored)


def test_a_field_of_a_newer_release_that_may_be_overlooked_is() -> None:
    assert unpack_job(b"\1\x83\xa2id\xa1a\xa4task\xa1t\xa6_later\xa2xx") == NewJob("a", "t")
