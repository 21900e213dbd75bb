"""Views without large arguments: they stay in Redis, and everything else is told."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq.core import JobView
from tests.support.core_values import Undecodable

from .stage import Stage

LARGE = b'["' + b"x" * 5000 + b'"]'
OPTIONS = b'{"context":{"trace":"needle"}}'


def told(view: JobView) -> tuple[Any, ...]:
    gated = view.gated and (view.gated.args, view.gated_left_out)
    return view.id, view.cut, view.size, view.job.args, view.job.task, dict(view.job.context), view.payload_count, gated


def test_large_arguments_stay_where_they_are(stage: Stage) -> None:
    stage.put("small", args=b"[1]", options=OPTIONS)
    stage.put("large", args=LARGE, options=OPTIONS, at=10)
    (held,) = stage.batch(1).jobs
    stage.put("small", args=LARGE, at=50)
    stage.add("merged", b"1" * 3000, "1", at=20)
    inspector, context = stage.broker.inspector, {"trace": "needle"}
    large = ("large", True, 5004, b"", "work", context, 0, None)
    assert [told(view) for view in inspector.page("q", "waiting", most_bytes=5003).jobs] == [
        large,
        ("merged", False, 0, b"", "sync", {}, 1, None),
    ]
    assert [told(view) for view in inspector.page("q", "reserved", most_bytes=2).jobs] == [
        ("small", True, 3, b"", "work", context, 0, (b"", 5004))
    ]
    assert [told(view) for view in inspector.page("q", "reserved", most_bytes=3).jobs] == [
        ("small", False, 3, b"[1]", "work", context, 0, (b"", 5004))
    ]
    whole = inspector.page("q", "waiting", most_bytes=5004).jobs[0]
    assert told(whole) == ("large", False, 5004, LARGE, "work", context, 0, None)
    assert whole.arguments == (["x" * 5000], {})
    cut = inspector.get("q", "large", most_bytes=10)
    assert cut is not None and told(cut) == large
    with pytest.raises(Undecodable, match="5004 bytes of arguments were left out"):
        _ = cut.arguments
    assert stage.done(held) == [True]


def test_large_arguments_of_buried_jobs_stay_where_they_are(stage: Stage) -> None:
    stage.in_morgue("large", args=LARGE, options=OPTIONS)
    stage.wait(1)
    stage.in_morgue("small", args=b"[1]")
    stage.wait(1)
    stage.add("merged", b"1" * 3000, "1.5")
    stage.add("merged", b"2" * 3001, "2")
    assert stage.buried(stage.take_one(), "why")
    inspector = stage.broker.inspector
    wanted = [
        ("large", True, 5004, b"", "work", {"trace": "needle"}, 0, None),
        ("small", False, 3, b"[1]", "work", {}, 0, None),
        ("merged", True, 6001, b"", "sync", {}, 2, None),
    ]
    assert [told(view) for view in inspector.page("q", "morgue", most_bytes=100).jobs] == wanted
    assert [
        told(view) for ident in ("large", "small", "merged") for view in inspector.graves("q", ident, most_bytes=100)
    ] == wanted
    assert [(view.reason, view.payloads) for view in inspector.graves("q", "merged", most_bytes=100)] == [("why", ())]
    assert [(view.cut, view.size, len(view.payloads)) for view in inspector.page("q", "morgue").jobs] == [
        (False, 5004, 0),
        (False, 3, 0),
        (False, 6001, 2),
    ]
