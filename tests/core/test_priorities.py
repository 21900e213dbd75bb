"""Row 8: priorities of other systems as classes of a queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq import InvalidJob, priority_of_u32

from .stage import Stage

U32 = st.integers(0, 2**32 - 1)


@given(U32, U32)
def test_a_more_urgent_job_never_gets_a_later_class(one: int, other: int) -> None:
    assert priority_of_u32(min(one, other)) <= priority_of_u32(max(one, other))


def test_the_classes_begin_where_the_document_says() -> None:
    begins = [0, 1, 16, 512, 8192, 262_144, 4_194_304, 134_217_728]
    assert [priority_of_u32(first) for first in begins] == list(range(8))
    assert [priority_of_u32(first - 1) for first in begins[1:]] == list(range(7))
    assert priority_of_u32(2**32 - 1) == 7
    assert priority_of_u32(65_536) == 4


@pytest.mark.parametrize("priority", [-1, 2**32, 1.0, True, "5", None])
def test_what_is_no_u32_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidJob, match=r"priority must be (0 to 4294967295|an int)"):
        priority_of_u32(priority)


def test_jobs_are_reserved_by_priority_first_and_by_due_time_within_one(stage: Stage) -> None:
    """Row 8, beanstalkd: the most urgent ready job goes first, whatever was put before it."""
    for ident, priority in (("late", 2**31), ("urgent", 5), ("usual", 65_536), ("twin", 60_000), ("first", 0)):
        stage.put(ident, priority=priority_of_u32(priority))
        stage.wait(1)
    assert [job.id for job in stage.take()] == ["first", "urgent", "usual", "twin", "late"]
