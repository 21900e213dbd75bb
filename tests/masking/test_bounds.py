"""Masking takes a time that grows with the text alone, up to a limit, whatever a text is made of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.masking import HIDDEN, MOST_CHARACTERS, Mask, MaskError

MASK = Mask()
HOSTILE = [
    "a",
    "a-",
    "a_b-",
    "aA",
    "pin=",
    "pin\n",
    "pin='",
    'pin="',
    "pin=(",
    'pin=["',
    "pin={'",
    "pin='''",
    "(pin=)",
    "x://",
    "a://b:c",
    "a://b:c@",
    "://:@",
    "token\t\t\t",
    "token ",
    "a=",
    "a:",
    "a = ",
    "a=\n ",
    "[",
    "{",
    "[[",
    "'",
    '"',
    "\\",
    "\\'",
    '\\"',
    "'\\",
    "(",
    ")",
    "()",
    "('pin',",
    "('pin', \"('pin', '",
    "--pin ",
    "--pin (",
    "--pin '",
    "-",
    "--",
    "Key (pin)=(",
    ")=(",
    "(a)=(",
    "Failing row contains (",
    "Duplicate entry '",
    "' for key '",
    "Duplicate entry '' for key 'pin",
    "Bearer ",
    "BEARER ",
    "bearer aaaaaaaaaaaaaaaaaaaaaaaaaaa/",
    "a://b:c/",
    "a://b:c/d@",
    "://a:" + "b/" * 120,
    "://a:" + "@/" * 120,
    "://a:",
    "Bearer 1aaaaaaaaaaaaaaaa ",
    "eyJ",
    "eyJaaaaaaaa.",
    "-----BEGIN PRIVATE KEY-----",
    "BEGIN PRIVATE KEY-----",
    "\n",
    " ",
    "    ",
    'File "',
    '  File "a", line 1\n    ',
    "é",
    "::",
    "=>",
    "pin[0]",
    "pin]",
    "%5D=",
    "f'pin='",
]


def _seconds(masks: Callable[[str], Any], text: str) -> float:
    """Return the least processor time of some tries, so that a busy machine does not count."""
    found = []
    for _ in range(3):
        before = time.thread_time()
        masks(text)
        found.append(time.thread_time() - before)
    return min(found)


@pytest.mark.parametrize("masks", [MASK.text, MASK.traceback])
@pytest.mark.parametrize("part", HOSTILE)
def test_eight_times_the_text_takes_about_eight_times_as_long(masks: Callable[[str], Any], part: str) -> None:
    small = (part * 10_000)[:4_000]
    # a quadratic time would be 64 times as long; what is too short to be measured is not looked at
    assert _seconds(masks, small * 8) < 30 * max(0.0005, _seconds(masks, small))


def test_hostile_text_takes_no_more_than_some_times_as_long_as_prose() -> None:
    prose = _seconds(MASK.text, ("Order 5 of customer 7 was paid: 12.50 EUR, status=done. " * 2_000)[:20_000])
    for part in HOSTILE:
        assert _seconds(MASK.text, (part * 20_000)[:20_000]) < 10 * prose, part


# --- the limit


def test_only_so_much_of_a_text_is_shown_and_it_says_so() -> None:
    shown = MASK.text("password=x, " + "y" * 10 * MOST_CHARACTERS)
    assert shown.startswith(f"password={HIDDEN}, yyy")
    assert shown.endswith(f"[cut: {9 * MOST_CHARACTERS + 12:,} more characters]")
    assert len(shown) < MOST_CHARACTERS + 100


def test_of_a_long_traceback_the_end_is_shown() -> None:
    shown = MASK.traceback("x" * MOST_CHARACTERS + "\nValueError: password=abc")
    assert shown == f"[cut: {MOST_CHARACTERS + 1:,} more characters]\nValueError: password={HIDDEN}"
    one_line = "ValueError: password=" + "x" * MOST_CHARACTERS
    assert MASK.traceback(one_line) == f"[cut: {len(one_line):,} more characters]\n"


def test_all_of_a_value_together_has_the_same_limit() -> None:
    shown = MASK.value({"rows": ["z" * 1000] * 1000, "more": "y"})
    assert len(shown["rows"]) < 252 and shown["rows"][-1] == " [cut: 750 more items]"
    assert shown["rows"][-2].endswith(" more characters]")
    assert MASK.value([0] * 2 * MOST_CHARACTERS)[-1] == f" [cut: {MOST_CHARACTERS:,} more items]"
    assert len(MASK.value({str(place): 0 for place in range(MOST_CHARACTERS)})) < MOST_CHARACTERS / 5
    args, kwargs = MASK.arguments(["z" * MOST_CHARACTERS], {"n": "y" * 100})
    assert kwargs == {"…": " [cut: 1 more members]"} and args[0].startswith("zz")


def test_a_value_that_was_cut_is_not_put_back_in_part() -> None:
    stored = {"text": "z" * 2 * MOST_CHARACTERS}
    with pytest.raises(MaskError):
        MASK.restored(MASK.value(stored), stored)
    with pytest.raises(MaskError):
        MASK.restored([], [stored], [])


@pytest.mark.parametrize(
    "stored",
    [["x" * 199_000], [0] * 99_000, [[]] * 66_000, [""] * 66_000, {f"{n:05}": 0 for n in range(19_000)}],
    ids=["text", "numbers", "lists", "empty texts", "members"],
)
def test_a_value_that_a_form_takes_is_shown_whole(stored: Any) -> None:
    assert len(json.dumps(stored, separators=(",", ":"))) <= 200_000
    assert MASK.value(stored) == stored
