"""Arrow columns as entries of a run: byte by byte what ``schedule()`` would store, but for the keys."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from django_delayq import task as make_task
from django_delayq.core.codec import encode_args
from django_delayq.core.errors import InvalidJob
from django_delayq.core.job import NewJob
from django_delayq.core.loads import BulkLoad, LoadEntry, entry_of
from django_delayq.core.task import Task
from django_delayq.pipeline.columns import Packed, Packer
from django_delayq.pipeline.write_options import WriteOptions
from django_delayq.scheduling.build import EntryReader, plan_of

OPENED = int(time.time() * 1000)
RUN = BulkLoad("a run", "q", ((0, 4),), OPENED)
DUE = datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)  # rounded up to .679
DUE_MS = int(DUE.timestamp() * 1000) + 1
HOSTILE = ['"', "\\", "\x00", "\n\r\t\x1f", "\x7f", "é😀", "$dt", "</script>", " ", "", "a" * 3000, "\u2028"]


@pytest.fixture(scope="module")
def plain() -> Task:
    def take(*args: Any, **kwargs: Any) -> None: ...

    return make_task(name="columns.take")(take)


@pytest.fixture(scope="module")
def united() -> Task:
    def unite(payloads: Any) -> None: ...

    return make_task(name="columns.unite", merge=True, queue="columns", score_policy="max")(unite)


def packed(columns: dict[str, Any], kind: str = "python", **options: Any) -> Packed:
    batch = pa.RecordBatch.from_pydict(columns)
    return Packer(WriteOptions(queue="q", **{"task": "columns.take", **options}), RUN, kind).pack(batch)


def bodies(columns: dict[str, Any], **options: Any) -> list[bytes]:
    """Return the stored bytes behind the keys; the chunks add the keys."""
    n = len(next(iter(columns.values())))
    made = packed({"id": [str(one) for one in range(n)], **columns}, **options)
    assert made.bad == {}
    return [entry[2] for entry in made.entries]


def scheduled(task: Task, entry: dict[str, Any], **common: Any) -> LoadEntry:
    """Return what ``schedule_many`` would send, without keys."""
    options = {"on_conflict": "ignore", **common}
    (new,) = EntryReader(plan_of(task, options, many=True), options).read([entry])
    return entry_of(new)


def ids_of(made: Packed) -> list[bytes]:
    return [entry[0] for entry in made.entries]


def args_of(value: Any) -> bytes:
    return bodies({"args": value})[0]


# -- arguments ---------------------------------------------------------------------------------------------------------

_ITEMS = (
    (pa.string(), st.one_of(st.text(), st.sampled_from([*HOSTILE, "],[", "]\n[", "]\0["]))),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.bool_(), st.booleans()),
)


@given(st.data(), st.sampled_from(_ITEMS), st.booleans())
def test_columns_of_lists_are_encoded_as_their_values_one_by_one(data: Any, items: Any, with_gaps: bool) -> None:
    kind, item = items
    rows = st.lists(st.one_of(st.none(), item), min_size=1, max_size=4)
    if with_gaps:
        rows = st.one_of(st.none(), st.just([]), rows)
    drawn = data.draw(st.lists(rows, min_size=1, max_size=6))
    expected = [encode_args(row or (), {}) for row in drawn]
    assert bodies({"args": pa.array(drawn, pa.list_(kind))}) == expected
    named = [None if row is None else {f"a{n}": value for n, value in enumerate(row)} for row in drawn]
    widest = max(len(row or ()) for row in drawn)
    if widest and all(row is None or len(row) == widest for row in drawn):
        assert bodies({"args": pa.array(named)}) == expected


@pytest.mark.parametrize(
    ("column", "args"),
    [
        (pa.array([[1, None, -3]], pa.list_(pa.int64())), (1, None, -3)),
        (pa.array([[]], pa.list_(pa.int64())), ()),
        (pa.array([None], pa.list_(pa.int64())), ()),
        (pa.array([HOSTILE]), tuple(HOSTILE)),
        (pa.array([["],[", "["]]), ("],[", "[")),
        (pa.array([[True, False, None]]), (True, False, None)),
        (pa.array([[0.1, 1e300, -0.0, None]]), (0.1, 1e300, -0.0, None)),
        (pa.array([[[1], [], None]]), ([1], [], None)),
        (pa.array([{"a": 7, "b": "x", "c": None, "d": 1.5}]), (7, "x", None, 1.5)),
        (
            pa.array(
                [{"a": {"z": 1, "b": [{"c": DUE}]}}],
                pa.struct(
                    [
                        (
                            "a",
                            pa.struct(
                                [
                                    ("z", pa.int8()),
                                    ("b", pa.list_(pa.struct([("c", pa.timestamp("us", "Europe/Berlin"))]))),
                                ]
                            ),
                        )
                    ]
                ),
            ),
            ({"z": 1, "b": [{"c": DUE}]},),
        ),
        (
            pa.array(
                [
                    {
                        "a": DUE,
                        "b": DUE.replace(tzinfo=None),
                        "c": date(2026, 2, 3),
                        "d": Decimal("1.50"),
                        "e": b"\0\xff",
                        "f": timedelta(days=-1, microseconds=1),
                    }
                ]
            ),
            (
                DUE,
                DUE.replace(tzinfo=None),
                date(2026, 2, 3),
                Decimal("1.50"),
                b"\0\xff",
                timedelta(days=-1, microseconds=1),
            ),
        ),
        (
            pa.array([{"m": [("k", 1), ("a", None)]}], pa.struct([("m", pa.map_(pa.string(), pa.int32()))])),
            ({"k": 1, "a": None},),
        ),
        (pa.array([{"$dt": {"$dt": "x"}}]), ({"$dt": "x"},)),
        (pa.array(['[1, "x", {"b": 1.0, "a": null}]']), (1, "x", {"b": 1.0, "a": None})),
        (pa.array([b' ["\\u00e9"] ']), ("é",)),
        (pa.array(['[{"$dt": "no tag"}]']), ({"$dt": "no tag"},)),
        (pa.nulls(1), ()),
    ],
)
def test_arguments_are_the_bytes_of_a_call(plain: Task, column: Any, args: tuple[Any, ...]) -> None:
    expected = scheduled(plain, {"args": list(args), "id": "0", "at": DUE})
    assert packed({"id": ["0"], "due": pa.array([DUE]), "args": column}).entries == [expected]


@pytest.mark.parametrize(
    ("column", "kwargs"),
    [
        (pa.array([{"b": 1, "a": "x"}]), {"b": 1, "a": "x"}),
        (pa.array([None], pa.struct([("a", pa.int8())])), {}),
        (pa.array([{"$x": 1}]), {"$x": 1}),
        (pa.array([{'é"': None}]), {'é"': None}),
        (pa.array([[("b", 2), ("a", 1)]], pa.map_(pa.string(), pa.int32())), {"a": 1, "b": 2}),
        (pa.array([[]], pa.map_(pa.string(), pa.int32())), {}),
        (pa.array(['{"z": [1], "y": {"$b": ""}}']), {"z": [1], "y": {"$b": ""}}),
        (pa.array(["{}"]), {}),
        (pa.nulls(1, pa.string()), {}),
    ],
)
@pytest.mark.parametrize("args", [None, [], [5]])
def test_named_arguments_too(plain: Task, column: Any, kwargs: dict[str, Any], args: list[int] | None) -> None:
    columns = {"id": ["0"], "due": pa.array([DUE]), "kwargs": column}
    if args is not None:
        columns["args"] = pa.array([args], pa.list_(pa.int64()))
    expected = scheduled(plain, {"args": args or [], "kwargs": kwargs, "id": "0", "at": DUE})
    assert packed(columns).entries == [expected]


def test_a_slice_of_a_larger_batch_is_read_right() -> None:
    whole = pa.RecordBatch.from_pydict(
        {
            "id": ["a", "b", "c", "d"],
            "args": [[1], [2, 3], [], [4]],
            "kwargs": [{"k": 1}, None, {"k": 3}, {"k": 4}],
        }
    )
    packer = Packer(WriteOptions(queue="q", task="t"), RUN, "python")
    assert packer.pack(whole.slice(1, 3)).entries == packer.pack(whole).entries[1:4]


def test_an_empty_batch_is_no_job() -> None:
    schema = pa.schema([("id", pa.string()), ("due", pa.timestamp("us", "UTC")), ("args", pa.list_(pa.string()))])
    batch = pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
    assert Packer(WriteOptions(queue="q", task="t"), RUN, "python").pack(batch).entries == []


def test_arguments_that_are_encoded_already_stay_as_they_are() -> None:
    assert bodies({"args": [b'[{"$d":"2026-01-01"}]', None]}, encoded=True) == [b'[{"$d":"2026-01-01"}]', b""]


def test_the_bytes_of_a_pull_queue_stay_as_they_are() -> None:
    every = bytes(range(256)) * 3
    made = packed({"id": ["x"], "payload": [every]}, "pull", task=None)
    new = NewJob("x", "raw", every, OPENED, None, on_conflict="ignore")
    assert made.entries == [entry_of(new)]


# -- merged jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "score"),
    [
        ({"a": 1, "b": None}, 7),
        ("text", -1.5),
        (b"\0\xff", "12.50"),
        (None, 0),
        ([[1], [2]], 2**60),
        (3, Decimal("1.10")),
        (DUE, 1),
    ],
)
def test_a_merged_job_is_the_same(united: Task, value: Any, score: Any) -> None:
    entry = {"id": 5, "payload": value, "score": score, "at": DUE}
    columns = {"id": pa.array([5]), "due": pa.array([DUE]), "payload": pa.array([value]), "score": pa.array([score])}
    expected = scheduled(united, entry, on_conflict="merge")
    assert packed(columns, task="columns.unite", score_policy="max").entries == [expected]


@pytest.mark.parametrize("group", [{}, {"group": "acme"}])
def test_a_merged_job_without_a_score_has_that_of_its_arrival(united: Task, group: dict[str, str]) -> None:
    said: dict[str, Any] = {"on_conflict": "replace", "priority": 2}
    columns = {"id": ["x"], "due": [DUE], "payload": [1], **{name: [value] for name, value in group.items()}}
    expected = scheduled(united, {"id": "x", "payload": 1, "at": DUE, **group}, **said)
    assert packed(columns, task="columns.unite", score_policy="max", **said).entries == [expected]


def test_what_each_row_says_alike_is_said_once() -> None:
    made = packed({"id": ["x", "y"], "priority": [7, 7]})
    (one,) = packed({"id": ["x"]}, priority=7).entries
    assert [entry[3] for entry in made.entries] == [one[3]] * 2


@pytest.mark.parametrize("options", [{}, {"max_attempts": 3}])
def test_groups_of_rows_are_those_of_a_call(plain: Task, options: dict[str, Any]) -> None:
    columns = {"id": ["a", "b", "c"], "due": pa.array([DUE] * 3), "group": ["acme", None, "é"], "args": [[1], [2], []]}
    expected = [
        scheduled(plain, {"args": args, "id": ident, "at": DUE, "group": group, **options})
        for ident, args, group in (("a", [1], "acme"), ("b", [2], None), ("c", [], "é"))
    ]
    assert packed(columns, **options).entries == expected


# -- what is said of jobs ----------------------------------------------------------------------------------------------


def test_options_of_rows_are_those_of_a_call_and_come_before_those_of_the_write(plain: Task) -> None:
    expires = DUE + timedelta(hours=1)
    columns = {
        "id": ["a", "b", "c"],
        "due": pa.array([DUE] * 3),
        "context": pa.array([{"é": 1}, None, {"é": None}]),
        "max_attempts": pa.array([3, None, None]),
        "expires": pa.array([None, expires, None], pa.timestamp("us", "UTC")),
        "priority": pa.array([0, 7, None]),
        "timeout": pa.array([1.5, None, 3.0]),
        "ttr": pa.array([None, 1.5, 3.0]),
    }
    first = {"context": {"é": 1}, "max_attempts": 3, "priority": 0, "expires": 90.5, "timeout": 1.5, "ttr": 60}
    second = {"expires": expires, "priority": 7, "timeout": 2.5, "ttr": 1.5}
    third = {"context": {"é": None}, "expires": 90.5, "timeout": 3, "ttr": 3}
    expected = [
        scheduled(plain, {"args": [], "id": ident, "at": DUE, **options})
        for ident, options in zip("abc", (first, second, third), strict=True)
    ]
    assert packed(columns, expires=90.5, timeout=2.5, ttr=60).entries == expected


def test_options_of_the_write_are_those_of_a_call(plain: Task) -> None:
    said = {"max_attempts": 9, "expires": 90.5, "context": {"b": 1, "a": [2]}, "priority": 1, "timeout": 2.0, "ttr": 60}
    made = packed({"id": ["0"], "due": [DUE], "args": [[1]]}, **said, due_policy="earliest")
    entry = {"args": [1], "id": "0", "at": DUE, **said, "due_policy": "earliest"}
    assert made.entries == [scheduled(plain, entry)]


@pytest.mark.parametrize(
    ("column", "due_ms"),
    [
        ({"due": pa.array([DUE])}, DUE_MS),
        ({"due": pa.array([DUE], pa.timestamp("us", "America/Chicago"))}, DUE_MS),
        ({"due": pa.array([DUE.replace(microsecond=678000)])}, DUE_MS - 1),
        ({"due_ms": pa.array([DUE_MS])}, DUE_MS),
        ({"due_ms": pa.array([0], pa.int16())}, 0),
        ({}, OPENED),
    ],
    ids=["moment", "zone", "fraction", "ms", "zero", "none"],
)
def test_due_times_are_whole_milliseconds_and_never_early(column: dict[str, Any], due_ms: int) -> None:
    assert [entry[1] for entry in packed({"id": ["a"], **column}).entries] == [due_ms]


def test_numbers_become_ids() -> None:
    assert ids_of(packed({"id": pa.array([0, -5, 2**62])})) == [b"0", b"-5", b"%d" % 2**62]


# -- what cannot be written --------------------------------------------------------------------------------------------

BROKEN = pa.array([b"a\xff"]).view(pa.string())


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": pa.array([None], pa.string())}, "id is null"),
        ({"id": pa.array([None], pa.int32())}, "id is null"),
        ({"id": [""]}, "1 to 255 bytes"),
        ({"id": ["é" * 128]}, "1 to 255 bytes"),
        ({"id": ["a\0b"]}, "control characters"),
        ({"id": ["a\x85b"]}, "control characters"),
        ({"id": ["a\u2028b"]}, "control characters"),
        ({"id": ["a\u2066b"]}, "control characters"),
        ({"id": BROKEN}, "not valid UTF-8"),
        ({"due_ms": [-1]}, "before 1970"),
        ({"due_ms": [OPENED * 1000]}, "ten years"),
        ({"due_ms": [2**62]}, "ten years"),
        ({"due": pa.array([2**63 - 1], pa.timestamp("us", "UTC"))}, "ten years"),
        ({"args": [[float("nan")]]}, "no form in JSON"),
        ({"args": pa.array([[None, float("inf")]])}, "no form in JSON"),
        ({"args": ["{}"]}, "a list"),
        ({"args": ["[1"]}, "no JSON"),
        ({"args": ["[NaN]"]}, "no JSON"),
        ({"args": [b"\xff"]}, "no JSON"),
        ({"args": ["[" * 100_000]}, "no JSON"),
        ({"args": ["[" * 50 + "]" * 50]}, "nested more than"),
        ({"args": pa.array([[b"a\xff"]]).cast(pa.list_(pa.binary())).view(pa.list_(pa.string()))}, "not valid UTF-8"),
        ({"args": pa.array([[2**62]], pa.list_(pa.timestamp("us", "UTC")))}, "beyond what Python can hold"),
        ({"args": [["x" * 2_000_000]]}, "at most 1048576"),
        ({"kwargs": ["[]"]}, "an object"),
        ({"kwargs": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8()))}, "not a text"),
        ({"priority": [8]}, "priority must be 0 to 7"),
        ({"group": [""]}, "group is a text of 1 to 128 bytes"),
        ({"max_attempts": [0]}, "max_attempts must be 1"),
        ({"timeout": [0.0]}, "timeout must be more than 0"),
        ({"ttr": [0.0]}, "ttr is 0"),
        ({"ttr": [-1.0]}, "ttr is negative"),
        ({"timeout": [float("nan")]}, "timeout must be more than 0"),
        ({"due_ms": [OPENED], "expires": pa.array([OPENED * 1000], pa.timestamp("us", "UTC"))}, "would never run"),
        ({"context": ["[1]"]}, "an object"),
        ({"context": pa.array([{"x": DUE}])}, "plain JSON"),
        ({"context": [f'{{"x": "{"y" * 70_000}"}}']}, "at most 65535"),
        ({"payload": [1], "score": ["1_0"]}, "finite number"),
        ({"payload": [1], "score": [float("inf")]}, "finite number"),
        ({"payload": [1], "score": ["1" + "0" * 255]}, "finite number of at most 255 characters"),
        ({"payload": ["x" * 2_000_000]}, "at most 1048576"),
    ],
)
def test_a_bad_row_is_named_with_its_reason_and_the_others_go_on(columns: dict[str, Any], words: str) -> None:
    columns = {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    good = {
        "id": "fine",
        "due_ms": OPENED,
        "due": 0,
        "score": 1,
        "priority": 4,
        "max_attempts": 1,
        "timeout": 1.0,
        "ttr": 1.0,
    }
    both = {
        "id": pa.array(["fine", "bad"]),
        **{name: pa.concat_arrays([_good(good.get(name), column.type), column]) for name, column in columns.items()},
    }
    made = packed(both)
    assert list(made.bad) == [1]
    assert words in made.bad[1]
    assert ids_of(made) == ([b"fine"] if both["id"].type == pa.string() else [b"7"])


def _good(value: Any, kind: Any) -> Any:
    if value == "fine" and pa.types.is_integer(kind):
        value = 7
    if value in (1, 1.0) and pa.types.is_string(kind):
        value = "1"
    return pa.array([value], kind)


def test_a_task_that_nobody_names_is_found_before_anything_is_written() -> None:
    with pytest.raises(InvalidJob, match="which task"):
        packed({"id": ["a"]}, task=None)


def test_plain_jobs_cannot_be_merged() -> None:
    with pytest.raises(InvalidJob, match="give one, or use on_conflict='replace'"):
        packed({"id": ["a"]}, on_conflict="merge")


def test_far_due_times_are_written_when_they_are_meant() -> None:
    far = OPENED + 20 * 365 * 86_400_000
    assert [entry[1] for entry in packed({"id": ["a"], "due_ms": [far]}, allow_far=True).entries] == [far]
    assert "2255" in packed({"id": ["a"], "due_ms": [10**14]}, allow_far=True).bad[0]
