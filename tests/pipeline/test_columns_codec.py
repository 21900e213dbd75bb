"""Arrow columns under the option ``codec``: byte by byte what ``schedule()`` stores with the same codec."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pyarrow as pa
import pytest

from django_delayq.core import codec
from django_delayq.core.codec import encode, encode_args
from django_delayq.core.errors import Misconfigured
from django_delayq.pipeline.write_options import WriteOptions
from tests.app.test_codec import broken_codec, reversed_codec
from tests.pipeline.test_columns import packed

REVERSED = "tests.app.test_codec.reversed_codec"
BROKEN = "tests.app.test_codec.broken_codec"


@pytest.fixture(autouse=True)
def json_afterwards() -> Iterator[None]:
    yield
    codec.use(None)


def test_arguments_are_those_of_schedule_with_the_same_codec() -> None:
    made = packed({"id": ["a", "b"], "args": [[1, 2], [3]]}, codec=REVERSED)
    codec.use(reversed_codec)
    assert [body for _, _, body, *_ in made.entries] == [encode_args((1, 2), {}), encode_args((3,), {})]


def test_payloads_are_those_of_schedule_with_the_same_codec() -> None:
    made = packed({"id": ["a"], "payload": [{"day": date(2030, 1, 1), "b": 1}]}, codec=REVERSED)
    codec.use(reversed_codec)
    ((*_, (_, record)),) = made.entries
    assert record.endswith(encode({"b": 1, "day": date(2030, 1, 1)}))


def test_a_row_that_the_codec_cannot_store_is_invalid() -> None:
    assert broken_codec.number == reversed_codec.number
    made = packed({"id": ["a", "b"], "args": [[1], [2]]}, codec=BROKEN)
    assert sorted(made.bad) == [0, 1] and "codec 'reversed' cannot store the value" in made.bad[0]


def test_the_codec_of_the_write_counts_and_not_that_of_the_process_which_previews_it() -> None:
    columns = {"id": ["a"], "args": pa.array([[{"day": date(2030, 1, 1)}]])}
    merged = {"id": ["a"], "payload": [{"b": 1}]}
    expected = [packed(columns).entries, packed(merged).entries]
    codec.use(reversed_codec)
    assert [packed(columns).entries, packed(merged).entries] == expected


def test_the_size_that_counts_is_that_of_the_stored_bytes() -> None:
    texts = pa.array([["x" * 100]])
    size = len(encode_args(("x" * 100,), {}))
    assert "at most" in packed({"id": ["a"], "args": texts}, codec=REVERSED, max_args_bytes=size).bad[0]
    assert packed({"id": ["a"], "args": texts}, codec=REVERSED, max_args_bytes=size + 1).bad == {}


def test_a_codec_that_cannot_be_imported_is_refused_with_the_option() -> None:
    with pytest.raises(Misconfigured, match=r"option codec: no\.such\.codec cannot be imported"):
        WriteOptions.parse({"codec": "no.such.codec"})
