"""Ids and due times of jobs that are made of rows."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from django_delayq.core import InvalidJob, Misconfigured
from django_delayq.repair.rows import due_ms_of, id_of, id_parts, names_in


def test_an_id_has_the_parts_of_its_row_as_texts() -> None:
    row = {"pk": 7, "day": date(2026, 3, 1), "price": Decimal("1E+2"), "paid": True, "name": "Anna"}
    assert id_of("a{pk}-{day}-{price}-{paid}-{name}{{}}", row) == "a7-2026-03-01-100-true-Anna{}"


def test_a_row_with_an_empty_part_has_no_id() -> None:
    assert id_of("a{pk}-{day}", {"pk": 7, "day": None}) is None
    assert id_of("a{pk}-{name}", {"pk": 7, "name": ""}) == "a7-"


def test_a_part_whose_text_may_vary_is_refused() -> None:
    with pytest.raises(Misconfigured, match="price is float, whose text form may vary"):
        id_of("a{price}", {"price": 1.5})


@pytest.mark.parametrize("template", ["a{}", "a{pk}-{}", "{pk:>5}", "{pk!r}"])
def test_only_names_of_columns_go_between_braces(template: str) -> None:
    with pytest.raises(Misconfigured, match="only names of columns go between braces"):
        id_parts(template)


def test_a_template_without_a_column_is_refused() -> None:
    with pytest.raises(Misconfigured, match="names no column"):
        id_parts("order")


def test_the_columns_of_a_template_are_known_without_rows() -> None:
    assert names_in("a{pk}-{{x}}{customer__name}{pk}") == ["pk", "customer__name"]
    with pytest.raises(Misconfigured, match="is no template"):
        names_in("{pk")


def test_a_delay_counts_from_the_start_in_whole_milliseconds() -> None:
    assert due_ms_of("+2h", 1000, ()) == 7_201_000
    assert due_ms_of("+0.0005", 1000, ()) == 1001


@pytest.mark.parametrize("delay", ["+99999999999999d", "+" + "9" * 400])
def test_a_delay_beyond_all_calendars_is_refused(delay: str) -> None:
    with pytest.raises(InvalidJob, match="due is"):
        due_ms_of(delay, 1000, ())
